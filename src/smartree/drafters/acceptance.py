"""Acceptance of looked-up tokens, learned by match length, depth and sibling rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smartree.tree.forest import Floats, Ints

# First word on the acceptance of the token after a match of 1, 2, 3, ... tokens; learning takes over quickly.
_PRIOR = np.array([0.05, 0.15, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.8, 0.85, 0.85, 0.9, 0.9, 0.9])
_LATER_SIBLING = 0.25
_DEPTHS, _RANKS = 6, 3
_LONG_MATCH = 3  # tokens beyond which a match is long


class Trust:
    """How much less than the table expects a request accepts, for short and for long matches.

    Texts differ, and one that does not quote itself accepts less than the average of a cell. One that accepts more is
    taken like the average all the same: of many requests those would be believed most that were lucky last, and what
    they promise is what gets verified. Replayed over four suites, 16 requests at a time, nodes that should have been
    accepted with probability 0.79 to 0.83 were with 0.57 to 0.71; so nodes of 0.77 to 0.79 are with 0.77 to 0.83.
    """

    def __init__(self, strength: float = 3.0, window: float = 60.0) -> None:
        """Args:
        strength: expected acceptances that "like the average" is worth.
        window: observations over which the counts fade.
        """
        self._strength, self._keep = strength, 1 - 1 / window
        self._accepted = [0.0, 0.0]
        self._expected = [0.0, 0.0]

    def factor(self, cell: int) -> float:
        """What to multiply the rate of a cell with, at most 1."""
        kind = _is_long(cell)
        return min(1.0, (self._accepted[kind] + self._strength) / (self._expected[kind] + self._strength))

    def learn(self, cell: int, rate: float, accepted: bool) -> None:
        """Counts one outcome that the table expected with probability `rate`."""
        kind = _is_long(cell)
        self._accepted[kind] = self._keep * self._accepted[kind] + accepted
        self._expected[kind] = self._keep * self._expected[kind] + rate


def _is_long(cell: int) -> bool:
    return cell >= _LONG_MATCH * _DEPTHS * _RANKS


class AcceptanceTable:
    """Beta-smoothed acceptance rates of nodes whose parent was accepted.

    Cells: length of the match that a node continues, depth below the root, rank among siblings. An accepted parent
    lengthens the match, so the prior of a cell reads the match length plus the depth. Counts fade, so that the table
    follows the text.
    """

    def __init__(self, strength: float = 10.0, window: float = 2000.0) -> None:
        """Args:
        strength: observations that the prior is worth.
        window: observations of a cell over which its counts fade.
        """
        length, depth, rank = np.meshgrid(np.arange(len(_PRIOR)), np.arange(_DEPTHS), np.arange(_RANKS), indexing="ij")
        prior = _PRIOR[np.minimum(length + depth, len(_PRIOR) - 1)] * np.where(rank == 0, 1.0, _LATER_SIBLING)
        self._strength, self._keep = strength, 1 - 1 / window
        self._accepted = (strength * prior).ravel()
        self._seen = np.full(prior.size, strength)
        self._rates = prior.ravel().tolist()

    @staticmethod
    def cell(length: int, depth: int, rank: int) -> int:
        """Cell of a node at `depth` >= 1 that continues a match of `length` >= 1 tokens."""
        return (
            (min(length, len(_PRIOR)) - 1) * _DEPTHS * _RANKS
            + (min(depth, _DEPTHS) - 1) * _RANKS
            + min(rank, _RANKS - 1)
        )

    def rate(self, cell: int) -> float:
        """Acceptance probability of a node in this cell, given that its parent is accepted."""
        return self._rates[cell]

    def rates(self) -> Floats:
        """[cells] all acceptance rates."""
        return np.array(self._rates)

    def learn(self, cells: Ints, accepted: NDArray[np.bool_]) -> None:
        """Counts outcomes of nodes whose ancestors were all accepted."""
        for cell, hit in zip(cells.tolist(), accepted.tolist(), strict=True):
            self._seen[cell] = self._keep * self._seen[cell] + 1
            self._accepted[cell] = self._keep * self._accepted[cell] + hit
            self._rates[cell] = float(self._accepted[cell] / self._seen[cell])
