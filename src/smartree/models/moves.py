"""Moves rows of many slots of a cache at once: on a GPU every index that comes from the host costs a transfer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from smartree.models.cache import SlotCache
from smartree.models.crew import RowMove


def move_all(cache: SlotCache, moves: Sequence[RowMove]) -> None:
    """Does what `SlotCache.move_rows` does for each of several slots, with one transfer and one copy for all of them.

    Args:
        cache: on a CPU, where keys lie transposed and transfers cost nothing, slots are moved one by one.
        moves: in order.
    """
    if cache.transposed:
        for move in moves:
            cache.move_rows(move.slot, move.rows, move.start)
        return
    if len({move.slot for move in moves}) < len(moves):  # of two steps, as a process that follows may get them
        for move in moves:
            move_all(cache, [move])
        return
    triples = [
        (move.slot, source, target)
        for move in moves
        for target, source in enumerate(move.rows, move.start)
        if source != target
    ]
    if not triples:
        return
    slots, sources, targets = np.array(triples, np.int64).T
    heads = np.arange(cache.shape.kv_heads)[:, None]
    blocks = (slots * cache.shape.kv_heads + heads) * cache.rows  # [kv_heads, rows moved] first row of slot and head
    both = torch.from_numpy(np.stack([(blocks + sources).ravel(), (blocks + targets).ravel()])).to(cache.device)
    for cached in (cache.keys, cache.values):
        rows = cached.view(cache.shape.layers, -1, cache.shape.head_dim)
        rows.index_copy_(1, both[1], rows.index_select(1, both[0]))
