"""Batches: every text once, the same ones for the same seed, rows where they belong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smartree.train.batches import make_batch, plan_batches
from smartree.train.corpus import Text


def lengths(count: int, seed: int = 0) -> list[int]:
    """Random lengths, a few of them long."""
    draw = np.random.default_rng(seed)
    return [int(size) for size in np.minimum(draw.geometric(0.03, count), 300)]


@pytest.mark.parametrize("batch_tokens", [1, 64, 400, 10_000])
@pytest.mark.parametrize("count", [1, 2, 57])
def test_every_text_comes_once(count: int, batch_tokens: int) -> None:
    sizes = lengths(count)
    batches = plan_batches(sizes, batch_tokens, seed=3)
    assert sorted(number for batch in batches for number in batch) == list(range(count))
    assert all(batches)
    for batch in batches:
        padded = max(sizes[number] for number in batch) * len(batch)
        assert padded <= batch_tokens or len(batch) == 1


def test_the_same_seed_gives_the_same_batches_and_another_one_others() -> None:
    sizes = lengths(80)
    assert plan_batches(sizes, 400, 5) == plan_batches(sizes, 400, 5)
    assert plan_batches(sizes, 400, 5) != plan_batches(sizes, 400, 6)
    together = [{frozenset(batch) for batch in plan_batches(sizes, 400, seed)} for seed in (5, 6)]
    assert together[0] != together[1]  # not only the order differs: the same texts do not always meet


def test_texts_of_a_length_come_together() -> None:
    sizes = lengths(200)
    batches = plan_batches(sizes, 800, 0)
    padded = sum(max(sizes[number] for number in batch) * len(batch) for batch in batches)
    assert padded < 1.2 * sum(sizes)


def test_no_texts_no_batches() -> None:
    assert plan_batches([], 100, 0) == []


def test_rows_pair_a_token_with_the_states_before_it() -> None:
    texts = [Text("a", (1, 2, 3), (4, 5)), Text("b", (6,), (7, 8)), Text("c", (9, 10), (11, 12, 13, 14))]
    features = [
        torch.arange((len(text.tokens) - 1) * 6, dtype=torch.float32).view(-1, 6) + 100 * place
        for place, text in enumerate(texts)
    ]
    batch = make_batch(texts, features, final_size=2)
    assert batch.tokens.shape == (3, 6)
    assert batch.states.shape == (3, 5, 4)
    assert batch.finals.shape == (3, 5, 2)
    assert batch.lengths.tolist() == [4, 2, 5]
    for place, (text, rows) in enumerate(zip(texts, features, strict=True)):
        size = len(rows)
        assert batch.tokens[place, : size + 1].tolist() == list(text.tokens)
        assert torch.equal(batch.states[place, :size], rows[:, :4])
        assert torch.equal(batch.finals[place, :size], rows[:, 4:])
        assert not batch.states[place, size:].any()
        assert not batch.tokens[place, size + 1 :].any()
    # A row is scored if the token it reads belongs to the answer and the next one is known.
    assert batch.scored.tolist() == [
        [False, False, True, False, False],
        [True, False, False, False, False],
        [False, True, True, True, False],
    ]
