"""One pass over packed rows [1, N]: which rows belong to whom, where they are cached, what they may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.models.cache import SlotCache

_REACH_STEP = 64


@dataclass(slots=True)
class RowGroup:
    """Requests whose rows share one attention call.

    Attributes:
        slots: [b] cache slot of each request.
        base: [b] rows of the slot that every new row sees: the committed ones.
        cached: [b] rows in use, where the new ones are written; more than `base` if a tree is fed level by level.
        sizes: [b] new rows of each request; 0 is allowed.
        depths: [sum of sizes] position of a row relative to `base`.
        mask: [b, n, m] which of the rows base, base + 1, ... base + m - 1 a new row sees, itself included; n is the
            largest size.
        column_depths: [b, m] depths of the rows base .. base + m - 1; None derives them from `depths`, which only a
            tree that is fed in one go allows.
        causal: True if every row sees all rows of its request before it, and itself: no tree.
    """

    slots: Sequence[int]
    base: NDArray[np.int64]
    cached: NDArray[np.int64]
    sizes: NDArray[np.int64]
    depths: NDArray[np.int64]
    mask: NDArray[np.bool_]
    column_depths: NDArray[np.int64] | None = None
    causal: bool = False
    width: int = field(init=False)
    """n: new rows of the largest request."""
    reach: int = field(init=False)
    """Cache rows that attention reads of each slot."""
    rows: int = field(init=False)
    """New rows of all requests."""
    adjacent: bool = field(init=False)
    """True if the slots follow each other, so that attention can read a view."""
    _biases: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    _places: tuple[torch.Tensor, torch.Tensor] | None = None

    def __post_init__(self) -> None:
        # Every layer asks for these: they are worked out once a pass.
        self.width = self.mask.shape[1]
        self.reach = int(self.base.max()) + self.mask.shape[2]
        self.rows = int(self.sizes.sum())
        self.adjacent = list(self.slots) == list(range(self.slots[0], self.slots[0] + len(self.slots)))

    def round_reach(self, rows: int) -> None:
        """Lets attention read a few rows more than it needs, which the mask hides.

        A reach that grows by one in every step is a new shape for the library each time, and making a kernel for it
        takes longer than the product; in steps of 64 it is the same shape most of the time.

        Args:
            rows: of a slot; there are no more to read.
        """
        self.reach = max(self.reach, min(-(-self.reach // _REACH_STEP) * _REACH_STEP, rows))

    def places(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
        """How rows get into the padded order and back; None if there is no padding.

        Returns:
            [b * n] row at each place of the padded order, any row at a place of padding, and [rows] place of each row.
        """
        if self.rows == len(self.slots) * self.width:
            return None
        if self._places is None:
            inside = (np.arange(self.width) < self.sizes[:, None]).ravel()
            padded = np.where(inside, np.cumsum(inside) - 1, 0)
            self._places = torch.from_numpy(padded).to(device), torch.from_numpy(np.flatnonzero(inside)).to(device)
        return self._places

    def bias(self, heads: int, window: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """[b, 1, heads * n, reach] additive mask for `heads` query heads folded over the rows; made once a pass.

        Args:
            heads: query heads per key/value head.
            window: sliding window in positions; 0 sees everything.
            dtype: of the attention scores.
            device: of the pass.
        """
        bias = self._biases.get((heads, window))
        if bias is None:
            seen = torch.from_numpy(self._visible(window)).to(device)
            plain = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))
            batch, rows, reach = plain.shape
            bias = plain[:, None].expand(batch, heads, rows, reach).reshape(batch, 1, heads * rows, reach)
            self._biases[heads, window] = bias
        return bias

    def _visible(self, window: int) -> NDArray[np.bool_]:
        batch, width, columns = self.mask.shape
        keys = np.arange(self.reach)
        visible = np.broadcast_to(keys < self.base[:, None, None], (batch, width, self.reach)).copy()
        places = self.base[:, None] + np.arange(columns)
        visible[np.arange(batch)[:, None, None], np.arange(width)[None, :, None], places[:, None, :]] = self.mask
        if window:
            visible &= self._within(window, keys)
        # Padding rows see one row, so that their softmax is finite; nobody reads them.
        visible[:, :, 0] |= np.arange(width) >= self.sizes[:, None]
        return visible

    def _within(self, window: int, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[b, n, reach] True where the key is less than `window` positions back."""
        batch, width, columns = self.mask.shape
        request = np.repeat(np.arange(batch), self.sizes)
        local = np.arange(len(request)) - (np.cumsum(self.sizes) - self.sizes)[request]
        rows = np.zeros((batch, width), np.int64)
        rows[request, local] = self.depths
        column_depths = rows if self.column_depths is None else self.column_depths
        positions = np.tile(keys, (batch, 1))
        places = self.base[:, None] + np.arange(columns)
        positions[np.arange(batch)[:, None], places] = self.base[:, None] + column_depths
        return (rows + self.base[:, None])[:, :, None] - positions[:, None, :] < window


class PackedPass:
    """The rows of one pass: groups one after the other, in a group request by request."""

    def __init__(self, groups: Sequence[RowGroup], cache: SlotCache) -> None:
        self.groups = tuple(groups)
        self.cache = cache
        for group in groups:
            group.round_reach(cache.rows)
        device = cache.device
        slots = [slot for group in groups for slot in group.slots]
        cached = np.concatenate([group.cached for group in groups])
        base = np.concatenate([group.base for group in groups])
        sizes = np.concatenate([group.sizes for group in groups])
        self.index = cache.write_index(slots, cached, sizes)
        depths = np.concatenate([group.depths for group in groups])
        self.positions = torch.from_numpy(np.repeat(base, sizes) + depths).to(device)
        self.rows = int(sizes.sum())


def causal_group(slot: int, cached: int, size: int) -> RowGroup:
    """A chunk of `size` tokens that follows the `cached` ones of a slot."""
    return RowGroup(
        [slot],
        np.array([cached]),
        np.array([cached]),
        np.array([size]),
        np.arange(size),
        np.tril(np.ones((1, size, size), bool)),
        causal=True,
    )
