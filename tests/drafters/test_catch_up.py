"""Rows that a drafter has to read: order, layout and the last row of each request."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smartree.drafters.catch_up import CatchUp, Pending
from smartree.models.load import prepare_model
from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner
from tests.tiny import random_prompts, tiny_model


def pending(*sizes: tuple[int, int]) -> list[Pending]:
    """Request i has `cached` rows and `new` tokens, 100 * i + 0, 1, 2, ..."""
    return [
        Pending(slot, cached, [100 * slot + place for place in range(new)]) for slot, (cached, new) in enumerate(sizes)
    ]


def test_short_ones_share_a_group() -> None:
    catch_up = CatchUp(pending((0, 3), (7, 1), (2, 2)))
    assert [one.slot for one in catch_up.order] == [0, 1, 2]
    assert catch_up.tokens.tolist() == [0, 1, 2, 100, 200, 201]
    assert catch_up.last_rows([0, 1, 2]).tolist() == [2, 3, 5]
    assert catch_up.last_rows([2, 0]).tolist() == [5, 2]
    (group,) = catch_up.groups
    assert list(group.slots) == [0, 1, 2]
    assert group.base.tolist() == group.cached.tolist() == [0, 7, 2]
    assert group.sizes.tolist() == [3, 1, 2]
    assert group.depths.tolist() == [0, 1, 2, 0, 0, 1]
    # A row sees itself and what came before it; rows of padding see nothing.
    assert group.mask[0].tolist() == np.tri(3, dtype=bool).tolist()
    assert group.mask[1].tolist() == [[True, False, False], [False] * 3, [False] * 3]
    assert group.mask[2].tolist() == [[True, False, False], [True, True, False], [False] * 3]


@pytest.mark.parametrize(("size", "groups"), [(8, 1), (9, 2), (64, 2)])
def test_long_ones_get_a_group_each_and_come_first(size: int, groups: int) -> None:
    catch_up = CatchUp(pending((5, 2), (3, size), (1, 1)))
    assert len(catch_up.groups) == groups
    order = [1, 0, 2] if groups == 2 else [0, 1, 2]
    assert [one.slot for one in catch_up.order] == order
    assert len(catch_up.tokens) == size + 3
    for slot, last in zip((0, 1, 2), catch_up.last_rows([0, 1, 2]).tolist(), strict=True):
        assert catch_up.tokens[last] == 100 * slot + {0: 2, 1: size, 2: 1}[slot] - 1
    assert sum(group.rows for group in catch_up.groups) == size + 3


def test_only_long_ones() -> None:
    catch_up = CatchUp(pending((0, 70), (9, 80)))
    assert [group.rows for group in catch_up.groups] == [70, 80]
    assert [list(group.slots) for group in catch_up.groups] == [[0], [1]]
    assert catch_up.last_rows([0, 1]).tolist() == [69, 149]


def test_what_is_long_depends_on_the_others() -> None:
    assert len(CatchUp(pending((0, 30), (0, 20), (4, 35))).groups) == 1
    lone = CatchUp(pending((0, 1), (0, 40), (9, 1), (2, 1)))  # one group would be 160 rows of padding and rows
    assert [(group.rows, group.width) for group in lone.groups] == [(40, 40), (3, 1)]


def test_requests_that_are_not_there_take_no_rows() -> None:
    some = pending((0, 2), (0, 3), (4, 1))
    catch_up = CatchUp([some[0], some[2]])
    assert catch_up.tokens.tolist() == [0, 1, 200]
    assert catch_up.last_rows([2]).tolist() == [2]
    assert list(catch_up.groups[0].slots) == [0, 2]


@pytest.mark.parametrize("seed", range(3))
def test_one_pass_gives_what_each_request_gets_alone(seed: int) -> None:
    draw = np.random.default_rng(seed)
    model = prepare_model(tiny_model("gemma2"), None, "tiny")
    together = ModelRunner(model, 4, 256)
    texts = random_prompts([int(size) for size in draw.integers(1, 160, 4)], seed=seed)
    read = [int(draw.integers(0, len(text))) for text in texts]
    for slot, (text, rows) in enumerate(zip(texts, read, strict=True)):
        if rows:
            together.forward([causal_group(slot, 0, rows)], np.array(text[:rows]))
    catch_up = CatchUp(
        [Pending(slot, rows, text[rows:]) for slot, (text, rows) in enumerate(zip(texts, read, strict=True))]
    )
    logits = together.forward(catch_up.groups, catch_up.tokens)[torch.from_numpy(catch_up.last_rows(range(4)))]
    for slot, text in enumerate(texts):
        alone = ModelRunner(model, 1, 256).forward([causal_group(0, 0, len(text))], np.array(text))[-1]
        assert torch.allclose(logits[slot], alone, rtol=1e-9, atol=1e-9)
