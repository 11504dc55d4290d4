"""The rows of a pass as the kernels are told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.models.native import structs
from smartree.models.packed_pass import RowGroup


@dataclass(frozen=True, slots=True)
class Gathered:
    """Chosen rows of a table, which the kernels read where they lie.

    Attributes:
        table: [size, hidden] bfloat16, contiguous.
        rows: [N] places in it, where those beyond stand for place 0; None for its first N rows.
    """

    table: torch.Tensor
    rows: NDArray[np.int64] | None = None

    def struct(self) -> structs.Gathered:
        """For a call; this object must outlive it."""
        return structs.Gathered(self.table.data_ptr(), address(self.rows), len(self.table))


class NativeGroups:
    """Groups for one call; what they point at stays alive with this object."""

    def __init__(self, groups: Sequence[RowGroup]) -> None:
        self.count, self.rows = len(groups), sum(group.rows for group in groups)
        # The kernels count by sizes, and write what was made room for by depths.
        assert self.rows == sum(int(group.sizes.sum()) for group in groups)
        self._kept: list[NDArray[Any]] = []
        self.structs = (structs.Group * len(groups))(*(self._struct(group) for group in groups))

    def _struct(self, group: RowGroup) -> structs.Group:
        mask = group.given_mask
        return structs.Group(
            *(len(group.slots), group.causal, group.width, group.columns),
            *(self._address(part) for part in (np.array(group.slots), group.base, group.cached, group.sizes)),
            self._address(group.depths),
            None if group.above is None else self._address(group.above),
            None if mask is None else self._address(mask, np.bool_),
        )

    def _address(self, values: NDArray[Any], kind: type = np.int64) -> int:
        plain: NDArray[Any] = np.ascontiguousarray(values, dtype=kind)
        self._kept.append(plain)
        return plain.ctypes.data


def address(values: NDArray[np.int64] | None) -> int | None:
    """Where a contiguous array lies."""
    return None if values is None else values.ctypes.data
