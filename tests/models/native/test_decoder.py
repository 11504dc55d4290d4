"""Native passes: near the float32 model, and bit for bit the same in a tree, in a batch, in chunks and alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.drafters.tree_rows import TreeRows
from smartree.models import runner as runner_module
from smartree.models.load import prepare_model
from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner
from smartree.tree import DraftTree, forest_of
from tests.models.native.passes import SEEDS, WINDOW, bits, in_one_go, runner_of, same
from tests.models.native.small import (
    HIDDEN,
    NATIVE_KINDS,
    SLIDING,
    native_model,
    needs_kernels,
    one_by_one,
    path_of,
    random_tokens,
    random_trees,
    threads,
    tree_group,
)

pytestmark = needs_kernels
TAPS = (0, 1, 2, 1)
KINDS = st.sampled_from(NATIVE_KINDS)


# --- near the model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NATIVE_KINDS)
def test_logits_and_states_are_as_near_to_float32_as_torchs_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three have the same weights; errors are compared in the mean, over texts longer than the windows."""
    exact: Any = native_model(kind, dtype=torch.float32)
    exact.set_attn_implementation("eager")
    mine = runner_of(kind, tapped=(1, 2))
    assert mine.taps is not None
    with monkeypatch.context() as patch:
        patch.setattr("smartree.models.native.library._outcome", lambda: "not for this one")
        theirs = ModelRunner(prepare_model(native_model(kind), None, kind), 1, WINDOW, (1, 2))
        assert theirs.taps is not None
    errors = np.zeros((2, 3))
    for seed in range(6):
        tokens = random_tokens(np.random.default_rng(seed), 40)
        with torch.no_grad():
            output = exact(input_ids=torch.from_numpy(tokens)[None], output_hidden_states=True)
            last = torch.empty(0)

            def keep(_module: object, args: tuple[torch.Tensor, ...]) -> None:
                nonlocal last
                last = args[0]

            handle = exact.model.norm.register_forward_pre_hook(keep)
            exact(input_ids=torch.from_numpy(tokens)[None])
            handle.remove()
        expected = output.logits[0], output.hidden_states[1][0], last[0]
        for place, runner in enumerate((mine, theirs)):
            logits = in_one_go(runner, tokens.tolist())
            assert runner.taps is not None
            states = runner.taps.rows(torch.arange(40))
            found = logits, states[:, :HIDDEN], states[:, HIDDEN:]
            for what, (one, wanted) in enumerate(zip(found, expected, strict=True)):
                errors[place, what] += float((one.float() - wanted).abs().mean() / wanted.std())
    assert np.all(errors[0] <= 1.5 * errors[1]), errors
    assert np.all(errors[0] / 6 < 0.05), errors


@pytest.mark.parametrize("kind", NATIVE_KINDS)
@pytest.mark.parametrize("kept", [None, [3, 0, 17]])
def test_the_largest_logits_are_the_same_where_the_others_are_not_written_down(
    kind: str, kept: list[int] | None
) -> None:
    tokens = random_tokens(np.random.default_rng(5), 20)
    keep = None if kept is None else np.array(kept)
    runner = runner_of(kind)
    runner.seat([0])
    logits = runner.forward([causal_group(0, 0, 20)], tokens, keep)
    runner.best = None
    none = runner.forward([causal_group(0, 0, 20)], tokens, keep, logits=False)
    assert none.shape == (0, logits.shape[1])
    assert runner.best is not None
    assert runner.best.tolist() == logits.float().argmax(dim=1).tolist()


