"""The registered attention function against softmax attention written out row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

from smartree.errors import InputError
from smartree.models.attention import ATTENTION_NAME, packed_attention, register_attention
from smartree.models.cache import CacheShape, SlotCache
from smartree.models.load import prepare_model
from smartree.models.packed_pass import PackedPass, RowGroup, causal_group
from tests.tiny import tiny_model

HEADS, KV_HEADS, DIM = 6, 2, 4


def layer(index: int = 1) -> torch.nn.Module:
    module = torch.nn.Module()
    module.layer_idx = index  # type: ignore[assignment]
    return module


def a_cache() -> SlotCache:
    cache = SlotCache(CacheShape(2, KV_HEADS, DIM), 4, 24, torch.float64, torch.device("cpu"))
    draw = torch.Generator().manual_seed(0)
    for rows in (cache.keys, cache.values):
        rows.copy_(torch.randn(rows.shape, generator=draw))
    return cache


def data(cache: SlotCache) -> torch.Tensor:
    """[layers, 2, slots, kv_heads, rows, head_dim] a copy of all there is."""
    return torch.stack([cache.keys, cache.values], dim=1)


def a_tree_batch() -> list[RowGroup]:
    """Two ragged trees in slots 2 and 0, a request without rows in slot 1, and a prompt chunk in slot 3."""
    mask = np.zeros((3, 4, 4), bool)
    for row, sees in enumerate(([0], [0, 1], [0, 2], [0, 2, 3])):
        mask[0, row, sees] = True
    mask[2, 0, 0] = mask[2, 1, [0, 1]] = True
    base = np.array([9, 4, 0])
    trees = RowGroup([2, 1, 0], base, base, np.array([4, 0, 2]), np.array([0, 1, 1, 2, 0, 1]), mask)
    return [trees, causal_group(3, 11, 3)]


def tensors(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return (
        torch.randn(1, HEADS, rows, DIM, generator=draw, dtype=torch.float64),
        torch.randn(1, KV_HEADS, rows, DIM, generator=draw, dtype=torch.float64),
        torch.randn(1, KV_HEADS, rows, DIM, generator=draw, dtype=torch.float64),
    )


def reference(
    groups: list[RowGroup],
    cache: SlotCache,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    softcap: float | None,
    window: int | None,
) -> torch.Tensor:
    """[1, N, heads, dim] one row and head at a time; reads the old cache rows and the new rows of its own tree."""
    output = torch.zeros(1, query.shape[2], HEADS, DIM, dtype=torch.float64)
    first = 0
    for group in groups:
        for request, (slot, base, size) in enumerate(zip(group.slots, group.base, group.sizes, strict=True)):
            positions = group.depths[first - sum(g.rows for g in groups[: groups.index(group)]) :][:size] + base
            for row in range(size):
                for head in range(HEADS):
                    kv = head // (HEADS // KV_HEADS)
                    scores, values = [], []
                    for old in range(base):
                        if window is None or positions[row] - old < window:
                            scores.append(query[0, head, first + row] @ cache.keys[1, slot, kv, old])
                            values.append(cache.values[1, slot, kv, old])
                    for other in range(size):
                        if group.mask[request, row, other] and (
                            window is None or positions[row] - positions[other] < window
                        ):
                            scores.append(query[0, head, first + row] @ key[0, kv, first + other])
                            values.append(value[0, kv, first + other])
                    logits = torch.stack(scores) * scale
                    if softcap is not None:
                        logits = softcap * torch.tanh(logits / softcap)
                    output[0, first + row, head] = torch.softmax(logits, 0) @ torch.stack(values)
            first += int(size)
    return output


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize("scaling", [None, 0.7])
@pytest.mark.parametrize("groups", [a_tree_batch, lambda: a_tree_batch()[:1], lambda: a_tree_batch()[1:]])
def test_packed_attention_is_attention(groups, window, softcap, scaling) -> None:  # type: ignore[no-untyped-def]
    cache = a_cache()
    batch = groups()
    query, key, value = tensors(sum(group.rows for group in batch))
    scale = 1 / math.sqrt(DIM) if scaling is None else scaling
    expected = reference(batch, cache, query, key, value, scale, softcap, window)
    output, weights = packed_attention(
        layer(), query, key, value, None, scaling, 0.0, softcap, window, smartree=PackedPass(batch, cache)
    )
    assert weights is None
    assert torch.allclose(output, expected, rtol=1e-10, atol=1e-10)


def test_new_rows_are_in_the_cache_of_their_layer_afterwards() -> None:
    cache = a_cache()
    before = data(cache)
    batch = a_tree_batch()
    query, key, value = tensors(9)
    packed_attention(layer(1), query, key, value, None, smartree=PackedPass(batch, cache))
    assert torch.equal(data(cache)[0], before[0])
    assert torch.equal(data(cache)[1, 0, 2, :, 9:13], key[0, :, :4])
    assert torch.equal(data(cache)[1, 1, 0, :, 0:2], value[0, :, 4:6])
    assert torch.equal(data(cache)[1, 0, 3, :, 11:14], key[0, :, 6:])
    assert torch.equal(data(cache)[1, :, 1], before[1, :, 1])


def test_rows_that_nobody_may_see_have_no_influence() -> None:
    # Stale rows of earlier requests and of rejected nodes stay in the cache, whatever they hold.
    batch = a_tree_batch()
    query, key, value = tensors(9)
    clean, dirty = a_cache(), a_cache()
    for rows in (dirty.keys, dirty.values):
        rows[:, 2, :, 9:] = 1e6
        rows[:, 0] = -1e6
        rows[:, 3, :, 11:] = 1e6
    outputs = [
        packed_attention(layer(), query, key, value, None, smartree=PackedPass(batch, cache))[0]
        for cache in (clean, dirty)
    ]
    assert torch.equal(*outputs)


def test_attention_sinks_are_refused() -> None:
    query, key, value = tensors(3)
    packed = PackedPass([causal_group(0, 0, 3)], a_cache())
    with pytest.raises(InputError, match="attention sinks"):
        packed_attention(layer(), query, key, value, None, s_aux=torch.zeros(HEADS), smartree=packed)


def test_a_loaded_model_called_outside_the_engine_says_so() -> None:
    model = tiny_model("llama")
    prepare_model(model, None, "tiny")
    with pytest.raises(InputError, match="only inside its engine") as error:
        model(input_ids=torch.tensor([[1, 2, 3]]))
    assert "\n" not in str(error.value)


def test_registering_twice_is_harmless() -> None:
    register_attention()
    register_attention()
    assert AttentionInterface()[ATTENTION_NAME] is packed_attention
