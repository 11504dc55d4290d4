"""Packed passes compute what plain sequences compute: logits of every node, cache rows of every prefix."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch

from smartree.models.cache import SlotCache
from smartree.models.load import LoadedModel, prepare_model
from smartree.models.packed_pass import RowGroup, causal_group
from smartree.models.runner import ModelRunner
from smartree.tree import DraftTree, forest_of, pack
from smartree.tree.packed import PackedTrees
from tests.tiny import ARCHITECTURES, VOCAB, random_prompts, reference_model, tiny_model

WINDOW = 128
# One token, around the sliding window of 6, and far beyond it.
PREFIXES = random_prompts([1, 6, 7, 23], seed=1)


@cache
def loaded(architecture: str, dtype: torch.dtype = torch.float64) -> LoadedModel:
    # Logits of a usual size: their error is what is bounded here.
    return prepare_model(tiny_model(architecture, peak=1.0, dtype=dtype), None, architecture)


def data(cache: SlotCache) -> torch.Tensor:
    """[layers, 2, slots, kv_heads, rows, head_dim] a copy of all there is."""
    return torch.stack([cache.keys, cache.values], dim=1)


def random_tree(draw: np.random.Generator, size: int) -> DraftTree:
    """Any shape: wide levels, rows that lie far from their parents, and paths longer than the sliding window."""
    straight = draw.random()
    parents = [node - 1 if draw.random() < straight else int(draw.integers(-1, node)) for node in range(size)]
    return DraftTree.of(parents, [0.5] * size, draw.integers(0, VOCAB, size).tolist())


def random_forest(draw: np.random.Generator, sizes: Sequence[int]) -> PackedTrees:
    trees = [random_tree(draw, size) for size in sizes]
    forest = forest_of(trees)
    forest.token[: len(sizes)] = [prefix[-1] for prefix in PREFIXES[: len(sizes)]]
    return pack(forest, np.arange(forest.batch, len(forest)))


def path_tokens(packed: PackedTrees, row: int) -> list[int]:
    """Tokens from the root to a row."""
    tokens = []
    while row >= 0:
        tokens.append(int(packed.tokens[row]))
        row = int(packed.parents[row])
    return tokens[::-1]


def plain(model: LoadedModel, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [n, vocabulary] and cache rows [layers, 2, heads, n, dim] of a sequence run in one go."""
    runner = ModelRunner(model, 1, WINDOW)
    logits = runner.forward([causal_group(0, 0, len(tokens))], np.array(tokens))
    return logits, data(runner.cache)[:, :, 0, :, : len(tokens)]


def prefill(runner: ModelRunner, slots: Sequence[int]) -> None:
    """Caches all but the last token of each prefix: the last one is the root of its tree."""
    for slot, prefix in zip(slots, PREFIXES, strict=False):
        if len(prefix) > 1:
            runner.forward([causal_group(slot, 0, len(prefix) - 1)], np.array(prefix[:-1]))