@pytest.mark.parametrize("kind", NATIVE_KINDS)
def test_tokens_far_back_matter_within_the_window_only(kind: str) -> None:
    """Otherwise every test here would pass with a wrong mask or cache row, too."""
    tokens = random_tokens(np.random.default_rng(0), 30).tolist()
    changed = [(tokens[0] + 1) % 97, *tokens[1:]]
    logits, others = in_one_go(runner_of(kind), tokens), in_one_go(runner_of(kind), changed)
    reach = {"mistral": 2 * (SLIDING - 1)}.get(kind, 29)  # two layers pass on what they see
    differing = (bits(logits) != bits(others)).any(dim=-1)
    assert bool(differing[: reach // 2].all())
    assert bool(differing[reach])
    assert not bool(differing[reach + 1 :].any())


# --- the same bits -------------------------------------------------------------------------------------------------


@given(KINDS, st.lists(st.integers(1, 40), min_size=1, max_size=6), SEEDS)
@settings(deadline=None, max_examples=40)
def test_a_prompt_gives_the_same_bits_however_it_is_cut(kind: str, sizes: list[int], seed: int) -> None:
    length = min(sum(sizes), WINDOW)
    tokens = random_tokens(np.random.default_rng(seed), length).tolist()
    whole, cut = runner_of(kind, tapped=TAPS), runner_of(kind, tapped=TAPS)
    assert whole.taps is not None
    assert cut.taps is not None
    expected, states = in_one_go(whole, tokens), whole.taps.rows(torch.arange(length))
    start = 0
    for size in sizes:
        size = min(size, length - start)
        if size == 0:
            break
        logits = cut.forward([causal_group(0, start, size)], np.array(tokens[start : start + size]))
        assert same(logits, expected[start : start + size])
        assert same(cut.taps.rows(torch.arange(size)), states[start : start + size])
        start += size
    assert same(cut.cache.keys[:, 0, :, :length], whole.cache.keys[:, 0, :, :length])
    assert same(cut.cache.values[:, 0, :, :length], whole.cache.values[:, 0, :, :length])


@given(KINDS, st.lists(st.integers(0, 13), min_size=1, max_size=4), st.sampled_from([3, 32, 50, 512]), SEEDS)
@settings(deadline=None, max_examples=40)
def test_every_node_of_a_tree_has_the_bits_of_its_path_decoded_alone(
    kind: str, counts: list[int], rows: int, seed: int
) -> None:
    """Trees in slots in any order beside another request's chunk, in a cache that may grow between the passes."""
    draw = np.random.default_rng(seed)
    packed = random_trees(draw, counts)
    prefixes = [random_tokens(draw, int(draw.integers(0, 20))).tolist() for _ in counts]
    chunk = random_tokens(draw, int(draw.integers(2, 40))).tolist()
    cut = int(draw.integers(0, len(chunk) - 1))
    slots = draw.permutation(len(counts) + 1).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_module, "_FIRST_ROWS", rows)
        runner = runner_of(kind, slots=len(counts) + 1, tapped=TAPS)
    for slot, text in zip(slots, [*prefixes, chunk[:cut]], strict=True):
        if text:
            runner.forward([causal_group(slot, 0, len(text))], np.array(text))
    tree = tree_group(slots[:-1], [len(prefix) for prefix in prefixes], packed)
    groups, tokens = [tree, causal_group(slots[-1], cut, len(chunk) - cut)], [packed.tokens, np.array(chunk[cut:])]
    if first := int(draw.integers(0, 2)):
        groups, tokens = groups[::-1], tokens[::-1]
    logits = runner.forward(groups, np.concatenate(tokens))
    assert runner.taps is not None
    states = runner.taps.rows(torch.arange(len(logits)))
    before = len(chunk) - cut if first else 0
    alone = runner_of(kind, tapped=TAPS)
    assert alone.taps is not None
    for request, prefix in enumerate(prefixes):
        if prefix:
            one_by_one(alone, prefix)
        for row in range(packed.starts[request], packed.starts[request + 1]):
            path = packed.tokens[path_of(packed, row)].tolist()
            expected = one_by_one(alone, path, start=len(prefix))[-1:]
            assert same(logits[before + row][None], expected), (request, row)
            assert same(states[before + row][None], alone.taps.rows(torch.zeros(1, dtype=torch.int64)))
    after = 0 if first else len(packed.nodes)
    assert same(logits[after : after + len(chunk) - cut], one_by_one(alone, chunk)[cut:])


@given(KINDS, st.lists(st.integers(0, 12), min_size=1, max_size=3), SEEDS)
@settings(deadline=None, max_examples=25)
def test_a_tree_fed_level_by_level_has_the_same_bits(kind: str, counts: list[int], seed: int) -> None:
    """As a drafter that is a model of its own does it; the roots are committed rows there."""
    draw = np.random.default_rng(seed)
    trees = []
    for count in counts:
        parents = [int(draw.integers(-1, node)) if node else -1 for node in range(count)]
        trees.append(DraftTree.of(parents, [0.5] * count, random_tokens(draw, count).tolist()))
    forest = forest_of(trees)
    prefixes = [random_tokens(draw, int(draw.integers(1, 20))).tolist() for _ in counts]
    runner, alone = runner_of(kind, slots=len(counts)), runner_of(kind)
    for slot, prefix in enumerate(prefixes):
        runner.forward([causal_group(slot, 0, len(prefix))], np.array(prefix))
    tree_rows = TreeRows(len(counts))
    base = np.array([len(prefix) for prefix in prefixes])
    for depth in range(1, int(forest.depth.max()) + 1):
        level = np.flatnonzero(forest.depth == depth)
        level = level[np.argsort(forest.request[level], kind="stable")]
        logits = runner.forward([tree_rows.group(forest, level, base)], forest.token[level])
        for row, node in enumerate(level.tolist()):
            path: list[int] = []
            while node >= forest.batch:
                path.insert(0, int(forest.token[node]))
                node = int(forest.parent[node])
            prefix = prefixes[node]
            expected = in_one_go(alone, prefix + path)[-1:]
            assert same(logits[row][None], expected), (depth, row)


@pytest.mark.parametrize("given_threads", [None, 1])
@pytest.mark.parametrize("kind", NATIVE_KINDS)
def test_threads_do_not_change_a_bit(kind: str, given_threads: int | None) -> None:
    """Nor does it matter whether as many come as were asked for."""
    draw = np.random.default_rng(0)
    packed, chunk = random_trees(draw, [9, 0, 14]), random_tokens(draw, 60)
    outputs = []
    for count in (1, 2):
        runner = runner_of(kind, slots=4, tapped=TAPS)
        groups = [tree_group([2, 0, 1], [0, 0, 0], packed), causal_group(3, 0, 60)]
        with threads(count, given=given_threads if count == 2 else None):
            logits = runner.forward(groups, np.concatenate([packed.tokens, chunk]))
            assert runner.taps is not None
            runner.seating.seat([0, 1, 2, 3])
            runner.seating.cached[2] = 1
            runner.commit(2, [4, 7, 9])
            states = runner.taps.rows(torch.arange(len(logits)))
            outputs.append((logits, states, runner.cache.keys, runner.cache.values))
    assert all(same(mine, theirs) for mine, theirs in zip(*outputs, strict=True))


# --- the rest of a pass --------------------------------------------------------------------------------------------


def test_only_the_rows_asked_for_get_logits_in_the_order_asked_for() -> None:
    tokens = random_tokens(np.random.default_rng(0), 23)
    expected = in_one_go(runner_of("llama"), tokens.tolist())
    for keep in ([22], [4, 0, 22, 4], [], list(range(23)) * 3):
        kept = np.array(keep, np.int64)
        logits = runner_of("llama").forward([causal_group(0, 0, 23)], tokens, kept)
        assert logits.shape == (len(keep), 97)
        assert same(logits, expected[kept])


@pytest.mark.parametrize("kind", ["qwen3", "mistral"])
def test_tapped_states_are_those_that_hooks_hear(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within what bfloat16 rounds: torch rounds the residual stream in every layer, the kernels keep it in float32."""
    tokens = random_tokens(np.random.default_rng(1), 20)
    mine = runner_of(kind, tapped=TAPS)
    in_one_go(mine, tokens.tolist())
    monkeypatch.setattr("smartree.models.native.library._outcome", lambda: "not for this one")
    theirs = ModelRunner(prepare_model(native_model(kind), None, kind), 1, WINDOW, TAPS)
    in_one_go(theirs, tokens.tolist())
    assert mine.taps is not None
    assert theirs.taps is not None
    index = torch.tensor([3, 19, 0])
    found, heard = mine.taps.rows(index), theirs.taps.rows(index)
    assert found.shape == heard.shape == (3, len(TAPS) * HIDDEN)
    assert same(found[:, :HIDDEN], heard[:, :HIDDEN])  # the embeddings
    assert same(found[:, HIDDEN : 2 * HIDDEN], found[:, 3 * HIDDEN :])
    assert float((found.float() - heard.float()).abs().mean()) < 0.02 * float(heard.float().std())
