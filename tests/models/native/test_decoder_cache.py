"""Native passes and the cache: growing, ending, moving rows, sharing a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.models.cache import CacheShape, SlotCache
from smartree.models.native.decoder import NativeRunner
from smartree.models.packed_pass import causal_group
from tests.models.native.passes import SEEDS, in_one_go, runner_of, same, target
from tests.models.native.small import (
    HEAD_DIM,
    HIDDEN,
    needs_kernels,
    one_by_one,
    path_of,
    random_tokens,
    random_trees,
    tree_group,
)

pytestmark = needs_kernels


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_cache_that_grows_keeps_its_rows(kind: str) -> None:
    runner, whole = runner_of(kind, slots=2, window=1111), runner_of(kind, window=1111)
    tokens = random_tokens(np.random.default_rng(4), 1111)
    sizes = [543, 1, 1, 290, 276]
    assert runner.cache.rows == 544
    start = 0
    for size in sizes:
        logits = runner.forward([causal_group(1, start, size)], tokens[start : start + size])
        start += size
    assert runner.cache.rows == 1111
    assert same(logits, in_one_go(whole, tokens.tolist())[sum(sizes[:-1]) :])


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 47, 64, 65])
def test_texts_that_end_with_the_cache(rows: int) -> None:
    """The last block of keys is cut off there; what lies behind is the next head's, and must not matter."""
    for kind in ("llama", "sliding qwen2"):
        tokens = random_tokens(np.random.default_rng(rows), rows).tolist()
        full, roomy = runner_of(kind, window=rows), runner_of(kind, window=512)
        for cached in (full.cache.keys, full.cache.values):
            cached[:, 1].fill_(float("nan"))  # the slot behind
        assert full.cache.rows == rows
        assert same(in_one_go(full, tokens), in_one_go(roomy, tokens))
        again = runner_of(kind, window=rows)
        assert same(one_by_one(again, tokens), in_one_go(roomy, tokens))


def test_what_was_left_in_the_cache_does_not_matter() -> None:
    tokens = random_tokens(np.random.default_rng(0), 33).tolist()
    clean, used = runner_of("llama"), runner_of("llama")
    for cached in (used.cache.keys, used.cache.values):
        cached.fill_(float("nan"))
    assert same(one_by_one(used, tokens), one_by_one(clean, tokens))


@given(st.integers(1, 7), st.integers(0, 3), SEEDS)
@settings(deadline=None, max_examples=40)
def test_rows_are_moved_as_the_cache_itself_moves_them(kv_heads: int, slot: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = int(draw.integers(8, 70))
    shape = CacheShape(3, kv_heads, HEAD_DIM)
    mine, theirs = (SlotCache(shape, 4, rows, torch.bfloat16, torch.device("cpu")) for _ in range(2))
    for cache_ in (mine, theirs):
        filler = torch.Generator().manual_seed(seed % 1000)
        cache_.keys.copy_(torch.randn(cache_.keys.shape, generator=filler))
        cache_.values.copy_(torch.randn(cache_.values.shape, generator=filler))
    start = int(draw.integers(0, rows - 2))
    sources = np.sort(draw.choice(np.arange(start, rows), int(draw.integers(1, rows - start)), replace=False)).tolist()
    native = NativeRunner(target("llama").native, mine)  # type: ignore[arg-type]
    moves = [(slot, row, start + place) for place, row in enumerate(sources) if row != start + place]
    if moves:
        native.move(moves)
    theirs.move(moves)
    assert torch.equal(mine.keys, theirs.keys)
    assert torch.equal(mine.values, theirs.values)


def test_committing_an_accepted_path_leaves_the_cache_of_the_plain_prefix() -> None:
    draw = np.random.default_rng(3)
    for kind in ("llama", "sliding qwen2"):
        for _ in range(6):
            runner, alone = runner_of(kind, slots=2), runner_of(kind)
            runner.seat([10, 11])
            prefix = random_tokens(draw, int(draw.integers(1, 20))).tolist()
            runner.forward([causal_group(1, 0, len(prefix))], np.array(prefix))
            runner.seating.cached[11] = len(prefix)
            packed = random_trees(draw, [5, 12])
            runner.forward([tree_group([0, 1], [0, len(prefix)], packed)], packed.tokens)
            first = int(packed.starts[1])
            path = path_of(packed, int(draw.integers(first, packed.starts[2])))
            runner.commit(11, [len(prefix) + row - first for row in path])
            text = prefix + packed.tokens[path].tolist()
            one_by_one(alone, text)
            assert runner.seating.cached[11] == len(text)
            for mine, theirs in ((runner.cache.keys, alone.cache.keys), (runner.cache.values, alone.cache.values)):
                assert same(mine[:, 1, :, : len(text)], theirs[:, 0, :, : len(text)])


def test_engines_that_share_a_model_do_not_hear_each_other() -> None:
    first, second = runner_of("llama", tapped=(0, 2)), runner_of("llama", tapped=(1,))
    tokens = random_tokens(np.random.default_rng(2), 12).tolist()
    in_one_go(first, tokens)
    assert first.taps is not None
    assert second.taps is not None
    mine = first.taps.rows(torch.arange(12))
    in_one_go(second, tokens[::-1])
    assert same(first.taps.rows(torch.arange(12)), mine)
    assert second.taps.rows(torch.arange(12)).shape == (12, HIDDEN)
