"""The clock as a line: how measured passes relate to a table's, by the rows that each request has."""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_WIDE = log(4.0)  # rows a request, as a logarithm: from there on the line is level
_SHARED = 0.5  # of what happens to narrow passes, happens to wide ones too: the clock's share; the rest is memory's
_NOISE = 0.05**2  # variance of one pass's log(measured / table)
_AT_FIRST = 0.04**2  # variance of what may have happened to it since the table was measured
_FAR_AT_FIRST = 0.08**2  # and to wide passes alone: plain steps, of which there are many, do not tell about them
_LATER = 0.1**2  # variance of what may have happened to the clock since another engine's last pass


class ClockLine:
    """log(measured / table) for passes of one row a request, and for wide ones; in between by log(rows / requests).

    One factor for all is not enough where a processor has neighbours: memory changes its speed while arithmetic does
    not, and a pass of few rows, which waits for memory, then takes another share of what the table says than one of
    many. The two numbers are followed by a Kalman filter. A change of wide passes is one of the clock, which narrow
    ones share; half of a change of narrow passes is believed to be memory's, which wide ones do not. The longer one of
    the two was not seen, and the larger the change, the sooner its next passes are believed.
    """

    __slots__ = ("_both", "_drift", "_of_far", "_of_near", "far", "near")

    def __init__(self, rate: float, *, doubted: bool = False) -> None:
        """Args:
        rate: share of a pass's surprise that moves the line in the long run, where all passes are of one kind.
        doubted: whether the first passes move it further: a table may be an hour old, and was measured in a moment in
            which memory was fast or slow.
        """
        self.near, self.far = 0.0, 0.0
        self._drift = rate * rate * _NOISE
        # Covariances of the two estimates: at first those of the long run.
        self._of_near = rate * _NOISE
        self._of_far = self._both = _SHARED * self._of_near
        if doubted:
            self._widen(_AT_FIRST)
            self._of_far += _FAR_AT_FIRST

    def copy(self) -> ClockLine:
        """Another one that is where this one is."""
        other = ClockLine(0.0)
        other.near, other.far, other._drift = self.near, self.far, self._drift
        other._of_near, other._of_far, other._both = self._of_near, self._of_far, self._both
        return other

    def at(self, log_width: float) -> float:
        """Logarithm of the factor for passes of that width."""
        return self.near + (self.far - self.near) * min(log_width / _WIDE, 1.0)

    def over(self, log_widths: Floats) -> Floats:
        """`at` of many."""
        return np.asarray(self.near + (self.far - self.near) * np.clip(log_widths / _WIDE, 0.0, 1.0))

    def resume(self, near: float, far: float) -> None:
        """Begins where another engine's line was; as time has passed since, the first passes move it far."""
        self.near, self.far = near, far
        self._widen(_LATER)

    def jump(self, log_width: float, off: float, count: float) -> None:
        """Another clock: passes of about that width are off by so much, known from `count` of them."""
        self._widen(off * off)
        self._move(log_width, off, _NOISE / count)

    def follow(self, log_width: float, off: float) -> None:
        """Moves towards a pass that is off by so much."""
        self._widen(self._drift)
        self._move(log_width, off, _NOISE)

    def _widen(self, variance: float) -> None:
        """Something may have happened since."""
        self._of_near += variance
        self._of_far += _SHARED * variance
        self._both += _SHARED * variance

    def _move(self, log_width: float, off: float, noise: float) -> None:
        share = min(log_width / _WIDE, 1.0)
        near = (1 - share) * self._of_near + share * self._both
        far = (1 - share) * self._both + share * self._of_far
        spread = (1 - share) * near + share * far + noise
        self.near += near / spread * off
        self.far += far / spread * off
        self._of_near -= near * near / spread
        self._of_far -= far * far / spread
        self._both -= near * far / spread
