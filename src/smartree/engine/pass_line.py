"""What passes take by their rows, learned from the passes themselves: what stands in where nothing was measured."""

from __future__ import annotations

import numpy as np

from smartree.tree.forest import Floats

_FADE = 0.98  # of what is known, with every pass
_LEAST_SPREAD = 0.05  # of the mean number of rows: closer together they tell nothing about a line


class PassLine:
    """Seconds of a pass as a line over its rows, by least squares with weights that fade.

    A pass counts with one over its rows, so that neither the prompts' long passes nor the short ones of decoding
    requests say it all.
    """

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._squares = self._products = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Adds a pass."""
        weight = 1 / rows
        self._weight = _FADE * self._weight + weight
        self._rows = _FADE * self._rows + weight * rows
        self._seconds = _FADE * self._seconds + weight * seconds
        self._squares = _FADE * self._squares + weight * rows * rows
        self._products = _FADE * self._products + weight * rows * seconds

    def curve(self, largest: int) -> Floats | None:
        """[largest + 1] seconds of passes with 0, 1, ... rows; None while all passes were of one size."""
        if not self._weight:
            return None
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - rows * rows
        if spread < (_LEAST_SPREAD * rows) ** 2:
            return None
        slope = (self._products / self._weight - rows * seconds) / spread
        slope = min(max(slope, 0.0), seconds / rows)  # no pass takes less than nothing, nor less time for more rows
        return np.asarray(seconds + slope * (np.arange(largest + 1) - rows))
