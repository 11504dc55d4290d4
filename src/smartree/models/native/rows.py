"""The rows of a pass as the kernels read them: where each is written, and what it sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smartree.models.native.structs import Rows
from smartree.models.packed_pass import RowGroup

Ints32 = NDArray[np.int32]


class NativeRows:
    """Rows, request by request. A row sees the first `contiguous` rows of its slot, then those of its list.

    The order in which a row sees things is that of positions. So it does not matter where in the cache its ancestors
    lie, and the sums of attention are the same in a tree as in plain decoding.
    """

    def __init__(self, groups: Sequence[RowGroup]) -> None:
        parts = [_visible(group) for group in groups]
        sizes = np.concatenate([group.sizes for group in groups])
        slots = np.concatenate([np.asarray(group.slots) for group in groups])
        base = np.concatenate([group.base for group in groups])
        cached = np.concatenate([group.cached for group in groups])
        ends = np.cumsum(sizes)
        local = np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes)
        self.positions = np.repeat(base, sizes) + np.concatenate([group.depths for group in groups])
        self.first = _narrow(np.concatenate([[0], ends]))
        self.slot = _narrow(np.repeat(slots, sizes))
        self.place = _narrow(np.repeat(cached, sizes) + local)
        self.contiguous = _narrow(np.concatenate([part[0] for part in parts]))
        self.list_start = _narrow(np.concatenate([[0], np.cumsum(np.concatenate([part[1] for part in parts]))]))
        self.list = _narrow(np.concatenate([part[2] for part in parts]))

    def __len__(self) -> int:
        return len(self.slot)

    def struct(self, cosines: NDArray[np.float32], sines: NDArray[np.float32]) -> Rows:
        """For a call; this object and the arrays must outlive it.

        Args:
            cosines: [N, head_dim] of each row's position.
            sines: the same.
        """
        arrays = (self.first, self.slot, self.place, self.contiguous, self.list_start, self.list, cosines, sines)
        return Rows(len(self), len(self.first) - 1, *(array.ctypes.data for array in arrays))


def _visible(group: RowGroup) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Contiguous rows of each row, the length of its list, and all lists."""
    if group.causal:
        local = np.arange(group.rows) - np.repeat(np.cumsum(group.sizes) - group.sizes, group.sizes)
        return np.repeat(group.base, group.sizes) + local + 1, np.zeros(group.rows, np.int64), np.empty(0, np.int64)
    base = np.repeat(group.base, group.sizes)
    inside = np.arange(group.width) < group.sizes[:, None]
    seen = group.mask[inside]
    # A list costs more than contiguous rows: what follows the committed rows without a gap belongs to them.
    leading = np.logical_and.accumulate(seen, axis=1)
    listed = seen & ~leading
    row, column = np.nonzero(listed)
    return base + leading.sum(axis=1), listed.sum(axis=1), base[row] + column


def _narrow(values: NDArray[np.int64]) -> Ints32:
    return np.ascontiguousarray(values, dtype=np.int32)
