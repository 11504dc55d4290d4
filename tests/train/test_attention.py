"""Attention of the unrolled steps: the fused way is the written-out one, gradients included."""

from __future__ import annotations

import math

import pytest
import torch

from smartree.train.attention import UnrolledAttention, attend, attend_by_table

BATCH, HEADS, KV_HEADS, SIZE, DIM = 2, 4, 2, 9, 8


def steps(count: int, kv_heads: int = HEADS, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Queries, keys and values of some unrolled steps."""
    draw = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(BATCH, HEADS, SIZE, DIM, generator=draw),
            torch.randn(BATCH, kv_heads, SIZE, DIM, generator=draw),
            torch.randn(BATCH, kv_heads, SIZE, DIM, generator=draw),
        )
        for _ in range(count)
    ]


def by_hand(
    queries: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], row: int, head: int, batch: int
) -> torch.Tensor:
    """One row: the first step's rows up to its own, then its own row of every later step."""
    places = [(0, place) for place in range(row + 1)] + [(step, row) for step in range(1, len(keys))]
    scores = [queries[batch, head, row] @ keys[step][batch, head, place] / math.sqrt(DIM) for step, place in places]
    weights = torch.softmax(torch.stack(scores), 0)
    return weights @ torch.stack([values[step][batch, head, place] for step, place in places])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("way", [attend, attend_by_table])
def test_every_row_sees_its_own_ancestors(way: object, count: int) -> None:
    assert callable(way)
    made = steps(count)
    query, keys, values = made[-1][0], [key for _, key, _ in made], [value for _, _, value in made]
    output = way(query, keys, values)
    for batch in range(BATCH):
        for head in range(HEADS):
            for row in range(SIZE):
                expected = by_hand(query, keys, values, row, head, batch)
                assert torch.allclose(output[batch, head, row], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_gradients_of_the_fused_way_are_those_of_the_table(count: int) -> None:
    upstream = torch.randn(BATCH, HEADS, SIZE, DIM, generator=torch.Generator().manual_seed(9))
    results = []
    for way in (attend, attend_by_table):
        made = [[part.clone().requires_grad_() for part in step] for step in steps(count)]
        keys, values = [step[1] for step in made], [step[2] for step in made]
        output = way(made[-1][0], keys, values)
        output.backward(upstream)
        results.append([output, made[-1][0].grad, *(part.grad for part in (*keys, *values))])
    for mine, theirs in zip(*results, strict=True):
        assert mine is not None
        assert theirs is not None
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [2, 3])
def test_bfloat16_stays_close(count: int) -> None:
    made = [[part.to(torch.bfloat16) for part in step] for step in steps(count)]
    keys, values = [step[1] for step in made], [step[2] for step in made]
    output = attend(made[-1][0], keys, values)
    assert output.dtype == torch.bfloat16
    wide = attend_by_table(made[-1][0].float(), [key.float() for key in keys], [value.float() for value in values])
    assert torch.allclose(output.float(), wide, rtol=0, atol=0.03)


def test_large_scores_do_not_overflow() -> None:
    made = steps(3)
    keys = [30 * key for _, key, _ in made]
    values = [value for _, _, value in made]
    mine, theirs = (way(30 * made[-1][0], keys, values) for way in (attend, attend_by_table))
    assert torch.isfinite(mine).all()
    assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-3)


def test_steps_and_layers_are_remembered_apart() -> None:
    """Two layers in turn over three steps, with fewer key/value heads than query heads."""
    unrolled = UnrolledAttention()
    layers = [steps(3, KV_HEADS, seed) for seed in (1, 2)]
    for step in range(3):
        for layer, made in enumerate(layers):
            output = unrolled(layer, *made[step])
            assert output.shape == (BATCH, SIZE, HEADS, DIM)
            keys = [key.repeat_interleave(2, dim=1) for _, key, _ in made[: step + 1]]
            values = [value.repeat_interleave(2, dim=1) for _, _, value in made[: step + 1]]
            expected = attend_by_table(made[step][0], keys, values)
            assert torch.allclose(output.transpose(1, 2), expected, rtol=1e-5, atol=1e-6)
