"""How the kernels are told of a pass's rows: by parents, by a mask, or as causal, with the same results bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.models.load import LoadedModel
from smartree.models.native.decoder import NativeRunner
from smartree.models.native.groups import Gathered
from smartree.models.packed_pass import RowGroup, causal_group
from smartree.models.runner import ModelRunner
from tests.models.native.small import native_target, needs_kernels, random_tokens, random_trees, tree_group

pytestmark = needs_kernels


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return native_target("llama")


def masked(group: RowGroup) -> RowGroup:
    """The same group, known by its mask alone."""
    return RowGroup(group.slots, group.base, group.cached, group.sizes, group.depths, group.mask)


@given(st.lists(st.integers(0, 14), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=25)
def test_parents_and_masks_say_the_same(nodes: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    runner = ModelRunner(native_target("llama"), 6, 64)
    slots, cached = draw.permutation(6), draw.integers(1, 20, len(nodes)).tolist()
    for slot in range(6):
        runner.forward([causal_group(slot, 0, 20)], random_tokens(draw, 20))
    packed = random_trees(draw, nodes)
    tree = tree_group(slots[: len(nodes)].tolist(), cached, packed)
    chunk = causal_group(int(slots[5]), 7, 5)
    tokens = np.concatenate([packed.tokens, random_tokens(draw, 5)])
    expected = runner.forward([tree, chunk], tokens).clone()
    assert torch.equal(runner.forward([masked(tree), masked(chunk)], tokens), expected)
    swapped = runner.forward([chunk, tree], np.concatenate([tokens[-5:], tokens[:-5]]))
    assert torch.equal(torch.cat([swapped[5:], swapped[:5]]), expected)


def test_a_position_beyond_the_last_one_is_refused(target: LoadedModel) -> None:
    runner = ModelRunner(target, 1, 64)
    group = causal_group(0, 0, 2)
    far = RowGroup([0], group.base, group.cached, group.sizes, group.depths + target.window - 1, causal=True)
    with pytest.raises(IndexError, match="beyond"):
        runner.forward([far], np.array([1, 2]))


def test_inputs_are_looked_up_where_they_lie(target: LoadedModel) -> None:
    """Rows in any order, several times; what lies beyond the table stands for its first row."""
    runner = ModelRunner(target, 1, 64)
    assert target.native is not None
    native = NativeRunner(target.native, runner.cache)
    table = torch.randn(5, target.native.hidden).bfloat16()
    rows = np.array([3, 0, 3, 5, 99])
    group = causal_group(0, 0, 5)
    looked_up = native.run([group], Gathered(table, rows), None)
    given_whole = native.run([group], Gathered(table[[3, 0, 3, 0, 0]].contiguous()), None)
    assert looked_up.logits is not None
    assert given_whole.logits is not None
    assert torch.equal(looked_up.logits, given_whole.logits)


def test_a_few_rows_of_many_are_kept(target: LoadedModel) -> None:
    runner = ModelRunner(target, 1, 64)
    tokens = random_tokens(np.random.default_rng(0), 9)
    whole = runner.forward([causal_group(0, 0, 9)], tokens).clone()
    kept = runner.forward([causal_group(0, 0, 9)], tokens, np.arange(9)[::2])
    assert torch.equal(kept, whole[::2])
