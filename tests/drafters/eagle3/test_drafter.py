"""The EAGLE-3 drafter over requests and steps: packed levels, its cache, what it keeps and what it forgets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from smartree.drafters.eagle3.drafter import Eagle3Drafter
from smartree.drafters.eagle3.runner import HeadRunner, LoadedHead
from smartree.models.load import LoadedModel
from smartree.models.packed_pass import RowGroup, causal_group
from smartree.tree.forest import Forest
from tests.drafters.eagle3.heads import Listener, listening_drafter, tiny_head, tiny_spec, tiny_target
from tests.drafters.grown import Text, branches, grow_all
from tests.tiny import VOCAB, random_prompts

PROMPTS = random_prompts([2, 7, 12, 90], seed=2)  # the last one is read in an attention call of its own


@cache
def target() -> LoadedModel:
    return tiny_target()


@cache
def head(layers: int = 1) -> LoadedHead:
    return tiny_head(target(), tiny_spec(layers=layers, norm_output=layers > 1))


def a_drafter(layers: int = 1) -> tuple[Eagle3Drafter, Listener]:
    return listening_drafter(target(), head(layers))


def grown_alone(text: Text, levels: int, width: int | None = None, layers: int = 1) -> dict[tuple[int, ...], float]:
    """The tree that a fresh drafter gives one request."""
    drafter, listener = a_drafter(layers)
    alone = Text(0, list(text.tokens), text.temperature)
    listener.hear([alone])
    return branches(grow_all(drafter, [alone], levels=levels, width=width))


def assert_same(mine: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> None:
    assert list(mine) == list(other)
    assert list(mine.values()) == pytest.approx(list(other.values()), rel=1e-6)


def plain_cache(listener: Listener, loaded: LoadedHead, tokens: list[int], rows: int) -> torch.Tensor:
    """Keys and values of the first rows of a text, computed in one causal pass with the target's features."""
    runner = HeadRunner(loaded, 1, 256, 256)
    features = runner.features(listener.states(tokens[:-1]))[:rows]
    runner.forward([causal_group(0, 0, rows)], np.array(tokens[1 : rows + 1]), features)
    return torch.stack([runner.cache.keys, runner.cache.values], dim=1)[:, :, 0, :, :rows]


def assert_cache_is_plain(drafter: Eagle3Drafter, listener: Listener, text: Text) -> None:
    runner = drafter.runner
    rows, slot = runner.seating.cached[text.id], runner.seating.slot(text.id)
    assert rows < len(text.tokens)
    if rows:
        mine = torch.stack([runner.cache.keys, runner.cache.values], dim=1)[:, :, slot, :, :rows]
        expected = plain_cache(listener, drafter.loaded, text.tokens, rows)
        assert torch.allclose(mine, expected, rtol=1e-9, atol=1e-9)


def random_path(forest: Forest, request: int, draw: np.random.Generator) -> list[int]:
    """Tokens of a random branch, as deep as it happens to go; perhaps none."""
    node, path = int(draw.choice(np.flatnonzero(forest.request == request))), []
    while node >= forest.batch:
        path.append(int(forest.token[node]))
        node = int(forest.parent[node])
    return path[::-1]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("width", [1, 3])
