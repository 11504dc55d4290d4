"""Fixed trees by (depth, top_k, total): the hand-tuned settings that users search, and the grid of the oracle."""

from __future__ import annotations

from dataclasses import dataclass

from smartree.cost.model import CostModel
from smartree.policies.eagle2 import Eagle2Policy


@dataclass(frozen=True, slots=True)
class TreeSize:
    """Levels, children per node, and most nodes of a request, root not counted."""

    depth: int
    top_k: int
    nodes: int


# The oracle is the best of these in hindsight; no speculation is one of its choices too.
ORACLE_GRID: tuple[TreeSize, ...] = tuple(
    TreeSize(depth, top_k, nodes)
    for depth in (1, 2, 3, 4, 5, 6, 8)
    for top_k in (1, 2, 4, 10)
    for nodes in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 59)
    if depth <= nodes <= top_k + (depth - 1) * top_k**2  # as many as the beam proposes
)


def fixed_tree(size: TreeSize, cost: CostModel | None = None) -> Eagle2Policy:
    """The likelihood tree of this size."""
    return Eagle2Policy(cost, total=size.nodes + 1, depth=max(size.depth - 1, 0), top_k=size.top_k)
