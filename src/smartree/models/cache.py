"""The engine's own key/value cache: one slot of preallocated rows per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike

from smartree.models.huge_pages import empty_in_large_pages


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
    """Keys and values of all layers, each `[layers, slots, kv_heads, rows, head_dim]`.

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
        self.keys = self._empty(rows, dtype, device, self.transposed)
        self.values = self._empty(rows, dtype, device, False)
        self._views = self._layer_views()

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.values.device

    @property
    def views(self) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of every layer; another object once the cache has grown."""
        return self._views

    def _empty(self, rows: int, dtype: torch.dtype, device: torch.device, transposed: bool) -> torch.Tensor:
        ends = (self.shape.head_dim, rows) if transposed else (rows, self.shape.head_dim)
        size = (self.shape.layers, self.slots, self.shape.kv_heads, *ends)
        if device.type == "cpu":
            tensor = empty_in_large_pages(size, dtype).zero_()
        else:
            tensor = torch.zeros(size, dtype=dtype, device=device)
        return tensor.transpose(-1, -2) if transposed else tensor

    def _layer_views(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(self.keys, self.values, strict=True))

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each `[slots, kv_heads, rows, head_dim]`."""
        return self._views[index]

    def ensure_rows(self, rows: int, most: int) -> None:
        """Makes room for `rows` rows a slot, doubling so that growing stays rare, up to `most`."""
        if rows <= self.rows:
            return
        grown = min(max(rows, 2 * self.rows), max(most, rows))
        for name, transposed in (("keys", self.transposed), ("values", False)):
            old = getattr(self, name)
            new = self._empty(grown, old.dtype, old.device, transposed)
            new[..., : self.rows, :] = old
            setattr(self, name, new)
        self.rows = grown
        self._views = self._layer_views()

    def write_index(self, slots: Sequence[int], starts: ArrayLike, sizes: ArrayLike) -> WriteIndex:
        """Where N new rows go: request i writes rows starts[i] .. starts[i] + sizes[i] - 1 of slots[i]."""
        heads, rows, dim = self.shape.kv_heads, self.rows, self.shape.head_dim
        # numpy: a dozen small operations in every pass, of which each takes torch several times as long.
        counts, begins = np.asarray(sizes), np.asarray(starts)
        before = np.cumsum(counts) - counts
        row = np.arange(int(counts.sum())) + np.repeat(begins - before, counts)
        blocks = np.arange(heads)[:, None] + np.repeat(np.asarray(slots) * heads, counts)  # [kv_heads, N]
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

    def move_rows(self, slot: int, sources: Sequence[int], start: int) -> None:
        """Moves rows `sources` of a slot to start, start + 1, ...: the accepted path becomes the committed end."""
        targets = range(start, start + len(sources))
        moves = [(source, target) for source, target in zip(sources, targets, strict=True) if source != target]
        if moves:
            old, new = zip(*moves, strict=True)
            for cached in (self.keys, self.values):
                rows = cached[:, slot]
                rows[:, :, list(new)] = rows[:, :, list(old)]

    def copy_slot(self, source: int, target: int, rows: int) -> None:
        """Copies the first `rows` rows of a slot over another slot's."""
        for cached in (self.keys, self.values):
            cached[:, target, :, :rows] = cached[:, source, :, :rows]