def test_several_requests_together_get_the_trees_of_each_alone(width: int, layers: int) -> None:
    drafter, listener = a_drafter(layers)
    texts = [Text(index, prompt, temperature=0.5 * index) for index, prompt in enumerate(PROMPTS)]
    listener.hear(texts)
    together = grow_all(drafter, texts, levels=4, width=width)
    for text in texts:
        assert_same(branches(together, text.id), grown_alone(text, 4, width, layers))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_over_many_steps_the_cache_is_that_of_the_plain_prefix(seed: int, layers: int) -> None:
    """Random paths are accepted, requests come and go, and some steps draft nothing."""
    draw = np.random.default_rng(seed)
    drafter, listener = a_drafter(layers)
    texts = [Text(index, list(prompt)) for index, prompt in enumerate(PROMPTS)]
    listener.hear(texts)
    coming, accepted, idle = len(texts), 0, 0
    for _ in range(14):
        if draw.random() < 0.3:  # the policy did not speculate
            idle += 1
            for text in texts:
                text.tokens.append(int(draw.integers(0, VOCAB)))
        else:
            forest = grow_all(drafter, texts, levels=int(draw.integers(1, 5)), width=3)
            check = int(draw.integers(len(texts)))
            alone = grown_alone(texts[check], int(forest.depth.max()), 3, layers)
            assert_same(branches(forest, check), alone)
            for text in texts:
                assert drafter.runner.seating.cached[text.id] == len(text.tokens) - 1
                assert_cache_is_plain(drafter, listener, text)
            for index, text in enumerate(texts):
                path = random_path(forest, index, draw)
                text.tokens += [*path, int(draw.integers(0, VOCAB))]
                accepted += len(path)
        listener.hear(texts)
        if draw.random() < 0.4:  # one leaves, and the last takes its place; another comes
            place = int(draw.integers(len(texts)))
            drafter.release(texts[place].id)
            texts[place] = texts[-1]
            texts.pop()
            texts.append(Text(coming, draw.integers(0, VOCAB, int(draw.integers(2, 20))).tolist()))
            listener.hear(texts[-1:])
            coming += 1
    assert accepted > 10
    assert idle > 0
    assert coming > len(PROMPTS)
    for text in texts:
        drafter.release(text.id)
    assert_empty(drafter)


def assert_empty(drafter: Eagle3Drafter) -> None:
    assert drafter.runner.seating.rows_in_use() == 0
    assert len(drafter.runner.seating) == 0
    assert len(drafter._backlog) == 0


@pytest.mark.parametrize("missed", [1, 3, 70])
def test_what_was_decoded_without_drafting_is_caught_up_with(missed: int) -> None:
    drafter, listener = a_drafter()
    texts = [Text(index, list(prompt)) for index, prompt in enumerate(PROMPTS[:3])]
    listener.hear(texts)
    grow_all(drafter, texts, levels=2, width=2)
    for text, count in zip(texts, (1, missed, 2), strict=True):
        for token in random_prompts([count], seed=text.id)[0]:  # a step each
            text.tokens.append(token)
            listener.hear([text])
    again = grow_all(drafter, texts, levels=3, width=2)
    for text in texts:
        assert_same(branches(again, text.id), grown_alone(text, 3, 2))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("piece", [1, 5, 40])
