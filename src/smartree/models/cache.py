"""The engine's own key/value cache: one slot of preallocated rows per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from smartree.models.pages import zeros

Ints = NDArray[np.int64]

# Rows: a cache grows to that many more than needed, or a sixteenth of what it has, to an odd number of halves: keys'
# dimensions lie as far apart as there are rows, and distances of powers of two fall on the same lines of a CPU's cache.
_GROWTH = 64
_TOGETHER = 2  # layers in one tensor: while a cache grows, one such tensor lies there twice


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sizes of a model's cache.

    Attributes:
        layers: attention layers.
        kv_heads: key/value heads of a layer.
        head_dim: size of a head.
    """

    layers: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class WriteIndex:
    """Where N new rows go, the same in every layer.

    Attributes:
        rows: [kv_heads * N] rows of a layer's values, head-major, as attention hands them over.
        elements: [kv_heads * N * head_dim] elements of a layer's keys where these are stored transposed; else None.
    """

    rows: torch.Tensor
    elements: torch.Tensor | None


class SlotCache:
    """Keys and values of all layers, each `[layers, slots, kv_heads, rows, head_dim]`, a few layers to a tensor.

    A request owns one slot; row r holds the token at r, tree rows follow the committed ones until the step commits
    the accepted ones in place. Nothing is ever concatenated. Rows start as zeros, because masked rows still enter the
    product with weight 0 and must be finite.

    On a CPU keys lie in memory as `[..., head_dim, rows]`: the product of queries and keys then reads them in order,
    which took half as long in a trial at batch 16. They look the same from outside.
    """

    def __init__(
        self,
        shape: CacheShape,
        slots: int,
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
        transposed: bool | None = None,
    ) -> None:
        """Args:
        shape: sizes of the model's cache.
        slots: requests it holds.
        rows: rows of a slot to begin with.
        dtype: of keys and values.
        device: where it lies.
        transposed: whether keys lie as `[..., head_dim, rows]`; None does so on a CPU.
        """
        self.shape, self.slots, self.rows = shape, slots, rows
        self.transposed = device.type == "cpu" if transposed is None else transposed
        self._dtype, self._device = dtype, device
        sizes = [min(_TOGETHER, shape.layers - first) for first in range(0, shape.layers, _TOGETHER)]
        self._keys = [self._empty(layers, rows, self.transposed) for layers in sizes]
        self._values = [self._empty(layers, rows, False) for layers in sizes]
        self._views = self._layer_views()

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self._device

    @property
    def views(self) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of every layer; another object once the cache has grown."""
        return self._views

    @property
    def keys(self) -> torch.Tensor:
        """All keys, to look at: the cache's own memory if all layers lie in one tensor, else a copy."""
        return self._keys[0] if len(self._keys) == 1 else torch.cat(self._keys)

    @property
    def values(self) -> torch.Tensor:
        """All values, as `keys`."""
        return self._values[0] if len(self._values) == 1 else torch.cat(self._values)

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values take."""
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values))

    def _empty(self, layers: int, rows: int, transposed: bool) -> torch.Tensor:
        ends = (self.shape.head_dim, rows) if transposed else (rows, self.shape.head_dim)
        sizes = (layers, self.slots, self.shape.kv_heads, *ends)
        tensor = zeros(sizes, self._dtype, self._device)
        return tensor.transpose(-1, -2) if transposed else tensor

    def _layer_views(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        keys = [layer for tensor in self._keys for layer in tensor]
        return list(zip(keys, [layer for tensor in self._values for layer in tensor], strict=True))

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each `[slots, kv_heads, rows, head_dim]`."""
        return self._views[index]

    def ensure_rows(self, rows: int, most: int) -> None:
        """Makes room for `rows` rows a slot, and for some more, up to `most`.

        Memory peaks at little over the new size: a few layers grow at a time, and what they held is free again then.
        """
        if rows <= self.rows:
            return
        wanted = rows + max(_GROWTH, self.rows // 16)  # a prompt that has been read is decoded from next
        grown = max(rows, min(odd_rows(wanted), most))
        self._views = []  # they would hold on to what has grown already
        for tensors, transposed in ((self._keys, self.transposed), (self._values, False)):
            for place in range(len(tensors)):
                grown_tensor = self._empty(len(tensors[place]), grown, transposed)
                grown_tensor[..., : self.rows, :] = tensors[place]
                tensors[place] = grown_tensor
        self.rows = grown
        self._views = self._layer_views()

    def write_index(self, slots: Sequence[int], starts: ArrayLike, sizes: ArrayLike) -> WriteIndex:
        """Where N new rows go: request i writes rows starts[i] .. starts[i] + sizes[i] - 1 of slots[i]."""
        heads = self.shape.kv_heads
        # numpy: a dozen small operations in every pass, of which each takes torch several times as long.
        counts, begins = np.asarray(sizes), np.asarray(starts)
        before = np.cumsum(counts) - counts
        row = np.arange(int(counts.sum())) + np.repeat(begins - before, counts)
        blocks = np.arange(heads)[:, None] + np.repeat(np.asarray(slots) * heads, counts)  # [kv_heads, N]
        return self._index(blocks, row)

    def _index(self, blocks: Ints, row: Ints) -> WriteIndex:
        """Places of rows in a tensor of blocks of rows: `blocks` [b, N], one per head, and `row` [N] in each."""
        rows, dim = self.rows, self.shape.head_dim
        flat = torch.from_numpy((blocks * rows + row).ravel()).to(self.device)
        if not self.transposed:
            return WriteIndex(flat, None)
        elements = (blocks[:, :, None] * dim + np.arange(dim)) * rows + row[:, None]
        return WriteIndex(flat, torch.from_numpy(elements.ravel()).to(self.device))

    def write(self, layer: int, index: WriteIndex, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores new rows; keys and values are `[1, kv_heads, N, head_dim]`."""
        dim = self.shape.head_dim
        stored_keys, stored_values = self._views[layer]
        stored_values.view(-1, dim).index_copy_(0, index.rows, values.reshape(-1, dim))
        if index.elements is None:
            stored_keys.view(-1, dim).index_copy_(0, index.rows, keys.reshape(-1, dim))
        else:
            stored_keys.transpose(-1, -2).view(-1).put_(index.elements, keys.reshape(-1))

    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Moves rows inside their slots, all at once: each of `moves` is a slot, a row of it, and where that goes."""
        if not moves:
            return
        slots, sources, targets = np.array(moves, np.int64).T
        for layers in sorted({len(tensor) for tensor in self._values}):
            source, target = self._places(layers, slots, sources), self._places(layers, slots, targets)
            for keys, values in zip(self._keys, self._values, strict=True):
                if len(values) == layers:
                    self._move_flat(keys, source, target, self.transposed)
                    self._move_flat(values, source, target, False)

    def _places(self, layers: int, slots: Ints, rows: Ints) -> WriteIndex:
        """Where rows of some slots lie in a tensor of so many layers."""
        blocks = np.arange(layers)[:, None] * self.slots + slots  # [layers, moves]
        blocks = blocks[:, None] * self.shape.kv_heads + np.arange(self.shape.kv_heads)[:, None]
        return self._index(blocks.reshape(-1, len(rows)), rows)

    def _move_flat(self, tensor: torch.Tensor, source: WriteIndex, target: WriteIndex, transposed: bool) -> None:
        if transposed and source.elements is not None and target.elements is not None:
            flat = tensor.transpose(-1, -2).view(-1)
            flat.put_(target.elements, flat.take(source.elements))
        else:
            rows = tensor.view(-1, self.shape.head_dim)
            rows.index_copy_(0, target.rows, rows.index_select(0, source.rows))

    def copy_slot(self, source: int, target: int, rows: int) -> None:
        """Copies the first `rows` rows of a slot over another slot's."""
        for cached in (*self._keys, *self._values):
            cached[:, target, :, :rows] = cached[:, source, :, :rows]


def odd_rows(rows: int) -> int:
    """At least `rows` rows, an odd number of halves of _GROWTH."""
    half = _GROWTH // 2
    return -(-(rows - half) // _GROWTH) * _GROWTH + half
