"""Passes of a few fixed shapes: what a CUDA graph needs. A pass is padded to the bucket that it belongs to.

Padding is exact: rows behind the real ones are token 0 at position 0, write to one cache row behind the first request's
tree, which no mask shows before it is written again, and their logits are cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.models.cache import SlotCache, WriteIndex
from smartree.models.packed_pass import RowGroup

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_LEAST_REACH = 256


@dataclass(frozen=True, slots=True)
class Bucket:
    """A shape that passes are padded to.

    Attributes:
        batch: requests, in the slots 0, 1, ...; it is never padded.
        rows: packed rows.
        width: rows of the largest request.
        reach: cache rows that attention reads of each slot.
    """

    batch: int
    rows: int
    width: int
    reach: int


def bucket_of(groups: Sequence[RowGroup], most_rows: int) -> Bucket | None:
    """The bucket of a pass; None if it has prompt chunks, gathers its slots, or is larger than any bucket.

    Args:
        groups: the pass.
        most_rows: rows that a slot of the cache may ever have.
    """
    (group, *others) = groups
    if others or not group.adjacent or group.slots[0] != 0 or not group.in_one_go:
        return None
    rows, width = _up(group.rows), _up(group.width)
    if rows is None or width is None:
        return None
    # The mask's columns and the row that padding writes to lie within reach, too.
    reach = max(_LEAST_REACH, 1 << (int(group.base.max()) + width).bit_length())
    reach = min(reach, max(most_rows, int(group.base.max()) + width + 1))
    return Bucket(len(group.slots), rows, width, reach)


def _up(size: int) -> int | None:
    return next((one for one in _SIZES if one >= size), None)


class StaticGroup(RowGroup):
    """A group whose tensors stay where they are while their contents change from pass to pass."""

    def __init__(self, bucket: Bucket, device: torch.device) -> None:
        """Args:
        bucket: its shape.
        device: where its tensors lie.
        """
        batch, width = bucket.batch, bucket.width
        ones, mask = np.ones(batch, np.int64), np.zeros((batch, width, width), bool)
        super().__init__(range(batch), 0 * ones, 0 * ones, width * ones, np.zeros(batch * width, np.int64), mask)
        self.rows, self.reach = bucket.rows, bucket.reach
        padded = torch.zeros(batch * width, dtype=torch.int64, device=device)
        self._places = padded, torch.zeros(bucket.rows, dtype=torch.int64, device=device)
        self._real: RowGroup = self

    def load(self, real: RowGroup) -> None:
        """Takes over what a pass's own group says; `real` is padded to this one's width and reach."""
        self._real = real
        assert self._places is not None
        inside = (np.arange(self.width) < real.sizes[:, None]).ravel()
        back = np.zeros(len(self._places[1]), np.int64)  # a padding row gets what some place has; nobody reads it
        back[: real.rows] = np.flatnonzero(inside)
        self._places[0].copy_(torch.from_numpy(np.where(inside, np.cumsum(inside) - 1, 0)))
        self._places[1].copy_(torch.from_numpy(back))
        for (heads, window), bias in self._biases.items():
            bias.copy_(real.bias(heads, window, bias.dtype, bias.device))

    def places(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Always the same two tensors, also where there happens to be no padding."""
        return self._places

    def bias(self, heads: int, window: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Always the same tensor for the same arguments."""
        if (heads, window) not in self._biases:
            self._biases[heads, window] = self._real.bias(heads, window, dtype, device).clone()
        return self._biases[heads, window]


class StaticPass:
    """What `PackedPass` is for one pass, for every pass of a bucket: tensors that stay where they are."""

    def __init__(self, bucket: Bucket, cache: SlotCache) -> None:
        """Args:
        bucket: its shape.
        cache: whose rows it reads and writes; it must have `bucket.reach` rows, and not grow.
        """
        self.bucket, self.cache, self.rows = bucket, cache, bucket.rows
        self.tokens = torch.zeros(bucket.rows, dtype=torch.int64, device=cache.device)
        self.positions = torch.zeros_like(self.tokens)
        self.group = StaticGroup(bucket, cache.device)
        self.groups = (self.group,)
        self.index = cache.write_index([0] * bucket.rows, np.zeros(bucket.rows, np.int64), np.ones(bucket.rows, int))

    def load(self, group: RowGroup, tokens: NDArray[np.int64]) -> None:
        """Makes the next run that of a pass.

        Args:
            group: the pass's only group.
            tokens: [N] token ids.
        """
        more = self.bucket.rows - group.rows
        spare = int(group.cached[0] + group.sizes[0])  # the row that padding writes to
        slots = [*group.slots, *([group.slots[0]] * more)]
        starts = np.concatenate([group.cached, np.full(more, spare)])
        sizes = np.concatenate([group.sizes, np.ones(more, np.int64)])
        _refill(self.index, self.cache.write_index(slots, starts, sizes))
        positions = np.repeat(group.base, group.sizes) + group.depths
        self.tokens.copy_(torch.from_numpy(np.pad(tokens, (0, more))))
        self.positions.copy_(torch.from_numpy(np.pad(positions, (0, more))))
        self.group.load(group.widened(self.bucket.width, self.bucket.reach))


def _refill(index: WriteIndex, new: WriteIndex) -> None:
    index.rows.copy_(new.rows)
    if index.elements is not None and new.elements is not None:
        index.elements.copy_(new.elements)
