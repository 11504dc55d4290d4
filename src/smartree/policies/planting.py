"""Whether looking up pays where no level is drafted: planted nodes are found for little, which is not nothing."""

from __future__ import annotations

_STEPS = 32  # over which the mean forgets
_AT_FIRST = 8  # steps before anything is concluded
_PAUSE = 7  # steps without, for one with, while it does not pay
_MOST = 4.0  # tokens a request that one step counts for at most, in both directions: a stalled clock is no news


class Planting:
    """Follows what steps with planted nodes bring more than plain ones, less what they take longer.

    To find a few nodes, to put them into the pass and to learn from them takes as long whether one of them is accepted
    or many, and no scan over nodes sees it: where rows are dear, every choice may be the best one and all of them a
    loss.
    """

    def __init__(self) -> None:
        self._mean, self._steps, self._pause = 0.0, 0, 0

    @property
    def pays(self) -> bool:
        """False once it is known not to."""
        return self._steps < _AT_FIRST or self._mean >= 0

    def wanted(self, alone: bool) -> bool:
        """Starts a step; True if nodes are to be planted.

        Args:
            alone: whether the step reads no prompts: others tell nothing, so nobody looks in them.
        """
        if self.pays:
            return True
        if alone:
            self._pause -= 1
        return alone and self._pause < 0

    def observe(self, batch: int, tokens: float) -> None:
        """Learns from a step with planting and without levels or prompts.

        Args:
            batch: requests.
            tokens: that it brought more than a plain step, less those that its time was worth.
        """
        value = max(-_MOST, min(tokens / max(batch, 1), _MOST))
        self._steps = min(self._steps + 1, _STEPS)
        self._mean += (value - self._mean) / self._steps
        self._pause = _PAUSE
