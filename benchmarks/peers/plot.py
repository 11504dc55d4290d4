"""Tokens/s by batch size of all engines: solid bars decode plainly, hatched ones speculate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.lineup import ENGINES, MODES, PLAIN
from benchmarks.peers.rows import Row

_COLOURS = {
    "smartree": "#d55e00",
    "transformers": "#777777",
    "vllm": "#0072b2",
    "vllm_compiled": "#56b4e9",
    "openvino": "#009e73",
    "llama_cpp": "#cc79a7",
}
_PANEL = (3.4, 3.6)  # inches
_DOTS_PER_INCH = 120


def draw(file: Path, rows: Sequence[Row], title: str) -> None:
    """One panel a batch size, as their scales differ; one bar for each engine and mode."""
    from matplotlib.figure import Figure

    batches = sorted({row["batch"] for row in rows})
    kinds = [(engine, mode) for engine in ENGINES for mode in MODES]
    figure = Figure(figsize=(_PANEL[0] * len(batches), _PANEL[1]), layout="constrained")
    panels = figure.subplots(1, len(batches), squeeze=False)[0]
    for axes, batch in zip(panels, batches, strict=True):
        there = {(row["engine"], row["mode"]): row for row in rows if row["batch"] == batch}
        shown = [(engine, mode) for engine, mode in kinds if (engine.name, mode) in there]
        for place, (engine, mode) in enumerate(shown):
            rate = there[engine.name, mode]["tokens_per_second"]
            style = {"hatch": "", "alpha": 1.0} if mode == PLAIN else {"hatch": "///", "alpha": 0.6}
            axes.barh(place, rate, color=_COLOURS[engine.name], edgecolor="white", linewidth=0, **style)
            axes.text(rate, place, f" {rate:.0f}", va="center", fontsize=7)
        axes.set_yticks(range(len(shown)), [engine.label(mode) for engine, mode in shown], fontsize=7)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_title(f"batch {batch}", fontsize=9)
        axes.set_xlabel("tokens/s", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.suptitle(title, fontsize=9)
    figure.savefig(file, dpi=_DOTS_PER_INCH)
