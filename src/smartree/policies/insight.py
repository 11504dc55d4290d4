"""What a first level tells about nodes that are planted: some turn out likelier than they seemed, others less."""

from __future__ import annotations

import numpy as np

from smartree.tree.forest import Forest

_STEPS = 40  # over which the mean forgets
_PRIOR_STEPS = 3  # that "nothing" is worth
_LIKELY = 0.2  # path probability of a planted node from which on it matters what a level says of it


class Insight:
    """Follows by how much a first level beside planted nodes is worth more than the nodes that it adds.

    Of planted nodes that a drafter confirms more are worth verifying, those below them too, and of others fewer. No
    sum over path probabilities knows that beforehand, as on average they stay what they are.
    """

    def __init__(self) -> None:
        self._mean, self._steps = 0.0, 0
        self._foreseen, self._likely = 0.0, 0  # of the step at hand, once somebody has asked about its first level

    def begin(self) -> None:
        """Starts a step."""
        self._likely = 0

    def foresee(self, forest: Forest, worth: float) -> float:
        """Tokens that a first level is worth more, for what it says of the planted nodes.

        Args:
            forest: with what has been planted.
            worth: what its nodes and those that the level adds are expected to be worth, in tokens.
        """
        planted = slice(forest.batch, forest.batch + forest.planted)
        likely = (forest.depth[planted] == 1) & (forest.path[planted] > _LIKELY)
        self._foreseen, self._likely = worth, int(np.count_nonzero(likely))
        return self._mean * self._likely

    def learn(self, worth: float) -> None:
        """What the nodes are worth now that the level is drafted; of use if somebody has asked before."""
        if self._likely:
            self._steps = min(self._steps + 1, _STEPS)
            seen = (worth - self._foreseen) / self._likely
            self._mean += (seen - self._mean) / (self._steps + _PRIOR_STEPS)
            self._likely = 0