def tree_group(slots: Sequence[int], packed: PackedTrees) -> RowGroup:
    cached = np.array([len(prefix) - 1 for prefix in PREFIXES[: len(slots)]])
    return RowGroup(slots, cached, cached, packed.sizes, packed.depths, above=packed.above())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_nodes_logits_are_those_of_its_own_path(architecture: str, dtype: torch.dtype, tolerance: float) -> None:
    model = loaded(architecture, dtype)
    draw = np.random.default_rng(0)
    for sizes in ([12, 0, 7, 12], [1, 9, 3, 5], [0, 0, 0, 0], [14, 2, 11, 8], [16, 16, 16, 16], [16, 9, 16, 16]):
        runner = ModelRunner(model, 4, WINDOW)
        prefill(runner, range(4))
        packed = random_forest(draw, sizes)
        logits = runner.forward([tree_group(range(4), packed)], packed.tokens)
        assert logits.dtype == dtype
        assert logits.shape == (sum(sizes) + 4, VOCAB)
        for row in range(len(packed.nodes)):
            request = int(np.searchsorted(packed.starts, row, side="right")) - 1
            expected, _ = plain(model, PREFIXES[request][:-1] + path_tokens(packed, row))
            assert torch.allclose(logits[row], expected[-1], rtol=tolerance, atol=tolerance), (request, row)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_sequences_have_the_logits_of_the_model_as_transformers_runs_it(architecture: str) -> None:
    original = reference_model(architecture, peak=1.0)
    for prefix in PREFIXES:
        with torch.no_grad():
            expected = original(input_ids=torch.tensor([prefix])).logits[0]
        # transformers' own attention of Gemma-2 and its norms work in float32, whatever the model's type.
        assert torch.allclose(plain(loaded(architecture), prefix)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_slots_in_any_order_and_prompts_beside_trees(architecture: str) -> None:
    model = loaded(architecture)
    draw = np.random.default_rng(1)
    runner = ModelRunner(model, 6, WINDOW)
    slots = [5, 0, 3, 2]
    prefill(runner, slots)
    packed = random_forest(draw, [6, 0, 9, 4])
    joining = random_prompts([9], seed=3)[0]
    runner.forward([causal_group(1, 0, 4)], np.array(joining[:4]))
    groups = [tree_group(slots, packed), causal_group(1, 4, 5)]
    logits = runner.forward(groups, np.concatenate([packed.tokens, np.array(joining[4:])]))
    for row in range(len(packed.nodes)):
        request = int(np.searchsorted(packed.starts, row, side="right")) - 1
        expected, _ = plain(model, PREFIXES[request][:-1] + path_tokens(packed, row))
        assert torch.allclose(logits[row], expected[-1], rtol=1e-9, atol=1e-9)
    assert torch.allclose(logits[len(packed.nodes) :], plain(model, joining)[0][4:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_tree_fed_level_by_level_has_the_logits_of_one_fed_in_one_go(architecture: str) -> None:
    model = loaded(architecture)
    draw = np.random.default_rng(2)
    packed = random_forest(draw, [12, 3, 0, 8])
    request = np.repeat(np.arange(4), packed.sizes)
    whole = ModelRunner(model, 4, WINDOW)
    prefill(whole, range(4))
    expected = whole.forward([tree_group(range(4), packed)], packed.tokens)

    runner = ModelRunner(model, 4, WINDOW)
    prefill(runner, range(4))
    base = np.array([len(prefix) - 1 for prefix in PREFIXES])
    place = np.full(len(packed.nodes), -1)  # row of the slot, relative to base
    counts = np.zeros(4, np.int64)
    fed: list[int] = []
    for depth in range(int(packed.depths.max()) + 1):
        level = np.flatnonzero(packed.depths == depth)
        sizes = np.bincount(request[level], minlength=4)
        for index, row in enumerate(level.tolist()):
            place[row] = counts[request[row]] + index - np.searchsorted(request[level], request[row])
        fed += level.tolist()
        columns = int((counts + sizes).max())
        mask = np.zeros((4, int(sizes.max()), columns), bool)
        column_depths = np.zeros((4, columns), np.int64)
        for row in fed:
            column_depths[request[row], place[row]] = packed.depths[row]
        for row in level.tolist():
            above = row
            while above >= 0:
                mask[request[row], place[row] - counts[request[row]], place[above]] = True
                above = int(packed.parents[above])
        group = RowGroup(range(4), base, base + counts, sizes, packed.depths[level], mask, column_depths)
        logits = runner.forward([group], packed.tokens[level])
        assert torch.allclose(logits, expected[level], rtol=1e-9, atol=1e-9), depth
        counts = counts + sizes


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_committing_any_accepted_path_leaves_the_cache_of_the_plain_prefix(architecture: str) -> None:
    model = loaded(architecture)
    draw = np.random.default_rng(3)
    for _ in range(8):
        runner = ModelRunner(model, 4, WINDOW)
        runner.seat([10, 11, 12, 13])
        prefill(runner, range(4))
        runner.seating.cached.update({10 + i: len(prefix) - 1 for i, prefix in enumerate(PREFIXES)})
        packed = random_forest(draw, [12, 5, 0, 12])
        runner.forward([tree_group(range(4), packed)], packed.tokens)
        for request in range(4):
            start, end = packed.starts[request], packed.starts[request + 1]
            row = int(draw.integers(start, end))
            rows = []
            while row >= 0:
                rows.append(row)
                row = int(packed.parents[row])
            base = len(PREFIXES[request]) - 1
            runner.commit(10 + request, [base + row - int(start) for row in reversed(rows)])
            text = PREFIXES[request][:-1] + path_tokens(packed, rows[0])
            assert runner.seating.cached[10 + request] == len(text)
            mine = data(runner.cache)[:, :, request, :, : len(text)]
            assert torch.allclose(mine, plain(model, text)[1], rtol=1e-9, atol=1e-9)


def test_only_the_rows_asked_for_get_logits() -> None:
    model = loaded("llama")
    tokens = np.array(PREFIXES[3])
    keep = np.array([0, 4, 22])
    logits = ModelRunner(model, 1, WINDOW).forward([causal_group(0, 0, 23)], tokens, keep)
    assert torch.allclose(logits, plain(model, PREFIXES[3])[0][keep], rtol=1e-12, atol=1e-12)


def test_the_cache_grows_without_losing_rows() -> None:
    model = loaded("llama")
    runner = ModelRunner(model, 2, window=2000)
    assert runner.cache.rows == 544
    draw = np.random.default_rng(4)
    tokens = draw.integers(0, VOCAB, 900)
    for start in range(0, 900, 300):
        logits = runner.forward([causal_group(1, start, 300)], tokens[start : start + 300])
    assert runner.cache.rows >= 900
    whole = ModelRunner(model, 1, window=900)
    expected = whole.forward([causal_group(0, 0, 900)], tokens)
    assert torch.allclose(logits, expected[600:], rtol=1e-9, atol=1e-9)


def test_seating_moves_the_rows_with_the_requests() -> None:
    model = loaded("llama")
    runner = ModelRunner(model, 3, WINDOW)
    runner.seat([1, 2, 3])
    prefill(runner, range(3))
    runner.seating.cached.update({i + 1: len(prefix) - 1 for i, prefix in enumerate(PREFIXES[:3])})
    runner.seat([3, 1, 2])
    for request_id, prefix in zip([1, 2, 3], PREFIXES, strict=False):
        if len(prefix) == 1:
            continue
        mine = data(runner.cache)[:, :, runner.seating.slot(request_id), :, : len(prefix) - 1]
        assert torch.allclose(mine, plain(model, prefix[:-1])[1], rtol=1e-9, atol=1e-9)
