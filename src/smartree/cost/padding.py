"""What trees of different sizes cost beside their rows: attention pads every request to the widest one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smartree.errors import InputError

if TYPE_CHECKING:
    from smartree.cost.table import CostTable

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_LEAST_CONTEXT = 64  # attention reads that many cached rows at least


@dataclass(frozen=True, slots=True)
class UnevenPoint:
    """One measured pass: `tokens` rows of `batch` requests, the widest of which has `width`."""

    batch: int
    tokens: int
    width: int
    context: int
    seconds: float

    @property
    def places(self) -> int:
        """Rows of padding."""
        return self.batch * self.width - self.tokens


@dataclass(frozen=True, slots=True)
class PaddingCost:
    """Seconds that a pass takes longer than one of as many rows of which every request has the same number.

    Attributes:
        seconds: as soon as there is padding: rows are moved to the padded order and back.
        seconds_per_cell: for every row of padding and every cached row that it looks at.

    Raises:
        InputError: one of them is not 0 or a positive number.
    """

    seconds: float = 0.0
    seconds_per_cell: float = 0.0

    def __post_init__(self) -> None:
        for value in (self.seconds, self.seconds_per_cell):
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"A padding cost is {value}; it must be 0 or a positive number.")

    @property
    def free(self) -> bool:
        """True for engines whose attention takes rows as they come."""
        return self.seconds == 0 and self.seconds_per_cell == 0

    def of(self, places: Ints | int, context: int) -> Floats:
        """Seconds of passes with so many rows of padding behind `context` cached rows each."""
        rows = np.asarray(places)
        each = self.seconds_per_cell * max(context, _LEAST_CONTEXT)
        return np.asarray(np.where(rows > 0, self.seconds + each * rows, 0.0))

    def seconds_of(self, places: int, context: int) -> float:
        """The same for one pass."""
        return self.seconds + self.seconds_per_cell * max(context, _LEAST_CONTEXT) * places if places > 0 else 0.0


def fit_padding(points: Sequence[UnevenPoint], table: CostTable) -> PaddingCost:
    """The padding cost that explains uneven passes best (least squares), beyond what the table says of their rows."""
    from scipy.optimize import nnls  # slow to import, and only needed here

    padded = [point for point in points if point.places > 0]
    if not padded:
        return PaddingCost()
    cells = np.array([point.places * max(point.context, _LEAST_CONTEXT) for point in padded], np.float64)
    even = [float(table.seconds(point.batch, point.tokens, point.context)) for point in padded]
    beyond = np.maximum(np.array([point.seconds for point in padded]) - even, 0.0)
    scale = cells.max()  # else one column is a million times the other
    once, per_scale = nnls(np.column_stack([np.ones(len(cells)), cells / scale]), beyond)[0]
    return PaddingCost(float(once), float(per_scale / scale))
