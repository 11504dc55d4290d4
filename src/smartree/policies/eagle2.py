"""EAGLE-2's tree: a beam by likelihood, then the most likely nodes, whatever they cost."""

from __future__ import annotations

from smartree.cost.model import CostModel
from smartree.errors import InputError
from smartree.policies.base import BasePolicy, top_per_group
from smartree.tree.forest import Candidates, Forest, Ints


class Eagle2Policy(BasePolicy):
    """Beam of `top_k` nodes per level and request, every one proposing `top_k` children; the best `total - 1` stay.

    Counted as in EAGLE's code: `total` includes the root, and `depth` passes follow the first one, so the tree is
    up to `depth + 1` levels deep and its pool holds top_k + depth * top_k^2 candidates.
    """

    name = "eagle2"

    def __init__(self, cost: CostModel | None = None, *, total: int = 60, depth: int = 7, top_k: int = 10) -> None:
        """Raises:
        InputError: a size is below 1.
        """
        if min(total, depth + 1, top_k) < 1:
            raise InputError(
                f"eagle2 needs total, top_k >= 1, depth >= 0; got total {total}, depth {depth}, top_k {top_k}."
            )
        super().__init__(cost, max_depth=depth + 1)
        self.total, self.top_k = total, top_k

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """Records the `top_k` children of each beam node; the `top_k` best of the level are the next beam."""
        kept = candidates.take(top_per_group(candidates.parents, candidates.probabilities, self.top_k))
        nodes = forest.append(kept)
        beam = nodes[top_per_group(forest.request[nodes], forest.path[nodes], self.top_k)]
        return self.within_limits(forest, beam)

    def select(self, forest: Forest) -> Ints:
        """The best `total - 1` nodes of each request by path probability."""
        order = forest.best_first()
        chosen = order[top_per_group(forest.request[order], forest.path[order], self.total - 1)]
        self.predict(forest, chosen)
        return chosen
