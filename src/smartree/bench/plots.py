"""Pictures of results, drawn with matplotlib, which is imported only when somebody wants them.

Styles are those of `simulate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smartree.errors import InputError
from smartree.simulate.plots import STYLES

Row = dict[str, Any]
_PANEL = (3.2, 2.6)  # inches
_MARGIN = (1.6, 0.5)
_DOTS_PER_INCH = 120
_STYLES = STYLES | {"oracle": ("#000000", "*", ":", 1.8), "none": ("#777777", ".", "-", 1.0)}
_LABELS = {"oracle": "best fixed tree\n(oracle)", "none": "plain decoding"}


def plot_folder(text: str | None) -> Path | None:
    """The folder for pictures, made if it is not there.

    Raises:
        InputError: matplotlib is missing, or the folder cannot be made.
    """
    if text is None:
        return None
    if find_spec("matplotlib") is None:
        raise InputError('--plot needs matplotlib; install it with `pip install "smartree[plot]"`.')
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--plot {text} cannot be made: {error.strerror}.") from error
    return folder


def draw_all(folder: Path, rows: Sequence[Row], title: str) -> list[Path]:
    """Draws every picture; returns their files."""
    pictures: dict[str, Callable[[Any, Sequence[Row]], None]] = {
        "speedup": _draw_speedup,
        "tau": _draw_tau,
        "verified-tokens": _draw_verified,
        "step-time": _draw_step_time,
    }
    return [_save(folder / f"{name}.png", draw, rows, title) for name, draw in pictures.items()]


def _save(file: Path, draw: Callable[[Any, Sequence[Row]], None], rows: Sequence[Row], title: str) -> Path:
    """A grid of panels: suites side by side, temperatures one below the other."""
    from matplotlib.figure import Figure

    suites, temperatures = (list(dict.fromkeys(row[name] for row in rows)) for name in ("suite", "temperature"))
    size = (_PANEL[0] * len(suites) + _MARGIN[0], _PANEL[1] * len(temperatures) + _MARGIN[1])
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(temperatures), len(suites), squeeze=False, sharex=True, sharey=True)
    for line, temperature in zip(panels, temperatures, strict=True):
        for axes, suite in zip(line, suites, strict=True):
            draw(axes, [row for row in rows if (row["suite"], row["temperature"]) == (suite, temperature)])
            axes.set_title(f"{suite}, T={temperature:g}", fontsize=9)
            axes.grid(True, color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
            axes.label_outer()
    if panels[0][0].get_yscale() == "linear":
        panels[0][0].set_ylim(bottom=0)  # the panels share it; set before all have been drawn it would keep their size
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside right center")
    figure.suptitle(title, fontsize=9)
    figure.savefig(file, dpi=_DOTS_PER_INCH)
    return file


def _draw_speedup(axes: Any, rows: Sequence[Row]) -> None:
    for policy, own in _lines(axes, rows, "speedup"):
        low, high = ([row[name] for row in own] for name in ("speedup_low", "speedup_high"))
        axes.fill_between([row["batch"] for row in own], low, high, color=_STYLES[policy][0], alpha=0.15, linewidth=0)
    axes.set_ylabel("speedup over plain decoding")


def _draw_tau(axes: Any, rows: Sequence[Row]) -> None:
    _lines(axes, rows, "tau")
    axes.set_ylabel("tau, tokens per request and step")


def _draw_verified(axes: Any, rows: Sequence[Row]) -> None:
    _lines(axes, rows, "verified_tokens_per_step")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(_plain)
    axes.set_ylabel("verified tokens per step")


def _draw_step_time(axes: Any, rows: Sequence[Row]) -> None:
    """Predicted over measured time of a pass, a point for each policy and batch size."""
    ends = [row[name] for row in rows for name in ("step_ms_measured", "step_ms_predicted") if row[name] == row[name]]
    if ends:
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="#777777", linewidth=0.8)
    for policy in _policies(rows):
        colour, marker, *_ = _STYLES[policy]
        own = [row for row in rows if row["policy"] == policy]
        axes.plot(
            [row["step_ms_measured"] for row in own],
            [row["step_ms_predicted"] for row in own],
            color=colour,
            marker=marker,
            linestyle="",
            markersize=5,
            label=_LABELS.get(policy, policy),
        )
    for scale in ("x", "y"):
        getattr(axes, f"set_{scale}scale")("log")
        getattr(axes, f"{scale}axis").set_major_formatter(_plain)
        getattr(axes, f"{scale}axis").set_minor_formatter(_plain)
        axes.tick_params(axis=scale, which="both", labelsize=7)
    axes.set_xlabel("measured, ms a pass")
    axes.set_ylabel("predicted, ms a pass")


def _lines(axes: Any, rows: Sequence[Row], name: str) -> list[tuple[str, list[Row]]]:
    """A line for each policy over the batch sizes; returns the rows of each."""
    found = []
    for policy in _policies(rows):
        colour, marker, line, width = _STYLES[policy]
        own = sorted((row for row in rows if row["policy"] == policy), key=lambda row: row["batch"])
        axes.plot(
            [row["batch"] for row in own],
            [row[name] for row in own],
            color=colour,
            marker=marker,
            linestyle=line,
            linewidth=width,
            markersize=5,
            label=_LABELS.get(policy, policy),
            zorder=3 if policy == "smart" else 2,
        )
        found.append((policy, own))
    batches = sorted({row["batch"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.set_xlabel("batch size")
    return found


def _policies(rows: Sequence[Row]) -> list[str]:
    there = {row["policy"] for row in rows}
    return [policy for policy in _STYLES if policy in there]


def _plain(value: float, _: int) -> str:
    return f"{value:g}"
