"""The model drafter: levels of several requests at once, its own cache over steps, its limits."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from smartree.drafters.model import ModelDrafter
from smartree.models.load import LoadedModel, prepare_model
from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner
from smartree.tree.forest import Forest
from tests.drafters.grown import Text, branches, grow_all
from tests.tiny import ARCHITECTURES, VOCAB, random_prompts, reference_model, tiny_model

PROMPTS = random_prompts([1, 7, 12, 90], seed=2)  # the last one is read in an attention call of its own


@cache
def loaded(architecture: str = "llama", vocab: int = VOCAB, window: int = 256) -> LoadedModel:
    return prepare_model(tiny_model(architecture, peak=2.0, vocab=vocab, window=window), None, "tiny")


def a_drafter(architecture: str = "llama", top_k: int = 4) -> ModelDrafter:
    return ModelDrafter(loaded(architecture), VOCAB, slots=4, window=200, top_k=top_k)


def plain_cache(model: LoadedModel, tokens: list[int]) -> torch.Tensor:
    runner = ModelRunner(model, 1, 256)
    runner.forward([causal_group(0, 0, len(tokens))], np.array(tokens))
    return torch.stack([runner.cache.keys, runner.cache.values], dim=1)[:, :, 0, :, : len(tokens)]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_probabilities_are_the_models_own_along_each_path(architecture: str, temperature: float) -> None:
    original = reference_model(architecture, peak=2.0)
    texts = [Text(index, prompt, temperature) for index, prompt in enumerate(PROMPTS)]
    forest = grow_all(a_drafter(architecture), texts, levels=3, width=3)
    for index, prompt in enumerate(PROMPTS):
        found = branches(forest, index)
        assert len(found) == 4 + 2 * 3 * 4
        parents = {path[:-1] for path in found}
        for parent in parents:
            with torch.no_grad():
                logits = original(input_ids=torch.tensor([prompt + list(parent)])).logits[0, -1]
            expected = torch.softmax(logits / (temperature or 1.0), 0)
            best = expected.topk(4).indices.tolist()
            children = [path[-1] for path in found if path[:-1] == parent]
            assert children == best  # most likely first
            for token in children:
                assert found[(*parent, token)] == pytest.approx(float(expected[token]), rel=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_several_requests_together_get_the_trees_of_each_alone(architecture: str) -> None:
    texts = [Text(index, prompt) for index, prompt in enumerate(PROMPTS)]
    together = grow_all(a_drafter(architecture), texts, levels=4, width=3)
    for index, text in enumerate(texts):
        alone = branches(grow_all(a_drafter(architecture), [text], levels=4, width=3))
        mine = branches(together, index)
        assert list(mine) == list(alone)
        assert list(mine.values()) == pytest.approx(list(alone.values()), rel=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_after_every_step_the_cache_is_that_of_the_plain_prefix(architecture: str) -> None:
    draw = np.random.default_rng(0)
    drafter = a_drafter(architecture)
    texts = [Text(index, list(prompt)) for index, prompt in enumerate(PROMPTS[:3])]
    moved = 0
    for _ in range(12):
        forest = grow_all(drafter, texts, levels=int(draw.integers(1, 5)), width=3)
        accepted = []
        for index, text in enumerate(texts):
            # A random path, as deep as it happens to go: the last node may never have been fed.
            mine = np.flatnonzero(forest.request == index)
            node = int(draw.choice(mine))
            path = []
            while node >= forest.batch:
                path.append(node)
                node = int(forest.parent[node])
            accepted += path[::-1]
            text.tokens += [int(forest.token[node]) for node in path[::-1]] + [int(draw.integers(0, VOCAB))]
            moved += len(path) > 1
        drafter.commit(forest, np.array(accepted, np.int64))
        for text in texts:
            rows = drafter.runner.seating.cached[text.id]
            slot = drafter.runner.seating.slot(text.id)
            assert rows <= len(text.tokens)
            expected = plain_cache(loaded(architecture), text.tokens[:rows])
            assert torch.allclose(
                torch.stack([drafter.runner.cache.keys, drafter.runner.cache.values], dim=1)[:, :, slot, :, :rows],
                expected,
                rtol=1e-9,
                atol=1e-9,
            )
        if draw.random() < 0.3:  # one leaves, another comes
            gone = texts.pop(int(draw.integers(len(texts))))
            drafter.release(gone.id)
            texts.append(Text(gone.id + 10, draw.integers(0, VOCAB, int(draw.integers(1, 20))).tolist()))
    assert moved > 5
    for text in texts:
        drafter.release(text.id)
    assert drafter.runner.seating.rows_in_use() == 0


def test_accepted_tokens_are_not_read_twice() -> None:
    drafter = a_drafter()
    text = Text(0, list(PROMPTS[2]))
    forest = grow_all(drafter, [text], levels=3, width=1)
    path = [1, int(np.flatnonzero(forest.parent == 1)[0])]
    drafter.commit(forest, np.array(path))
    # Both accepted nodes were fed; the last committed token was not.
    assert drafter.runner.seating.cached[0] == len(PROMPTS[2]) + 2


def test_a_step_without_commit_is_read_again() -> None:
    drafter = a_drafter()
    text = Text(0, list(PROMPTS[1]))
    grow_all(drafter, [text], levels=3, width=2)
    text.tokens += [5]
    fresh = branches(grow_all(a_drafter(), [Text(0, list(text.tokens))], levels=2))
    again = branches(grow_all(drafter, [text], levels=2))
    assert list(again) == list(fresh)
    assert list(again.values()) == pytest.approx(list(fresh.values()), rel=1e-6)


@pytest.mark.parametrize("missed", [1, 70])
def test_what_was_decoded_without_drafting_is_caught_up_with(missed: int) -> None:
    drafter = a_drafter("gemma2")
    texts = [Text(index, list(prompt)) for index, prompt in enumerate(PROMPTS[:3])]
    grow_all(drafter, texts, levels=2, width=2)
    for text, count in zip(texts, (1, missed, 3), strict=True):  # every step commits something
        text.tokens += random_prompts([count], seed=text.id)[0]
    again = grow_all(drafter, texts, levels=3, width=2)
    for index, text in enumerate(texts):
        fresh = branches(grow_all(a_drafter("gemma2"), [Text(0, list(text.tokens))], levels=3, width=2))
        assert list(branches(again, index)) == list(fresh)
        assert list(branches(again, index).values()) == pytest.approx(list(fresh.values()), rel=1e-5)


def test_a_frontier_may_leave_requests_out() -> None:
    texts = [Text(index, prompt) for index, prompt in enumerate(PROMPTS)]
    drafter, whole = a_drafter(), grow_all(a_drafter(), texts, levels=2)
    forest = Forest(np.array([text.tokens[-1] for text in texts]))
    drafter.begin(texts, forest)
    nodes = forest.append(drafter.expand(forest, np.array([1, 3])))
    assert set(forest.request[nodes]) == {1, 3}
    forest.append(drafter.expand(forest, nodes[forest.request[nodes] == 3]))
    for index in (1, 3):
        mine, every = branches(forest, index), branches(whole, index)
        assert set(mine) <= set(every)
        assert list(mine.values()) == pytest.approx([every[path] for path in mine], rel=1e-5)


def test_a_frontier_may_come_in_any_order() -> None:
    texts = [Text(index, prompt) for index, prompt in enumerate(PROMPTS)]
    drafter, ordered = a_drafter(), grow_all(a_drafter(), texts, levels=3)
    forest = Forest(np.array([text.tokens[-1] for text in texts]))
    drafter.begin(texts, forest)
    frontier = np.array([2, 0, 3, 1])
    for _ in range(3):
        frontier = np.random.default_rng(0).permutation(forest.append(drafter.expand(forest, frontier)))
    for index in range(4):
        mine, expected = branches(forest, index), branches(ordered, index)
        assert set(mine) == set(expected)
        assert list(mine.values()) == pytest.approx([expected[path] for path in mine], rel=1e-5)


def test_proposals_stay_inside_the_targets_vocabulary() -> None:
    drafter = ModelDrafter(loaded(vocab=128), VOCAB, slots=1, window=200)
    forest = grow_all(drafter, [Text(0, list(PROMPTS[3]))], levels=3, width=8)
    assert forest.token.max() < VOCAB
    assert np.all(np.bincount(forest.parent[1:]) <= 10)


@pytest.mark.parametrize("length", [30, 31, 32, 33, 40])
def test_nothing_is_drafted_beyond_the_draft_models_window(length: int) -> None:
    model = loaded(window=32)
    drafter = ModelDrafter(model, VOCAB, slots=2, window=200)
    texts = [Text(0, PROMPTS[3][:length]), Text(1, PROMPTS[1])]
    forest = grow_all(drafter, texts, levels=4, width=1)
    deepest = max(forest.depth[forest.request == 0])
    assert deepest <= max(0, 32 - length)
    assert max(forest.depth[forest.request == 1]) == 4


def test_a_tiny_vocabulary_is_proposed_whole() -> None:
    drafter = ModelDrafter(loaded(vocab=5), 5, slots=1, window=200)
    forest = grow_all(drafter, [Text(0, [1, 2])], levels=1)
    assert sorted(forest.token[1:].tolist()) == [0, 1, 2, 3, 4]
    assert forest.path[1:].sum() == pytest.approx(1)


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
@pytest.mark.parametrize("shared", [20, 40])
def test_a_request_that_begins_like_another_gets_the_tree_of_one_alone(shared: int, ended: bool) -> None:
    drafter, beginning = a_drafter(), random_prompts([40], seed=12)[0]
    donor, text = Text(0, [*beginning, 5, 6]), Text(1, [*beginning[:shared], 7, 8, 9])
    grow_all(drafter, [donor], levels=2)
    if ended:
        drafter.retire(0)
    assert drafter.adopt(1, 0, shared) == shared
    assert drafter.runner.seating.cached[1] == shared
    forest = grow_all(drafter, [text] if ended else [donor, text], levels=3, width=3)
    mine, alone = branches(forest, 0 if ended else 1), branches(grow_all(a_drafter(), [text], levels=3, width=3))
    assert list(mine) == list(alone)
    assert list(mine.values()) == pytest.approx(list(alone.values()), rel=1e-6)
    # A donor that was never drafted for has nothing to give, and the new one reads everything itself.
    assert drafter.adopt(2, 99, shared) == shared
    assert 2 not in drafter.runner.seating.cached
