"""What drafting costs: a constant per step, or levels by the rows they carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smartree.errors import InputError


@dataclass(frozen=True, slots=True)
class DraftPoint:
    """One measured draft level: `width` rows in all, for `batch` requests."""

    batch: int
    width: int
    seconds: float


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

    def level_seconds(self, batch: int, width: int) -> float:
        """Seconds of one level that carries `width` rows for `batch` requests."""
        if not self.levels:
            return 0.0
        nearest = min({point.batch for point in self.levels}, key=lambda known: abs(known - batch))
        times: dict[int, list[float]] = {}
        for point in self.levels:
            if point.batch == nearest:
                times.setdefault(point.width, []).append(point.seconds)
        widths = sorted(times)
        seconds = np.maximum.accumulate([float(np.median(times[width])) for width in widths])
        if width <= widths[-1] or len(widths) == 1:
            return float(np.interp(width, widths, seconds))
        slope = (seconds[-1] - seconds[0]) / (widths[-1] - widths[0])
        return float(seconds[-1] + slope * (width - widths[-1]))


def level_points(rows: Sequence[dict[str, float]]) -> tuple[DraftPoint, ...]:
    """Draft levels from the rows of a profile's JSON."""
    return tuple(DraftPoint(int(row["batch"]), int(row["width"]), float(row["seconds"])) for row in rows)
