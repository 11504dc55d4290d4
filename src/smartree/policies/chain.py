"""A chain of fixed length: what engines without trees run."""

from __future__ import annotations

from smartree.cost.model import CostModel
from smartree.errors import InputError
from smartree.policies.base import BasePolicy
from smartree.tree.forest import Candidates, Forest, Ints


class ChainPolicy(BasePolicy):
    """The drafter's first choice at every level, `length` levels deep, whatever it costs."""

    name = "chain"
    inspects_tokens = False

    def __init__(self, cost: CostModel | None = None, *, length: int = 5) -> None:
        """Raises:
        InputError: the length is below 1.
        """
        if length < 1:
            raise InputError(f"chain needs a length of at least 1; got {length}.")
        super().__init__(cost, max_depth=length)

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """Keeps first choices only."""
        return self.within_limits(forest, forest.append(candidates.take(candidates.ranks == 0)))

    def select(self, forest: Forest) -> Ints:
        """Every node."""
        chosen = forest.best_first()
        self.predict(forest, chosen)
        return chosen
