"""The engine's own key/value cache: one slot of preallocated rows per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


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


class SlotCache:
    """Keys and values of all layers in one tensor `[layers, 2, slots, kv_heads, rows, head_dim]`.

    A request owns one slot; row r holds the token at r, tree rows follow the committed ones until the step commits
    the accepted ones in place. Nothing is ever concatenated. Rows start as zeros, because masked rows still enter the
    product with weight 0 and must be finite.
    """

    def __init__(self, shape: CacheShape, slots: int, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.slots, self.rows = shape, slots, rows
        self.data = torch.zeros(
            (shape.layers, 2, slots, shape.kv_heads, rows, shape.head_dim), dtype=dtype, device=device
        )
        self._views = self._layer_views()

    def _layer_views(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(layer[0], layer[1]) for layer in self.data]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each `[slots, kv_heads, rows, head_dim]`."""
        return self._views[index]

    def ensure_rows(self, rows: int, most: int) -> None:
        """Makes room for `rows` rows a slot, doubling so that growing stays rare, up to `most`."""
        if rows <= self.rows:
            return
        grown = min(max(rows, 2 * self.rows), max(most, rows))
        sizes = list(self.data.shape)
        sizes[4] = grown
        data = torch.zeros(sizes, dtype=self.data.dtype, device=self.data.device)
        data[..., : self.rows, :] = self.data
        self.data, self.rows = data, grown
        self._views = self._layer_views()

    def write_index(self, slots: Sequence[int], starts: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """[kv_heads * N] flat rows of a layer where N new rows go: head-major, as attention hands them over.

        Request i writes rows starts[i] .. starts[i] + sizes[i] - 1 of slots[i].
        """
        heads, rows = self.shape.kv_heads, self.rows
        places = torch.cat(
            [
                torch.arange(start, start + size) + slot * heads * rows
                for slot, start, size in zip(slots, starts, sizes, strict=True)
            ]
        )
        return (torch.arange(heads)[:, None] * rows + places).flatten().to(self.data.device)

    def write(self, layer: int, index: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores new rows; keys and values are `[1, kv_heads, N, head_dim]`."""
        dim = self.shape.head_dim
        for rows, new in zip(self._views[layer], (keys, values), strict=True):
            rows.view(-1, dim).index_copy_(0, index, new.reshape(-1, dim))

    def move_rows(self, slot: int, sources: Sequence[int], start: int) -> None:
        """Moves rows `sources` of a slot to start, start + 1, ...: the accepted path becomes the committed end."""
        targets = range(start, start + len(sources))
        moves = [(source, target) for source, target in zip(sources, targets, strict=True) if source != target]
        if moves:
            old, new = zip(*moves, strict=True)
            rows = self.data[:, :, slot]
            rows[:, :, :, list(new)] = rows[:, :, :, list(old)]

    def copy_slot(self, source: int, target: int, rows: int) -> None:
        """Copies the first `rows` rows of a slot over another slot's."""
        self.data[:, :, target, :, :rows] = self.data[:, :, source, :, :rows]
