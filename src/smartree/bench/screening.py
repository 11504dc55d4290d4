"""Which fixed trees are worth a race: many sizes judged from the steps of a few large trees.

The nodes of a small tree are among those of a large one of the same top_k, best first, so one run of the largest tree
tells how many tokens every smaller one would have got in the same steps. What they would have cost says the profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smartree.bench.cell import Advance, make_lane
from smartree.bench.config import tree_name
from smartree.bench.estimate import mean_length
from smartree.bench.lane import Lane, Load
from smartree.bench.measures import ratio
from smartree.engine.trace import NodeTrace
from smartree.policies.fixed import TreeSize
from smartree.tree.forest import Ints

if TYPE_CHECKING:
    from smartree.cost.model import CostModel
    from smartree.engine.llm import LLM


@dataclass(frozen=True, slots=True)
class BestFirst:
    """One request's drafted nodes in one step, the most likely first: their depths, and which were accepted."""

    depths: Ints
    accepted: Ints

    @staticmethod
    def of(nodes: Sequence[NodeTrace]) -> BestFirst:
        """Equally likely nodes stay in order, so that parents stand before their children."""
        depths: list[int] = []
        for node in nodes:
            depths.append(1 if node.parent < 0 else depths[node.parent] + 1)
        order = np.argsort([-node.path for node in nodes], kind="stable").astype(np.int64)
        return BestFirst(np.array(depths, np.int64)[order], np.array([n.accepted for n in nodes], np.int64)[order])

    def cut(self, size: TreeSize) -> tuple[int, int]:
        """Nodes of the smaller tree, and how many of them were accepted."""
        accepted = self.accepted[self.depths <= size.depth][: size.nodes]
        return len(accepted), int(accepted.sum())


@dataclass(frozen=True, slots=True)
class LargeRun:
    """What the largest tree of a top_k did.

    Attributes:
        trees: drafted nodes, one entry for each request and step.
        levels: drafted in a mean step.
        draft_seconds: of a mean step.
    """

    trees: Sequence[BestFirst]
    levels: float
    draft_seconds: float


def screen(llm: LLM, grid: Sequence[TreeSize], batch: int, load: Load, most: int, advance: Advance) -> list[TreeSize]:
    """The `most` trees of the grid that should be the fastest, the best first.

    Args:
        llm: the model.
        grid: the trees to choose from.
        batch: requests decoded together.
        load: what to decode for it.
        most: trees to choose.
        advance: hears of progress.
    """
    cost = llm.knowledge.cost_model()
    assert cost is not None  # a bench has a profile
    context = mean_length(load.prompts) + load.max_tokens // 2
    by_level = llm.drafter is not None and llm.drafter.by_level
    widths = sorted({size.top_k for size in grid})
    rates: dict[TreeSize, float] = {}
    for top_k in widths:
        sizes = [size for size in grid if size.top_k == top_k]
        largest = TreeSize(max(size.depth for size in sizes), top_k, max(size.nodes for size in sizes))
        lane = make_lane(llm, tree_name(largest), batch, largest)
        run = _decode(lane, load)
        rates |= {size: predicted_rate(size, run, batch, cost, context, by_level) for size in sizes}
        advance(lane.name, 1 / len(widths))
    return sorted(grid, key=lambda size: -rates[size])[:most]


def _decode(lane: Lane, load: Load) -> LargeRun:
    """Runs the lane's tree with every step recorded; what is timed is drafting only, as recording takes time."""
    lane.open(load)
    lane.engine.traces = []
    lane.advance(1.0)
    trees = [BestFirst.of(step.nodes) for step in lane.engine.traces]
    lane.engine.traces = None
    measures = lane.close()
    return LargeRun(trees, ratio(measures.levels, measures.steps), ratio(measures.draft_seconds, measures.steps))


def predicted_rate(size: TreeSize, run: LargeRun, batch: int, cost: CostModel, context: int, by_level: bool) -> float:
    """Tokens per second of a tree.

    Args:
        size: the tree.
        run: of the largest tree of the same top_k.
        batch: requests decoded together.
        cost: of target passes.
        context: cached tokens per request.
        by_level: True if a level that is not drafted saves its time.
    """
    cuts = np.array([tree.cut(size) for tree in run.trees] or [(0, 0)], np.float64)
    nodes, accepted = cuts.mean(axis=0)
    drafted = min(size.depth, run.levels) / run.levels if by_level and run.levels > 0 else 1.0
    verify = float(cost.verify(batch, batch + round(batch * float(nodes)), context))
    return batch * (1 + float(accepted)) / (verify + run.draft_seconds * drafted)
