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
    group = level_group(batch, rows, context)
    assert list(group.slots) == list(range(batch))
    assert group.adjacent
    assert group.base.tolist() == group.cached.tolist() == [context] * batch
    assert group.sizes.tolist() == [rows] * batch
    assert (group.rows, group.width, group.reach) == (batch * rows, rows, context + rows)
    assert group.depths.tolist() == list(range(rows)) * batch
    assert all(np.array_equal(mask, np.tri(rows, dtype=bool)) for mask in group.mask)
    assert group.mask.flags.owndata  # the pass may write to it


@pytest.mark.parametrize(("batch", "rows", "context"), [(1, 1, 0), (3, 4, 11)])
def test_a_rehearsal_gives_the_logits_of_its_tokens(batch: int, rows: int, context: int) -> None:
    model = prepare_model(tiny_model(), None, "tiny")
    runner = ModelRunner(model, batch, 64)
    prompt = np.arange(context) % VOCAB
    for slot in range(batch):
        if context:
            runner.forward([causal_group(slot, 0, context)], prompt)
    run = rehearsal(runner, batch, rows, context)
    logits = run()
    assert logits.shape == (batch * rows, VOCAB)
    assert torch.equal(run(), logits)  # it overwrites its own rows
    for slot in range(batch):
        tokens = np.concatenate([prompt, (np.arange(rows) + slot * rows) % min(100, VOCAB)])
        alone = ModelRunner(model, 1, 64).forward([causal_group(0, 0, len(tokens))], tokens)
        mine = logits[slot * rows : (slot + 1) * rows]
        assert torch.allclose(mine, alone[context:], rtol=1e-9, atol=1e-9)
    assert runner.seating.rows_in_use() == 0


def test_a_tiny_vocabulary_is_not_overrun() -> None:
    runner = ModelRunner(prepare_model(tiny_model(vocab=3), None, "tiny"), 1, 64)
    assert rehearsal(runner, 1, 8, 0)().shape == (8, 3)
