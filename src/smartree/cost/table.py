"""The measured cost of a target pass: a monotone table over batch, verified tokens and context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smartree.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One measured pass: `tokens` rows (N of design 2) of `batch` requests over `context` cached tokens each."""

    batch: int
    tokens: int
    context: int
    seconds: float


class _Curve:
    """Seconds over verified tokens at one batch size and context: isotonic points, linear between them.

    Isotonic regression keeps plateaus and steps; past the last point the slope of the upper half goes on.
    """

    __slots__ = ("seconds", "slope", "tokens")

    def __init__(self, tokens: Floats, seconds: Floats) -> None:
        from scipy.optimize import isotonic_regression  # slow to import, and only needed here

        order = np.argsort(tokens, kind="stable")
        self.tokens = tokens[order]
        self.seconds = np.asarray(isotonic_regression(seconds[order]).x)
        upper = slice(len(tokens) // 2, None) if len(tokens) > 3 else slice(None)
        spread = self.tokens[upper] - self.tokens[upper].mean()
        weight = float(spread @ spread)
        self.slope = max(0.0, float(spread @ self.seconds[upper]) / weight) if weight > 0 else 0.0

    def __call__(self, tokens: Floats) -> Floats:
        inside = np.interp(tokens, self.tokens, self.seconds)
        return np.asarray(inside + self.slope * np.maximum(tokens - self.tokens[-1], 0.0))


class CostTable:
    """Predicts the seconds of a pass by interpolating measured passes.

    Linear between neighbouring batch sizes and contexts; beyond the measured ones the nearest is used (batch) or
    extrapolated (context and tokens), never below the nearest measurement.
    """

    def __init__(self, points: Sequence[CostPoint]) -> None:
        """Raises:
        InputError: no points, or a point that is not positive and finite.
        """
        if not points:
            raise InputError("The cost profile holds no verify rows; measure it again with `smartree profile`.")
        for point in points:
            if not (
                np.isfinite(point.seconds)
                and point.seconds > 0
                and point.tokens >= point.batch >= 1
                and point.context >= 0
            ):
                raise InputError(f"The cost profile holds an impossible row: {point}.")
        self.points = tuple(points)
        grid: dict[int, dict[int, dict[int, list[float]]]] = {}
        for point in points:
            by_tokens = grid.setdefault(point.batch, {}).setdefault(point.context, {})
            by_tokens.setdefault(point.tokens, []).append(point.seconds)
        self._curves = {
            batch: {
                context: _Curve(
                    np.array(list(by_tokens), np.float64), np.array([np.median(times) for times in by_tokens.values()])
                )
                for context, by_tokens in contexts.items()
            }
            for batch, contexts in grid.items()
        }
        self._batches = sorted(grid)
        self._cache: dict[tuple[int, int], Floats] = {}

    @property
    def batches(self) -> tuple[int, ...]:
        """Measured batch sizes."""
        return tuple(self._batches)

    def seconds(self, batch: int, tokens: NDArray[np.int64] | int, context: int) -> Floats:
        """Seconds of passes of `batch` requests over `context` cached tokens that carry `tokens` rows, one each."""
        wanted = np.asarray(tokens)
        return np.asarray(self.curve(batch, int(wanted.max(initial=batch)), context)[wanted])

    def curve(self, batch: int, largest: int, context: int) -> Floats:
        """[at least largest + 1] seconds of passes with 0, 1, ... rows: kept, shared and not to be written to."""
        # Decisions ask for neighbouring sizes again and again: keep the whole curve of a (batch, context) bucket.
        bucket = (batch, context // 64)
        curve = self._cache.get(bucket)
        if curve is None or len(curve) <= largest:
            size = max(512, 2 * largest)
            curve = self._at_batch(batch, np.arange(size, dtype=np.float64), 64.0 * bucket[1] + 32.0)
            curve.flags.writeable = False
            if len(self._cache) > 4096:
                self._cache.clear()
            self._cache[bucket] = curve
        return curve

    def _at_batch(self, batch: int, tokens: Floats, context: float) -> Floats:
        low = max((b for b in self._batches if b <= batch), default=self._batches[0])
        high = min((b for b in self._batches if b >= batch), default=self._batches[-1])
        below = self._at_context(self._curves[low], tokens, context)
        if low == high:
            return below
        above = self._at_context(self._curves[high], tokens, context)
        share = (batch - low) / (high - low)
        return np.asarray((1 - share) * below + share * above)

    @staticmethod
    def _at_context(contexts: dict[int, _Curve], tokens: Floats, context: float) -> Floats:
        known = sorted(contexts)
        if len(known) == 1:
            return contexts[known[0]](tokens)
        # More context never makes a pass cheaper; noise may say so.
        curves = np.maximum.accumulate([contexts[one](tokens) for one in known], axis=0)
        right = min(max(int(np.searchsorted(known, context)), 1), len(known) - 1)
        share = max((context - known[right - 1]) / (known[right] - known[right - 1]), 0.0)
        return np.asarray(curves[right - 1] + share * (curves[right] - curves[right - 1]))

    def autoregressive(self, batch: int, context: int) -> float:
        """c_T(B): seconds of one plain decoding step of the batch."""
        return float(self.seconds(batch, batch, context))
