"""Answers that have been the same for a while are given again without asking, most of the time."""

from __future__ import annotations

_SAME_AT_FIRST = 8  # answers alike before the first that is not asked for
_ASKED = 4  # one answer of so many is asked for from then on


class Habit:
    """One question that every step asks; what decides it changes slowly, and asking takes time."""

    def __init__(self, answer: bool) -> None:
        """Args:
        answer: the one that may become a habit; the other is always asked for.
        """
        self._answer, self._same = answer, 0

    def holds(self) -> bool:
        """True if this time nobody need ask."""
        if self._same < _SAME_AT_FIRST or self._same % _ASKED == 0:
            return False
        self._same += 1
        return True

    def forget(self) -> None:
        """Things are different now: the next answers are asked for."""
        self._same = 0

    def note(self, answer: bool) -> None:
        """Somebody has asked."""
        self._same = self._same + 1 if answer == self._answer else 0