def test_long_backlogs_are_read_in_pieces(piece: int, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2, 7, 12 and 90 tokens: those that are short are read with the others' last piece."""
    drafter, listener = a_drafter(layers)
    texts = [Text(index, list(prompt)) for index, prompt in enumerate(PROMPTS)]
    expected = [grown_alone(text, 3, 2, layers) for text in texts]
    listener.hear(texts)
    passes: list[int] = []
    forward = HeadRunner.forward

    def counted(
        self: HeadRunner, groups: Sequence[RowGroup], tokens: NDArray[np.int64], features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        passes.append(len(tokens))
        return forward(self, groups, tokens, features)

    monkeypatch.setattr(HeadRunner, "forward", counted)
    monkeypatch.setattr("smartree.drafters.eagle3.drafter._MOST_ROWS", 4 * piece)
    monkeypatch.setattr("smartree.drafters.eagle3.drafter._LEAST_AHEAD", 1)
    together = grow_all(drafter, texts, levels=3, width=2)
    monkeypatch.setattr(HeadRunner, "forward", forward)
    for text, alone in zip(texts, expected, strict=True):
        assert_same(branches(together, text.id), alone)
        assert_cache_is_plain(drafter, listener, text)
    whole = sum(len(prompt) - 1 for prompt in PROMPTS)
    assert sum(passes[:-2]) == whole  # the last two are the levels below
    assert max(passes[:-2]) <= 4 * piece


@pytest.mark.parametrize("chunks", [(5, 1, 80, 3), (89,), (1,) * 89])
def test_a_prompt_may_arrive_in_chunks(chunks: tuple[int, ...]) -> None:
    drafter, listener = a_drafter()
    texts = [Text(0, PROMPTS[1]), Text(1, PROMPTS[3])]
    states = [listener.states(text.tokens[:-1]) for text in texts]
    drafter.absorb([0], [len(states[0])], states[0])
    for part in states[1].split(chunks):
        drafter.absorb([1], [len(part)], part)
    forest = grow_all(drafter, texts, levels=2)
    for text in texts:
        assert_same(branches(forest, text.id), grown_alone(text, 2))


def test_a_request_may_be_left_out_of_a_level_and_of_a_whole_step() -> None:
    drafter, listener = a_drafter()
    texts = [Text(index, list(prompt)) for index, prompt in enumerate(PROMPTS)]
    listener.hear(texts)
    forest = Forest(np.array([text.tokens[-1] for text in texts]))
    drafter.begin(texts, forest)
    nodes = forest.append(drafter.expand(forest, np.array([1, 3])))
    assert set(forest.request[nodes].tolist()) == {1, 3}
    forest.append(drafter.expand(forest, nodes[forest.request[nodes] == 3]))
    assert_same(branches(forest, 1), grown_alone(texts[1], 1))
    assert_same(branches(forest, 3), grown_alone(texts[3], 2))
    for text in texts:  # those that were left out read two steps at once now
        text.tokens.append(5)
    listener.hear(texts)
    again = grow_all(drafter, texts, levels=2)
    for text in texts:
        assert_same(branches(again, text.id), grown_alone(text, 2))


def test_a_frontier_may_come_in_any_order() -> None:
    drafter, listener = a_drafter()
    texts = [Text(index, prompt, 0.4 * index) for index, prompt in enumerate(PROMPTS)]
    listener.hear(texts)
    forest = Forest(np.array([text.tokens[-1] for text in texts]))
    drafter.begin(texts, forest)
    frontier = np.array([2, 0, 3, 1])
    for _ in range(3):
        candidates = drafter.expand(forest, frontier)
        assert candidates.parents.tolist() == np.repeat(frontier, 4).tolist()
        frontier = np.random.default_rng(0).permutation(forest.append(candidates))
    for text in texts:
        mine, expected = branches(forest, text.id), grown_alone(text, 3)
        assert mine.keys() == expected.keys()
        assert list(mine.values()) == pytest.approx([expected[path] for path in mine], rel=1e-6)


def test_an_abandoned_tree_leaves_no_trace() -> None:
    """A deep, wide tree is grown and nothing of it accepted: the next tree is that of a fresh drafter."""
    drafter, listener = a_drafter()
    text = Text(0, list(PROMPTS[2]))
    listener.hear([text])
    grow_all(drafter, [text], levels=4)
    text.tokens.append(int(np.random.default_rng(0).integers(0, VOCAB)))
    listener.hear([text])
    assert_same(branches(grow_all(drafter, [text], levels=3)), grown_alone(text, 3))


def test_requests_that_end_or_are_given_up_leave_nothing_behind() -> None:
    drafter, listener = a_drafter()
    drafter.release(99)  # never heard of
    texts = [Text(index, prompt) for index, prompt in enumerate(PROMPTS)]
    listener.hear(texts)
    drafter.release(3)  # heard, but never drafted for
    grow_all(drafter, texts[:3], levels=2)
    for text in texts[:3]:
        drafter.release(text.id)
    assert_empty(drafter)


def test_the_cache_grows_with_the_text_and_the_tree() -> None:
    """Rows are made as they are needed: a long prompt, then a tree wider than top_k nodes a level."""
    drafter, listener = listening_drafter(target(), head(), slots=1, window=700, top_k=4)
    text = Text(0, random_prompts([180], seed=1)[0])
    listener.hear([text])
    assert drafter.runner.cache.rows == 544
    forest = grow_all(drafter, [text], levels=6, width=200)
    assert drafter.runner.cache.rows > 544
    assert len(branches(forest)) == 4 + 16 + 64 + 256 + 2 * 4 * 200
    assert_cache_is_plain(drafter, listener, text)
    # The likeliest branch alone, in a cache that never grew.
    narrow = grown_alone(text, 6, width=1)
    wide = branches(forest)
    assert [wide[path] for path in narrow] == pytest.approx(list(narrow.values()), rel=1e-6)


def test_a_fresh_drafter_shares_the_head_and_nothing_else() -> None:
    drafter, listener = a_drafter()
    text = Text(0, PROMPTS[1])
    listener.hear([text])
    grow_all(drafter, [text], levels=2)
    other = drafter.fresh()
    assert other.loaded is drafter.loaded
    assert other.fingerprint == drafter.fingerprint
    assert other.feature_layers == drafter.feature_layers == (0, 1, 2)
    assert other.runner.seating.rows_in_use() == 0
    assert other.runner.cache is not drafter.runner.cache


def test_no_more_children_than_the_draft_vocabulary_has() -> None:
    few = tiny_head(target(), tiny_spec(draft_vocab_size=3))
    drafter, listener = listening_drafter(target(), few, top_k=10)
    text = Text(0, PROMPTS[1])
    listener.hear([text])
    forest = grow_all(drafter, [text], levels=2)
    assert len(branches(forest)) == 3 + 9
    assert forest.path[1:4].sum() == pytest.approx(1)


@pytest.mark.parametrize(("context", "rows", "fits"), [(1, 1, True), (150, 10, True), (195, 10, False)])
def test_rehearsals_are_levels_that_leave_requests_alone(context: int, rows: int, fits: bool) -> None:
    drafter, _ = a_drafter()
    level = drafter.rehearsal(3, rows, context)
    assert (level is not None) == fits
    if level is not None:
        level()
        level()
        assert drafter.runner.seating.rows_in_use() == 0


SHARED = random_prompts([40], seed=12)[0]


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
@pytest.mark.parametrize("read", [0, 1, 2], ids=["nothing read", "begun", "all read"])
@pytest.mark.parametrize("shared", [20, 40])
def test_a_request_that_begins_like_another_gets_the_tree_of_one_that_read_it_all(
    shared: int, read: int, ended: bool
) -> None:
    drafter, listener = a_drafter()
    donor = Text(0, SHARED[:30] if read == 1 else [*SHARED, 5, 6])
    listener.hear([donor])
    if read:
        grow_all(drafter, [donor], levels=2)
    if read == 1:  # what comes after the last level waits
        donor.tokens += [*SHARED[30:], 5, 6]
        listener.hear([donor])
    if ended:
        drafter.retire(0)
    text = Text(1, [*SHARED[:shared], 7, 8, 9])
    known = drafter.adopt(1, 0, shared)
    # Row j is about token j + 1, so one more than is shared is of no use; what an ended request had not read is gone.
    rows = {0: 0, 1: min(29, shared - 1), 2: shared - 1}[read]
    assert known == (rows if ended or rows == shared - 1 else shared)
    if known == 0:
        drafter.release(1)
        return
    listener.heard_already(1, known)
    listener.hear([text])
    forest = grow_all(drafter, [text] if ended else [donor, text], levels=3, width=3)
    assert_same(branches(forest, 0 if ended else 1), grown_alone(text, 3, width=3))
    assert_cache_is_plain(drafter, listener, text)
    for request_id in (0, 1):
        drafter.release(request_id)
    assert_empty(drafter)


def test_a_request_that_was_thrown_out_comes_back_from_its_beginning() -> None:
    drafter, listener = a_drafter()
    text, other = Text(0, list(PROMPTS[3])), Text(1, list(PROMPTS[2]))
    listener.hear([text, other])
    drafter.release(0)
    listener.heard_already(0, 0)
    listener.hear([text])
    forest = grow_all(drafter, [text, other], levels=3, width=3)
    assert_same(branches(forest, 0), grown_alone(text, 3, width=3))
    assert_same(branches(forest, 1), grown_alone(other, 3, width=3))
