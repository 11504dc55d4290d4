"""One pass over packed rows [1, N]: which rows belong to whom, where they are cached, what they may see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.models.cache import SlotCache

_REACH_STEP = 64


class RowGroup:
    """Requests whose rows share one attention call.

    What a row sees behind `base` is said by a mask, by everybody's parent (`above`), or by `causal` alone; a mask that
    was not given is made when it is asked for: the native kernels need none.

    Attributes:
        slots: [b] cache slot of each request.
        base: [b] rows of the slot that every new row sees: the committed ones.
        cached: [b] rows in use, where the new ones are written; more than `base` if a tree is fed level by level.
        sizes: [b] new rows of each request; 0 is allowed.
        depths: [sum of sizes] position of a row relative to `base`.
        causal: True if every row sees all rows of its request before it, and itself: no tree.
        above: [b, m] for the rows base .. base + m - 1, the new ones included, their parent's place behind `base`;
            negative if there is none. None if a mask says more, or if the group is causal.
        width: n, new rows of the largest request.
        columns: m, rows behind `base` of the largest request.
        reach: cache rows that attention reads of each slot.
        rows: new rows of all requests.
        adjacent: True if the slots follow each other, so that attention can read a view.
    """

    __slots__ = (
        *("_biases", "_column_depths", "_mask", "_places"),
        *("above", "adjacent", "base", "cached", "causal", "columns", "depths", "reach", "rows", "sizes", "slots"),
        "width",
    )

    def __init__(
        self,
        slots: Sequence[int],
        base: NDArray[np.int64],
        cached: NDArray[np.int64],
        sizes: NDArray[np.int64],
        depths: NDArray[np.int64],
        mask: NDArray[np.bool_] | None = None,
        column_depths: NDArray[np.int64] | None = None,
        causal: bool = False,
        above: NDArray[np.int64] | None = None,
    ) -> None:
        """Args:
        slots, base, cached, sizes, depths, causal, above: see the attributes.
        mask: [b, n, m] which of the rows base, base + 1, ... base + m - 1 a new row sees, itself included.
        column_depths: [b, m] depths of the rows base .. base + m - 1; None derives them from `depths`, which only a
            tree that is fed in one go allows.
        """
        assert causal or mask is not None or above is not None
        assert not causal or base is cached or np.array_equal(base, cached), "causal rows follow the committed ones"
        self.slots, self.base, self.cached, self.sizes, self.depths = slots, base, cached, sizes, depths
        self.causal, self.above, self._mask, self._column_depths = causal, above, mask, column_depths
        self.rows = len(depths)
        # Every layer asks for these: they are worked out once a pass.
        if mask is not None:
            self.width, self.columns = mask.shape[1], mask.shape[2]
        else:
            self.width = int(sizes.max())
            self.columns = self.width if above is None else above.shape[1]
        self.reach = int(base.max()) + self.columns
        self.adjacent = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        self._biases: dict[tuple[int, int], torch.Tensor] = {}
        self._places: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def mask(self) -> NDArray[np.bool_]:
        """[b, n, m] which of the rows base .. base + m - 1 a new row sees; rows past a request's own see nothing."""
        if self._mask is None:
            self._mask = self._causal_mask() if self.above is None else self._tree_mask(self.above)
        return self._mask

    @property
    def given_mask(self) -> NDArray[np.bool_] | None:
        """The mask if it alone says what is seen, else None."""
        return self._mask if self.above is None and not self.causal else None

    @property
    def in_one_go(self) -> bool:
        """True if no row of a tree was cached before: `depths` are those of all rows behind `base`."""
        return self._column_depths is None and np.array_equal(self.base, self.cached)

    def bare(self) -> RowGroup:
        """The same group without the tensors that it keeps once it was used."""
        mask = self.given_mask
        parts = (self.slots, self.base, self.cached, self.sizes, self.depths)
        return RowGroup(*parts, mask, self._column_depths, self.causal, self.above)

    def widened(self, width: int, reach: int) -> RowGroup:
        """The same rows with a mask for `width` new rows of every request, and another reach."""
        mask = np.pad(self.mask, ((0, 0), (0, width - self.width), (0, width - self.columns)))
        wide = RowGroup(self.slots, self.base, self.cached, self.sizes, self.depths, mask)
        wide.reach = reach
        return wide

    def _causal_mask(self) -> NDArray[np.bool_]:
        inside = np.arange(self.width) < self.sizes[:, None]
        return np.tril(np.ones((self.width, self.width), bool)) & inside[:, :, None] & inside[:, None, :]

    def _tree_mask(self, above: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Every new row sees itself, then its parent, then that one's, and so on."""
        batch, columns = above.shape
        places = (self.cached - self.base)[:, None] + np.arange(self.width)
        inside = np.arange(self.width) < self.sizes[:, None]
        mask = np.zeros((batch, self.width, columns + 1), bool)  # the last column is for those that have no parent
        standing = np.where(inside, places, -1)
        while (standing >= 0).any():
            np.put_along_axis(mask, standing[:, :, None], True, axis=2)
            above_standing = np.take_along_axis(above, np.maximum(standing, 0), axis=1)
            standing = np.where(standing >= 0, np.maximum(above_standing, -1), -1)
        return mask[:, :, :columns].copy()

    def _all_depths(self) -> NDArray[np.int64]:
        """[b, m] depths of the rows base .. base + m - 1; of the new ones alone, their own."""
        if self._column_depths is not None:
            return self._column_depths
        if self.above is None or self.in_one_go:
            found = np.zeros((len(self.sizes), self.columns), np.int64)
            request = np.repeat(np.arange(len(self.sizes)), self.sizes)
            found[request, np.arange(self.rows) - (np.cumsum(self.sizes) - self.sizes)[request]] = self.depths
            return found
        found = np.zeros(self.above.shape, np.int64)
        standing = self.above
        while (standing >= 0).any():
            found += standing >= 0
            standing = np.where(standing >= 0, np.take_along_axis(self.above, np.maximum(standing, 0), axis=1), -1)
        return found

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
        column_depths = self._all_depths()
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
        causal=True,
    )
