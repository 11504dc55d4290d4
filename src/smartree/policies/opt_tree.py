"""OPT-Tree's rule: deepen while a level adds more than a constant to the expected length."""

from __future__ import annotations

import numpy as np

from smartree.cost.model import CostModel
from smartree.errors import InputError
from smartree.policies.base import BasePolicy, StepState, top_per_group
from smartree.tree.forest import Candidates, Forest, Ints


class OptTreePolicy(BasePolicy):
    """The `nodes` most likely nodes of each request; stops when a level's gain falls below `threshold`.

    Wang et al., OPT-Tree (arXiv 2406.17276): the beam is as wide as the tree; deepening stops when the sum of the best
    `nodes` path probabilities grows by less than the threshold. Here the mean over the requests of the batch decides.
    """

    name = "opt-tree"

    def __init__(
        self, cost: CostModel | None = None, *, nodes: int = 50, threshold: float = 0.7, max_depth: int = 10
    ) -> None:
        """Raises:
        InputError: a size is below 1 or the threshold is negative.
        """
        if nodes < 1 or max_depth < 1 or not threshold >= 0:
            raise InputError(
                f"opt-tree needs positive nodes and max_depth and a threshold of 0 or more; got {nodes}, {max_depth}, "
                f"{threshold}."
            )
        super().__init__(cost, max_depth)
        self.nodes, self.threshold = nodes, threshold
        self._sum, self._gain = 0.0, float("inf")

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """Starts every tree at its root."""
        self._sum, self._gain = 0.0, float("inf")
        return super().begin(state, forest)

    def wants_level(self, forest: Forest, frontier: Ints) -> bool:
        """True while the last level added enough."""
        return self._gain >= self.threshold and super().wants_level(forest, frontier)

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """Records every candidate; the `nodes` best of the level are expanded."""
        nodes = forest.append(candidates)
        total = float(forest.path[self._best(forest)].sum()) / max(forest.batch, 1)
        self._gain, self._sum = total - self._sum, total
        return self.within_limits(forest, nodes[top_per_group(forest.request[nodes], forest.path[nodes], self.nodes)])

    def select(self, forest: Forest) -> Ints:
        """The `nodes` best of each request."""
        chosen = self._best(forest)
        self.predict(forest, chosen)
        return chosen

    def _best(self, forest: Forest) -> Ints:
        order = forest.best_first()
        return np.asarray(order[top_per_group(forest.request[order], forest.path[order], self.nodes)])
