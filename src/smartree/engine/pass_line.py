"""What passes take by their rows, learned from the passes themselves: what stands in where nothing was measured."""

from __future__ import annotations

import numpy as np

from smartree.tree.forest import Floats

_FADE = 0.98  # of what is known, with every pass
_WIDE = 0.25  # of the mean number of rows: passes that differ by less do not tell what a row takes
_OUTLIER = 3.0  # times what the line says, or a part of it, that one pass may count as


class PassLine:
    """Seconds of a pass as a line over its rows, by least squares with weights that fade.

    A pass counts with one over its rows, so that neither the prompts' long passes nor the short ones of decoding
    requests say it all. The slope is that of the last time when there were both; the level follows every pass.
    """

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._squares = self._products = 0.0
        self._slope: float | None = None

    def observe(self, rows: int, seconds: float) -> None:
        """Adds a pass."""
        known = self.curve(rows)
        if known is not None:  # a moment in which the machine stood still is no news
            likely = float(known[rows])
            seconds = min(max(seconds, likely / _OUTLIER), _OUTLIER * likely)
        weight = 1 / rows
        self._weight = _FADE * self._weight + weight
        self._rows = _FADE * self._rows + weight * rows
        self._seconds = _FADE * self._seconds + weight * seconds
        self._squares = _FADE * self._squares + weight * rows * rows
        self._products = _FADE * self._products + weight * rows * seconds
        mean, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - mean * mean
        if spread > (_WIDE * mean) ** 2:
            self._slope = max((self._products / self._weight - mean * mean_seconds) / spread, 0.0)

    def curve(self, largest: int) -> Floats | None:
        """[largest + 1] seconds of passes with 0, 1, ... rows, above 0 from one row on; None while all passes were of
        much the same size.
        """
        if self._slope is None or self._seconds <= 0:
            return None
        mean, seconds = self._rows / self._weight, self._seconds / self._weight
        # The slope may be of a slower hour: no row takes more than its part of the mean pass.
        slope = min(self._slope, seconds / mean)
        return np.maximum(seconds + slope * (np.arange(largest + 1) - mean), 0.0)
