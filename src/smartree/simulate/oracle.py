"""The best fixed tree in hindsight: what a hand-tuned setting, which adapts to nothing but the device, could reach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smartree.cost import CostModel
from smartree.policies import Calibration, StepState
from smartree.policies.fixed import ORACLE_GRID, TreeSize, fixed_tree
from smartree.simulate.loop import ROOMY, Outcome, draft, draft_seconds, observed
from smartree.simulate.pools import Pools
from smartree.tree.forest import Floats, Forest, Ints

_BEAMS = tuple(sorted({size.top_k for size in ORACLE_GRID}))
_DEPTHS = tuple(sorted({size.depth for size in ORACLE_GRID}))
_NODES = tuple(sorted({size.nodes for size in ORACLE_GRID}))
PLAIN = TreeSize(0, 0, 0)
"""No speculation, which is one of the oracle's choices."""


@dataclass(frozen=True, slots=True)
class GridRun:
    """Every fixed tree of the grid on the same pools.

    Attributes:
        batch: requests.
        tokens: [beam, depth, nodes] mean expected tokens of a step.
        rows: [steps, beam, depth, nodes] verified tokens.
        widths: [steps][beam] rows of the draft levels of the deepest tree.
    """

    batch: int
    tokens: Floats
    rows: Ints
    widths: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class BestTree:
    """A fixed tree and what it achieves."""

    size: TreeSize
    outcome: Outcome


def run_grid(pools: Pools, context: int, steps: int, warm_up: int = 0) -> GridRun:
    """Drafts the deepest beam of every top_k once a step; shallower and smaller trees are parts of it.

    Selection is by reported path probability, calibrated as in the engine if the pools are not. Nothing here depends on
    costs, so a run serves every device.
    """
    state = StepState(pools.batch, context, np.full(pools.batch, ROOMY, np.int64))
    shape = (len(_BEAMS), len(_DEPTHS), len(_NODES))
    tokens, rows = np.zeros(shape), np.zeros((steps, *shape), np.int64)
    widths: list[tuple[tuple[int, ...], ...]] = [()] * steps
    for place, top_k in enumerate(_BEAMS):
        deepest = TreeSize(max(_DEPTHS), top_k, max(_NODES))
        calibration = None if pools.calibrated else Calibration()
        for step in range(warm_up + steps):
            pools.begin(step)
            drafted = draft(fixed_tree(deepest), pools, calibration, state)
            if calibration is not None:
                accepted = pools.accepted(drafted.forest)
                nodes = observed(drafted.forest, drafted.selected, accepted)
                calibration.learn(drafted.forest, nodes, accepted[nodes], np.zeros(pools.batch, bool))
            if step >= warm_up:
                gains, rows[step - warm_up, place] = grid_sizes(drafted.forest, pools.worth(drafted.forest))
                tokens[place] += gains / steps
                widths[step - warm_up] = (*widths[step - warm_up], drafted.widths)
    return GridRun(pools.batch, tokens, rows, tuple(widths))


def grid_sizes(forest: Forest, worth: Floats) -> tuple[Floats, Ints]:
    """[depth, nodes] expected tokens and verified tokens of the trees cut out of one beam."""
    batch, most = forest.batch, _NODES[-1]
    gains, counts = np.zeros((len(_DEPTHS), len(_NODES))), np.zeros((len(_DEPTHS), len(_NODES)), np.int64)
    best_first = forest.best_first()
    by_request = best_first[np.argsort(forest.request[best_first], kind="stable")]
    last = np.array(_NODES) - 1
    for index, depth in enumerate(_DEPTHS):
        nodes = by_request[forest.depth[by_request] <= depth]
        owners = forest.request[nodes]
        place = np.arange(len(nodes)) - np.searchsorted(owners, owners, side="left")
        nodes, place = nodes[place < most], place[place < most]
        gains[index] = batch + np.cumsum(np.bincount(place, weights=worth[nodes], minlength=most))[last]
        counts[index] = batch + np.cumsum(np.bincount(place, minlength=most))[last]
    return gains, counts


def best_tree(grid: GridRun, cost: CostModel, context: int) -> BestTree:
    """The fixed tree, plain decoding included, with the most tokens per second on a device."""
    batch = grid.batch
    plain = cost.autoregressive(batch, context)
    best = BestTree(PLAIN, Outcome(1.0, 1.0, float(batch), 0.0, 1e3 * plain, 0.0))
    verify = cost.verify(batch, grid.rows, context).mean(axis=0)
    drafting = {
        (top_k, depth): _mean_draft_seconds(grid, cost, place, depth)
        for place, top_k in enumerate(_BEAMS)
        for depth in _DEPTHS
    }
    for size in ORACLE_GRID:
        place = (_BEAMS.index(size.top_k), _DEPTHS.index(size.depth), _NODES.index(size.nodes))
        seconds = drafting[size.top_k, size.depth]
        length = float(grid.tokens[place]) / batch
        speedup = length * (plain + cost.overhead) / (float(verify[place]) + seconds + cost.overhead)
        if speedup > best.outcome.speedup:
            rows = float(grid.rows[(slice(None), *place)].mean())
            outcome = Outcome(speedup, length, rows, 1e3 * seconds, 1e3 * float(verify[place]), float(size.depth))
            best = BestTree(size, outcome)
    return best


def _mean_draft_seconds(grid: GridRun, cost: CostModel, beam: int, depth: int) -> float:
    """Mean seconds of the first `depth` levels; steps mostly have the same widths, so each kind is asked for once."""
    known: dict[tuple[int, ...], float] = {}
    total = 0.0
    for levels in grid.widths:
        widths = levels[beam][:depth]
        if widths not in known:
            known[widths] = draft_seconds(widths, grid.batch, cost)
        total += known[widths]
    return total / len(grid.widths)
