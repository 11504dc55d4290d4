"""Passes that are made up to be timed do what real ones do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smartree.models.load import prepare_model
from smartree.models.packed_pass import causal_group
from smartree.models.rehearsal import level_group, rehearsal
from smartree.models.runner import ModelRunner
from tests.tiny import VOCAB, tiny_model


@pytest.mark.parametrize(("batch", "rows", "context"), [(1, 1, 1), (3, 1, 20), (2, 5, 9), (4, 3, 0)])
def test_a_level_has_its_rows_behind_its_context(batch: int, rows: int, context: int) -> None:
    group = level_group([rows] * batch, context)
    assert list(group.slots) == list(range(batch))
    assert group.adjacent
    assert group.base.tolist() == group.cached.tolist() == [context] * batch
    assert group.sizes.tolist() == [rows] * batch
    assert (group.rows, group.width, group.reach) == (batch * rows, rows, context + rows)
    assert group.depths.tolist() == list(range(rows)) * batch
    assert all(np.array_equal(mask, np.tri(rows, dtype=bool)) for mask in group.mask)
    assert group.mask.flags.owndata  # the pass may write to it


def test_requests_of_a_level_may_have_different_numbers_of_rows() -> None:
    group = level_group([1, 4, 2], 7)
    assert group.base.tolist() == group.cached.tolist() == [7] * 3
    assert group.sizes.tolist() == [1, 4, 2]
    assert (group.rows, group.width, group.reach) == (7, 4, 11)
    assert group.depths.tolist() == [0, 0, 1, 2, 3, 0, 1]
    for mask, size in zip(group.mask, (1, 4, 2), strict=True):
        seen = np.zeros((4, 4), bool)
        seen[:size, :size] = np.tri(size, dtype=bool)
        assert np.array_equal(mask, seen)


@pytest.mark.parametrize(("sizes", "context"), [((1,), 0), ((4, 4, 4), 11), ((1, 5, 2), 11), ((3, 1), 0)])
def test_a_rehearsal_gives_the_logits_of_its_tokens(sizes: tuple[int, ...], context: int) -> None:
    batch, ends = len(sizes), np.cumsum(sizes)
    model = prepare_model(tiny_model(), None, "tiny")
    runner = ModelRunner(model, batch, 64)
    prompt = np.arange(context) % VOCAB
    for slot in range(batch):
        if context:
            runner.forward([causal_group(slot, 0, context)], prompt)
    run = rehearsal(runner, sizes, context)
    logits = run()
    assert logits.shape == (sum(sizes), VOCAB)
    assert torch.equal(run(), logits)  # it overwrites its own rows
    for end, size in zip(ends.tolist(), sizes, strict=True):
        tokens = np.concatenate([prompt, np.arange(end - size, end) % min(100, VOCAB)])
        alone = ModelRunner(model, 1, 64).forward([causal_group(0, 0, len(tokens))], tokens)
        assert torch.allclose(logits[end - size : end], alone[context:], rtol=1e-9, atol=1e-9)
    assert runner.seating.rows_in_use() == 0


def test_a_tiny_vocabulary_is_not_overrun() -> None:
    runner = ModelRunner(prepare_model(tiny_model(vocab=3), None, "tiny"), 1, 64)
    assert rehearsal(runner, [8], 0)().shape == (8, 3)
