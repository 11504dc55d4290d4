"""What a drafter's word about looked-up tokens is worth, learned by how sure the lookup and the drafter were."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smartree.tree.forest import Floats, Ints

_BY_LOOKUP = np.array([0.3, 0.5, 0.65, 0.8])  # between the lookup's rates
_BY_DRAFTER = np.array([0.5, 0.8, 0.95])  # between the probabilities of the drafter's first choices
_CENTRES = np.array([0.15, 0.4, 0.575, 0.725, 0.9])
# First word on what is accepted, by the lookup's rate and what the drafter says: it has not named the token; it is
# another than its first choice; it is its first choice, with less than 0.5, 0.8, 0.95, or more. Measured with the demo
# model's head over the answers to three suites; learning takes over.
_PRIOR = np.array(
    [
        [0.10, 0.10, 0.35, 0.55, 0.65, 0.90],
        [0.30, 0.29, 0.67, 0.80, 0.84, 0.97],
        [0.34, 0.33, 0.68, 0.82, 0.95, 0.99],
        [0.58, 0.60, 0.71, 0.86, 0.96, 0.98],
        [0.92, 0.69, 0.86, 0.94, 0.97, 0.98],
    ]
)
_WORDS = _PRIOR.shape[1]
_LEAST, _MOST = 0.01, 0.99  # nothing is certain
NOT_NAMED = -1
"""Rank of a token that is not among the drafter's candidates."""


class SecondOpinion:
    """Acceptance rates of looked-up nodes once a drafter has said what follows their parents.

    Two guesses that agree are better than either, and a token that the drafter does not think of is accepted half as
    often: of tokens that the lookup gave 0.5 to 0.65, 0.33 were accepted where the head's first choice was another,
    0.82 where it agreed with 0.5 to 0.8, and all 96 where it was all but sure.

    A cell, by the lookup's rate and the drafter's word, holds what the lookup promised and what came of it; a rate is
    moved by as much, in log odds, as the cell as a whole was off.
    """

    def __init__(self, strength: float = 10.0, window: float = 2000.0) -> None:
        """Args:
        strength: observations that the prior is worth.
        window: observations of a cell over which its counts fade.
        """
        self._keep = 1 - 1 / window
        self._seen = np.full(_PRIOR.size, strength)
        self._promised = strength * np.repeat(_CENTRES, _WORDS)
        self._accepted = strength * _PRIOR.ravel()
        self._shifts = _log_odds(self._accepted / self._seen) - _log_odds(self._promised / self._seen)

    @staticmethod
    def cells(rates: Floats, ranks: Ints, probabilities: Floats) -> Ints:
        """[n] cell of each looked-up node.

        Args:
            rates: [n] the lookup's, given that the parent is accepted.
            ranks: [n] place of the token among the drafter's candidates for the same parent, or NOT_NAMED.
            probabilities: [n] that the drafter gives it; unused where it is not its first choice.
        """
        first = 2 + _BY_DRAFTER.searchsorted(probabilities, side="right")
        words = np.where(ranks == 0, first, (ranks > 0).astype(np.int64))
        return np.asarray(_BY_LOOKUP.searchsorted(rates, side="right") * _WORDS + words)

    def rates(self, cells: Ints, rates: Floats) -> Floats:
        """[n] acceptance rates by both, given that the parent is accepted."""
        odds = _log_odds(rates) + self._shifts[cells]
        return np.asarray(np.minimum(np.maximum(1 / (1 + np.exp(-odds)), _LEAST), _MOST))

    def learn(self, cells: Ints, rates: Floats, accepted: NDArray[np.bool_]) -> None:
        """Counts what became of nodes whose ancestors were all accepted, with the lookup's rates of them."""
        for cell, rate, hit in zip(cells.tolist(), rates.tolist(), accepted.tolist(), strict=True):
            self._seen[cell] = self._keep * self._seen[cell] + 1
            self._promised[cell] = self._keep * self._promised[cell] + rate
            self._accepted[cell] = self._keep * self._accepted[cell] + hit
        changed = np.unique(cells)
        seen = self._seen[changed]
        self._shifts[changed] = _log_odds(self._accepted[changed] / seen) - _log_odds(self._promised[changed] / seen)


def _log_odds(rates: Floats) -> Floats:
    clipped = np.minimum(np.maximum(rates, _LEAST / 2), 1 - (1 - _MOST) / 2)
    return np.asarray(np.log(clipped / (1 - clipped)))
