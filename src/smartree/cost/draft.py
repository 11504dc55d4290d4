"""What drafting costs: a constant per step, or levels by the rows they carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

from smartree.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DraftPoint:
    """One measured draft level: `width` rows in all, for `batch` requests."""

    batch: int
    width: int
    seconds: float


class LevelCurve:
    """Seconds of a level over its rows: measured points, and the slope past the last one."""

    __slots__ = ("_first", "_known", "_seconds", "_slope", "_widths")

    def __init__(self, widths: Floats, seconds: Floats, slope: float) -> None:
        self._widths, self._seconds, self._slope = widths, seconds, slope
        # Decisions ask for the same few widths in every step.
        self._known: dict[int, float] = {}
        self._first = np.empty(0)

    def at(self, width: int) -> float:
        """Seconds at one width."""
        known = self._known.get(width)
        if known is None:
            known = self._known[width] = float(self(width))
        return known

    def first(self, count: int) -> Floats:
        """[count] seconds at widths 1, 2, ... count; not to be written to."""
        if len(self._first) < count:
            self._first = self(np.arange(1, 2 * count + 1))
        return self._first[:count]

    def __call__(self, width: int | Ints) -> Floats:
        """Seconds at one width, or at each of [W]."""
        inside = np.interp(width, self._widths, self._seconds)
        return np.asarray(inside + self._slope * np.maximum(width - self._widths[-1], 0.0))


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Seconds of drafting: a constant per step, or levels; one of the two.

    Attributes:
        seconds_per_step: paid with the first level, whatever the tree (one-pass drafters: heads, blocks, lookup).
        levels: measured levels of a drafter that runs level by level; empty for one-pass drafters.

    Raises:
        InputError: a time is not a positive number, or both kinds are given.
    """

    seconds_per_step: float = 0.0
    levels: tuple[DraftPoint, ...] = ()
    _curves: dict[int, LevelCurve] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (np.isfinite(self.seconds_per_step) and self.seconds_per_step >= 0):
            raise InputError(f"seconds_per_step is {self.seconds_per_step}; it must be 0 or a positive number.")
        for point in self.levels:
            if not (np.isfinite(point.seconds) and point.seconds > 0 and point.width > 0 and point.batch > 0):
                raise InputError(f"A draft level needs a positive batch, width and time; got {point}.")
        if self.levels and self.seconds_per_step > 0:
            raise InputError("Draft cost is either seconds_per_step or levels, not both; put it into the levels.")

    @property
    def by_level(self) -> bool:
        """True if each level costs a pass of its own."""
        return bool(self.levels)

    @overload
    def level_seconds(self, batch: int, width: int) -> float: ...
    @overload
    def level_seconds(self, batch: int, width: Ints) -> Floats: ...
    def level_seconds(self, batch: int, width: int | Ints) -> float | Floats:
        """Seconds of one level that carries `width` rows for `batch` requests; for [W] widths, [W] seconds.

        Between measured widths on the line, below the smallest what it costs, past the largest at the mean slope.
        """
        if not self.levels:
            return np.zeros(len(width)) if isinstance(width, np.ndarray) else 0.0
        curve = self.levels_of(batch)
        return curve(width) if isinstance(width, np.ndarray) else curve.at(width)

    def levels_of(self, batch: int) -> LevelCurve:
        """Seconds of a level for `batch` requests, whatever its width; only if drafting is by level."""
        curve = self._curves.get(batch)
        if curve is None:
            # Decisions ask for the same batch again and again.
            curve = self._curves[batch] = self._nearest_curve(batch)
        return curve

    def _nearest_curve(self, batch: int) -> LevelCurve:
        """The levels of the nearest measured batch size, the smaller one on a tie."""
        nearest = min(sorted({point.batch for point in self.levels}), key=lambda known: abs(known - batch))
        times: dict[int, list[float]] = {}
        for point in self.levels:
            if point.batch == nearest:
                times.setdefault(point.width, []).append(point.seconds)
        widths = sorted(times)
        # Wider levels are never cheaper; noise may say so.
        seconds = np.maximum.accumulate([float(np.median(times[width])) for width in widths])
        slope = (seconds[-1] - seconds[0]) / (widths[-1] - widths[0]) if len(widths) > 1 else 0.0
        return LevelCurve(np.array(widths, np.float64), seconds, float(slope))


def level_points(rows: Sequence[dict[str, float]]) -> tuple[DraftPoint, ...]:
    """Draft levels from the rows of a profile's JSON."""
    return tuple(DraftPoint(int(row["batch"]), int(row["width"]), float(row["seconds"])) for row in rows)
