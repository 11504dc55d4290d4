"""Keeps a measured table alive: real step times correct it while it is in use (design 3.5)."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_LARGEST_SURPRISE = 0.3  # a step that took e^0.3 times the prediction counts as that much, however long it took
_SIZES = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512], np.float64)


class Refinement:
    """A factor on the table's predictions: the clock's scale, times a correction by batch and rows.

    Everything is kept as logarithms of measured over predicted. The scale follows slowly; if the median of the last
    `window` steps is off by more than `jump`, the clock has changed (power cap, other load) and the scale jumps there.
    Corrections by size are shrunk towards 1, so that a few noisy steps move nothing.
    """

    def __init__(
        self, *, rate: float = 0.02, window: int = 16, jump: float = 0.1, local_rate: float = 0.05, strength: float = 10
    ) -> None:
        """Args:
        rate: share of a step's surprise that moves the scale.
        window: steps whose median is watched for drift.
        jump: logarithm of the ratio that counts as drift.
        local_rate: share of a step's surprise that moves the correction of its size.
        strength: steps at a size that count as "no correction".
        """
        self._rate, self._jump, self._local_rate, self._strength = rate, jump, local_rate, strength
        self._log_scale = 0.0
        self._recent: deque[float] = deque(maxlen=window)
        self._means: dict[int, Floats] = {}
        self._counts: dict[int, Floats] = {}
        self.version = 0

    @property
    def scale(self) -> float:
        """Measured over predicted seconds, all sizes together."""
        return float(np.exp(self._log_scale))

    def observe(self, batch: int, rows: int, predicted: float, seconds: float) -> None:
        """Learns from one pass.

        Args:
            batch: requests of the pass.
            rows: verified tokens.
            predicted: what the table alone says, seconds.
            seconds: what the clock says.
        """
        surprise = float(np.log(seconds / predicted)) - self._log_scale
        self._recent.append(surprise)
        self.version += 1
        median = float(np.median(self._recent))
        if len(self._recent) == self._recent.maxlen and abs(median) > self._jump:
            self._log_scale += median
            self._recent.clear()
            return
        clipped = float(np.clip(surprise, -_LARGEST_SURPRISE, _LARGEST_SURPRISE))
        self._log_scale += self._rate * clipped
        means = self._means.setdefault(batch, np.zeros(len(_SIZES)))
        counts = self._counts.setdefault(batch, np.zeros(len(_SIZES)))
        place = int(np.argmin(np.abs(np.log(_SIZES / rows))))
        counts[place] = min(counts[place] + 1, 1 / self._local_rate)
        means[place] += (clipped - means[place]) / counts[place]

    def factors(self, batch: int, rows: Floats) -> Floats:
        """What to multiply the table's seconds with, for passes of `rows` rows each."""
        if batch not in self._means:
            return np.full(len(rows), self.scale)
        counts = self._counts[batch]
        shrunk = self._means[batch] * counts / (counts + self._strength)
        local = np.interp(np.log(np.maximum(rows, 1.0)), np.log(_SIZES), shrunk)
        return np.asarray(np.exp(self._log_scale + local))
