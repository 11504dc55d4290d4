"""Pictures of simulations, drawn on a matplotlib figure that the caller brings: this layer imports numpy only.

Colours are Okabe and Ito's, which colour-blind people tell apart; line styles and markers differ too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smartree.simulate.sweep import Row
from smartree.tree.forest import Floats, Ints

SIZE = (7.2, 4.0)
"""Inches; at 120 dots an inch a README shows it unscaled."""
DOTS_PER_INCH = 120

STYLES = {
    "smart": ("#0072B2", "o", "-", 2.4),
    "oracle": ("#000000", "", ":", 1.8),
    "paper": ("#009E73", "s", "-", 1.6),
    "eagle2": ("#D55E00", "^", "-", 1.6),
    "chain": ("#CC79A7", "v", "--", 1.4),
    "static": ("#E69F00", "D", "--", 1.4),
    "opt-tree": ("#56B4E9", "x", "--", 1.4),
    "none": ("#777777", "", "-", 1.0),
}
"""Colour, marker, line and width of each policy."""
_LABELS = {"oracle": "best fixed tree\n(hindsight)", "none": "plain decoding"}
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw_speedups(figure: Any, rows: Sequence[Row]) -> None:
    """Speedup over batch size, a line per policy; the rows are of one device and model."""
    axes = _lines(figure, rows, lambda row: row.speedup)
    axes.set_ylabel("speedup over plain decoding")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{rows[0].model} on {rows[0].device}, simulated", fontsize=10)
    _legend(axes)


def draw_sizes(figure: Any, rows: Sequence[Row]) -> None:
    """Verified tokens per request over batch size, a line per policy; the rows are of one device and model."""
    axes = _lines(figure, rows, lambda row: row.verified_tokens / row.batch)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(_plain)
    axes.set_ylabel("verified tokens per request and step")
    axes.set_title(f"Tree size by batch: {rows[0].model} on {rows[0].device}, simulated", fontsize=10)
    _legend(axes)


def draw_bend(figure: Any, curves: dict[str, tuple[Ints, Floats]], title: str, bend: float = 1.5) -> None:
    """Milliseconds of a target pass over verified tokens, and where each device bends.

    Args:
        figure: to draw on.
        curves: verified tokens and seconds of passes, by the name of the device; the plain step first.
        title: what was timed.
        bend: plain steps that a pass costs at its bend.
    """
    axes = figure.subplots()
    for colour, (name, (rows, seconds)) in zip(_COLOURS, curves.items(), strict=False):
        milliseconds = 1e3 * seconds
        axes.plot(rows, milliseconds, color=colour, linewidth=1.6, label=name)
        past = np.flatnonzero(milliseconds > bend * milliseconds[0])
        if len(past):
            axes.plot(rows[past[0]], milliseconds[past[0]], marker="o", color=colour, markersize=6)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(_plain)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_yticks([step * 10.0**power for power in range(-2, 5) for step in (1, 2, 5)])
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(_plain)
    axes.minorticks_off()
    axes.set_xlabel("verified tokens N of a pass")
    axes.set_ylabel("time of the pass, ms")
    axes.set_title(f"{title} (dots: {bend} plain steps)", fontsize=10)
    _legend(axes)


def _plain(value: float, _: int) -> str:
    return f"{value:g}"


def _lines(figure: Any, rows: Sequence[Row], value: Any) -> Any:
    axes = figure.subplots()
    batches = sorted({row.batch for row in rows})
    for policy in [name for name in STYLES if any(row.policy == name for row in rows)]:
        colour, marker, line, width = STYLES[policy]
        chosen = sorted((row for row in rows if row.policy == policy), key=lambda row: row.batch)
        axes.plot(
            [row.batch for row in chosen],
            [value(row) for row in chosen],
            color=colour,
            marker=marker or None,
            linestyle=line,
            linewidth=width,
            markersize=5,
            label=_LABELS.get(policy, policy),
            zorder=3 if policy == "smart" else 2,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_xlabel("batch size, requests decoded together")
    return axes


def _legend(axes: Any) -> None:
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
