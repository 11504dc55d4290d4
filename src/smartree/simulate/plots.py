"""Pictures of simulations, drawn on a matplotlib figure that the caller brings: this layer imports numpy only.

Colours are Okabe and Ito's, which colour-blind people tell apart; line styles and markers differ too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smartree.cost import CostModel
from smartree.simulate.sweep import Row

SIZE = (6.4, 4.0)
"""Inches; at 120 dots an inch a README shows it unscaled."""
DOTS_PER_INCH = 120

_STYLES = {
    "smart": ("#0072B2", "o", "-", 2.4),
    "oracle": ("#000000", "", ":", 1.8),
    "paper": ("#009E73", "s", "-", 1.6),
    "eagle2": ("#D55E00", "^", "-", 1.6),
    "chain": ("#CC79A7", "v", "--", 1.4),
    "static": ("#E69F00", "D", "--", 1.4),
    "opt-tree": ("#56B4E9", "x", "--", 1.4),
    "none": ("#777777", "", "-", 1.0),
}
_LABELS = {"oracle": "best fixed tree (hindsight)", "none": "plain decoding"}
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
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("verified tokens per request and step")
    axes.set_title(f"Tree size by batch: {rows[0].model} on {rows[0].device}, simulated", fontsize=10)
    _legend(axes)


def draw_bend(figure: Any, costs: dict[str, CostModel], context: int, bend: float = 1.5, most: int = 1024) -> None:
    """Milliseconds of a target pass over verified tokens, and where each device bends, at batch 1.

    Args:
        figure: to draw on.
        costs: by the name of the device.
        context: cached tokens per request.
        bend: plain steps that a pass costs at its bend.
        most: largest pass.
    """
    axes = figure.subplots()
    rows = np.arange(1, most + 1)
    for colour, (name, cost) in zip(_COLOURS, costs.items(), strict=False):
        milliseconds = 1e3 * cost.verify(1, rows, context)
        axes.plot(rows, milliseconds, color=colour, linewidth=1.6, label=name)
        past = np.flatnonzero(milliseconds > bend * milliseconds[0])
        if len(past):
            axes.plot(rows[past[0]], milliseconds[past[0]], marker="o", color=colour, markersize=6)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("verified tokens N of a pass")
    axes.set_ylabel("time of the pass, ms")
    axes.set_title(f"Where devices bend (dots: {bend} plain steps), roofline", fontsize=10)
    _legend(axes)


def _lines(figure: Any, rows: Sequence[Row], value: Any) -> Any:
    axes = figure.subplots()
    batches = sorted({row.batch for row in rows})
    for policy in [name for name in _STYLES if any(row.policy == name for row in rows)]:
        colour, marker, line, width = _STYLES[policy]
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
    axes.legend(frameon=False, fontsize=8)
