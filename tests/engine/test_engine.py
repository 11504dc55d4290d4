"""The step loop: caches after every step, acceptance, ends, joining and leaving, nothing left behind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from smartree import SamplingParams
from smartree.cost.profile import Profile
from smartree.drafters.base import Drafter
from smartree.drafters.joint import JointDrafter
from smartree.drafters.model import ModelDrafter
from smartree.drafters.ngram import NgramDrafter
from smartree.engine.engine import Engine
from smartree.engine.prompt_share import PromptShare
from smartree.engine.request import Request
from smartree.errors import InputError
from smartree.models.load import LoadedModel, prepare_model
from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner
from smartree.policies import Eagle2Policy, NonePolicy, Policy, make_policy
from smartree.tree.forest import Candidates, Forest, Ints, Proposal
from tests.tiny import (
    ScriptedDrafter,
    Truth,
    flat_profile,
    random_prompts,
    steep_profile,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("still_clock")
WINDOW = 128
PROMPTS = random_prompts([1, 4, 9, 17])


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return prepare_model(tiny_model("llama", window=WINDOW), None, "llama")


@pytest.fixture(scope="module")
def gemma() -> LoadedModel:
    return prepare_model(tiny_model("gemma2", window=WINDOW), None, "gemma2")


def policy(name: str, profile: Profile | None = None) -> Policy:
    return make_policy(name, (profile or flat_profile()).cost_model())


def finish(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    """Runs to the end; the outputs."""
    for _ in range(2000):
        if engine.unfinished == 0:
            break
        engine.step()
    assert engine.unfinished == 0
    assert engine.runner.seating.rows_in_use() == 0
    return [request.output for request in requests]


def decode(
    target: LoadedModel,
    drafter: Drafter | None,
    how: Policy,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    **settings: Any,
) -> list[Request]:
    engine = Engine(target, drafter, how, **settings)
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    requests = [engine.add(prompt, one) for prompt, one in zip(prompts, each, strict=True)]
    finish(engine, requests)
    return requests


def plain(
    target: LoadedModel,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    **settings: int,
) -> list[list[int]]:
    """Outputs of plain decoding, one request at a time."""
    return [request.output for request in decode(target, None, NonePolicy(), prompts, params, max_batch=1, **settings)]


def truth(target: LoadedModel, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Truth:
    outputs = plain(target, prompts, params)
    return Truth([list(prompt) + output for prompt, output in zip(prompts, outputs, strict=True)])


def assert_cache_is_plain(runner: ModelRunner, target: LoadedModel, requests: Sequence[Request]) -> int:
    """Every cached row of every live request equals that of its text run in one go; returns the rows compared."""
    compared = 0
    for request in requests:
        rows = runner.seating.cached.get(request.id, 0)
        if rows == 0:
            continue
        assert rows <= len(request.tokens)
        alone = ModelRunner(target, 1, WINDOW)
        alone.forward([causal_group(0, 0, rows)], np.array(request.tokens[:rows]))
        mine = runner.cache.values[:, runner.seating.slot(request.id), :, :rows]
        assert torch.allclose(mine, alone.cache.values[:, 0, :, :rows], rtol=1e-9, atol=1e-9)
        compared += rows
    return compared


# The cache


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["branching", "wrong", "ngram"])
@pytest.mark.parametrize("model", ["llama", "gemma"])
def test_after_every_step_the_cache_is_that_of_the_plain_prefix(
    model: str, drafter: str, temperature: float, request: pytest.FixtureRequest
) -> None:
    target: LoadedModel = request.getfixturevalue(model)
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=3)
    told = truth(target, PROMPTS, params)
    proposals = {"branching": ScriptedDrafter(told.branching), "wrong": ScriptedDrafter(told.wrong)}
    engine = Engine(target, proposals.get(drafter, NgramDrafter()), policy("smart"), max_batch=3, prefill_tokens=5)
    requests = [engine.add(prompt, params) for prompt in PROMPTS]
    compared = 0
    while engine.unfinished:
        engine.step()
        compared += assert_cache_is_plain(engine.runner, target, requests)
        for one in requests:
            decoding = one.output and one.finish_reason is None
            if decoding:  # all but the last token, which is the next root
                assert engine.runner.seating.cached[one.id] == len(one.tokens) - 1
    assert compared > 200
    assert sum(one.stats.verified for one in requests) > 20
    if drafter == "branching":
        assert sum(one.stats.accepted for one in requests) > 20


@pytest.mark.parametrize("weights", ["its own", "another"])
def test_after_every_step_the_draft_models_cache_is_that_of_the_plain_prefix(llama: LoadedModel, weights: str) -> None:
    draft_model = prepare_model(
        tiny_model("llama", seed=0 if weights == "its own" else 5, window=WINDOW), None, "draft"
    )
    drafter = ModelDrafter(draft_model, 97, slots=3, window=WINDOW, top_k=3)
    engine = Engine(llama, drafter, Eagle2Policy(total=12, depth=3, top_k=3), max_batch=3, prefill_tokens=7)
    params = SamplingParams(max_tokens=16, temperature=1.0, seed=1)
    requests = [engine.add(prompt, params) for prompt in PROMPTS]
    compared = 0
    while engine.unfinished:
        engine.step()
        assert_cache_is_plain(engine.runner, llama, requests)
        compared += assert_cache_is_plain(drafter.runner, draft_model, requests)
        for one in requests:
            rows = drafter.runner.seating.cached.get(one.id)
            if rows and one.stats.steps:  # accepted rows are kept: what is new is the bonus token and a leaf at most
                assert rows >= len(one.tokens) - 2
    assert compared > 100
    assert drafter.runner.seating.rows_in_use() == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_looked_up_nodes_that_a_draft_model_goes_on_from_stay_in_its_cache(
    llama: LoadedModel, temperature: float
) -> None:
    draft_model = prepare_model(tiny_model("llama", window=WINDOW), None, "draft")
    levels = ModelDrafter(draft_model, 97, slots=3, window=WINDOW, top_k=3)
    how = policy("smart", flat_profile(levels=True))
    engine = Engine(llama, JointDrafter(levels, NgramDrafter(shortest_match=1)), how, max_batch=3)
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=1)
    prompts = [prompt * 3 for prompt in PROMPTS[:3]]
    requests = [engine.add(prompt, params) for prompt in prompts]
    compared, gone_on = 0, 0
    told = how.grow

    def grow(forest: Forest, candidates: Candidates) -> Ints:
        nonlocal gone_on
        expanded = told(forest, candidates)
        gone_on += int(np.count_nonzero(expanded < forest.batch + forest.planted))
        return expanded

    how.grow = grow  # type: ignore[method-assign]
    while engine.unfinished:
        engine.step()
        assert_cache_is_plain(engine.runner, llama, requests)
        compared += assert_cache_is_plain(levels.runner, draft_model, requests)
    assert compared > 50
    assert gone_on > 5
    assert [request.output for request in requests] == plain(llama, prompts, params)


@pytest.mark.parametrize("drafter", ["branching", "itself"])
def test_outputs_that_outgrow_the_first_cache_rows(drafter: str) -> None:
    target = prepare_model(tiny_model("gemma3", window=2048), None, "target")
    prompts = random_prompts([490, 505, 3])
    params = SamplingParams(max_tokens=40)
    told = truth(target, prompts, params)
    proposals: Drafter = ScriptedDrafter(told.branching)
    if drafter == "itself":
        itself = prepare_model(tiny_model("gemma3", window=2048), None, "itself")
        proposals = ModelDrafter(itself, 97, 3, 2048, top_k=2)
    how = policy("smart", flat_profile(levels=drafter == "itself"))
    requests = decode(target, proposals, how, prompts, params, prefill_tokens=300)
    assert [one.output for one in requests] == plain(target, prompts, params)
    assert sum(one.stats.accepted for one in requests) > 60


# Acceptance


@pytest.mark.parametrize("top_k", [1, 3])
def test_the_targets_own_weights_as_drafter_are_accepted_at_every_depth(top_k: int) -> None:
    # Logits so peaked that the likeliest path is in every tree.
    target = prepare_model(tiny_model("llama", peak=40.0, window=WINDOW), None, "target")
    itself = prepare_model(tiny_model("llama", peak=40.0, window=WINDOW), None, "itself")
    depth = 5
    requests = decode(
        target,
        ModelDrafter(itself, 97, slots=4, window=WINDOW, top_k=top_k),
        Eagle2Policy(total=40, depth=depth - 1, top_k=top_k),
        PROMPTS,
        SamplingParams(max_tokens=1 + 6 * (depth + 1)),
    )
    assert [one.output for one in requests] == plain(target, PROMPTS, SamplingParams(max_tokens=37))
    for one in requests:
        # Every step commits a whole path and the bonus token: the drafter's cache misses nothing either.
        assert one.stats.steps == 6
        assert one.stats.tau == depth + 1
        assert one.stats.accepted_by_depth == one.stats.observed_by_depth == [6] * depth


def test_a_drafter_that_is_always_wrong_changes_nothing_and_accepts_nothing(llama: LoadedModel) -> None:
    params = SamplingParams(max_tokens=12)
    drafter = ScriptedDrafter(truth(llama, PROMPTS, params).wrong)
    requests = decode(llama, drafter, policy("eagle2"), PROMPTS, params)
    assert [one.output for one in requests] == plain(llama, PROMPTS, params)
    for one in requests:
        assert one.stats.accepted == 0
        assert one.stats.verified > 12
        assert one.stats.tau == 1
        assert one.stats.steps == 11
        # Put to the test in every step that had room for a node, and below the first rejection never.
        assert (one.stats.observed_by_depth, one.stats.accepted_by_depth) == ([10], [0])


def test_a_first_token_that_is_always_wrong_is_never_committed(llama: LoadedModel) -> None:
    params = SamplingParams(max_tokens=12)
    told = truth(llama, PROMPTS, params)

    def first_wrong(text: Sequence[int]) -> list[tuple[int, float]]:
        token = told.next(text)
        if token is not None:
            return [((token + 1) % 97, 0.99)]
        return told.oracle(text[:-1]) or [(3, 0.99)]  # below a wrong token, what would have been right in its place

    for name in ("smart", "paper", "eagle2"):
        requests = decode(llama, ScriptedDrafter(first_wrong), policy(name), PROMPTS, params)
        assert [one.output for one in requests] == plain(llama, PROMPTS, params)
        assert sum(one.stats.verified for one in requests) > 40
        assert sum(one.stats.accepted for one in requests) == 0


def test_an_oracle_is_accepted_to_its_depth(llama: LoadedModel) -> None:
    params = SamplingParams(max_tokens=21, temperature=1.0, seed=2)
    drafter = ScriptedDrafter(truth(llama, PROMPTS, params).oracle, max_depth=4)
    requests = decode(llama, drafter, policy("smart"), PROMPTS, params)
    assert [one.output for one in requests] == plain(llama, PROMPTS, params)
    assert [one.stats.tau for one in requests] == [5.0] * 4
    assert [one.stats.steps for one in requests] == [4] * 4
    assert all(one.stats.sizes == {4: 4} for one in requests)


# Ends


@pytest.mark.parametrize("drafter", ["ngram", "model", "oracle", "none"])
def test_exactly_as_many_tokens_as_asked_for(llama: LoadedModel, drafter: str) -> None:
    whole = plain(llama, PROMPTS, SamplingParams(max_tokens=20))
    told = Truth([prompt + output for prompt, output in zip(PROMPTS, whole, strict=True)])
    made: dict[str, Drafter] = {
        "ngram": NgramDrafter(),
        "model": ModelDrafter(prepare_model(tiny_model("llama", window=WINDOW), None, "draft"), 97, 4, WINDOW, top_k=2),
        "oracle": ScriptedDrafter(told.oracle, max_depth=6),
    }
    for most in range(1, 21):
        how = policy("smart", flat_profile(levels=drafter == "model")) if drafter != "none" else NonePolicy()
        requests = decode(llama, made.get(drafter), how, PROMPTS, SamplingParams(max_tokens=most))
        assert [one.output for one in requests] == [output[:most] for output in whole]
        assert {one.finish_reason for one in requests} == {"length"}
        # The first token comes from the prompt's own pass; no step is made for nothing.
        assert [one.stats.tokens for one in requests] == [most - 1] * 4
        if drafter == "oracle":
            assert [one.stats.steps for one in requests] == [-(-(most - 1) // 7)] * 4


def test_the_end_of_sequence_inside_an_accepted_path_ends_the_output(llama: LoadedModel) -> None:
    free = plain(llama, PROMPTS[1:2], SamplingParams(max_tokens=12))[0]
    place = next(index for index in range(2, 10) if free.index(free[index]) == index and index % 5 in (2, 3))
    end = free[place]  # in the middle of what the oracle proposes: a, EOS, b, c
    target = prepare_model(tiny_model("llama", window=WINDOW, eos=end), None, "with eos")
    assert target.eos_ids == {end}
    told = Truth([PROMPTS[1] + free])
    for ignore in (False, True):
        params = SamplingParams(max_tokens=12, ignore_eos=ignore)
        drafter = ScriptedDrafter(told.oracle)
        engine = Engine(target, drafter, policy("smart"))
        request = engine.add(PROMPTS[1], params)
        (output,) = finish(engine, [request])
        assert output == (free if ignore else free[: place + 1])
        assert request.finish_reason == ("length" if ignore else "stop")
        if not ignore:
            assert request.stats.accepted > request.stats.tokens - request.stats.steps  # the target agreed beyond it
        assert drafter.released == [request.id]


def test_stop_tokens_of_a_request_are_its_own(llama: LoadedModel) -> None:
    whole = plain(llama, PROMPTS, SamplingParams(max_tokens=20))
    told = Truth([prompt + output for prompt, output in zip(PROMPTS, whole, strict=True)])
    params = [SamplingParams(max_tokens=20, stop_token_ids=(whole[0][5], 96)), *[SamplingParams(max_tokens=20)] * 3]
    requests = decode(llama, ScriptedDrafter(told.branching), policy("smart"), PROMPTS, params)
    cut = min(index for index, token in enumerate(whole[0]) if token in params[0].stop_token_ids)
    assert [one.output for one in requests] == [whole[0][: cut + 1], *whole[1:]]
    assert [one.finish_reason for one in requests] == ["stop", "length", "length", "length"]


@pytest.mark.parametrize("drafter", ["oracle", "ngram", "model"])
@pytest.mark.parametrize("room", [1, 2, 3, 7])
def test_prompts_that_end_just_before_the_window(llama: LoadedModel, room: int, drafter: str) -> None:
    window = 40
    (prompt,) = random_prompts([window - room], seed=4)
    (whole,) = plain(llama, [prompt], SamplingParams(max_tokens=room))
    draft_model = prepare_model(tiny_model("llama", window=window), None, "draft")
    made: dict[str, Drafter] = {
        "oracle": ScriptedDrafter(Truth([[*prompt, *whole, 1, 2, 3, 4]]).oracle),
        "ngram": NgramDrafter(),
        "model": ModelDrafter(draft_model, 97, 1, window, top_k=2),
    }
    how = policy("smart", flat_profile(levels=drafter == "model"))
    (request,) = decode(llama, made[drafter], how, [prompt], SamplingParams(max_tokens=99), window=window)
    assert request.output == whole
    assert request.finish_reason == "length"


def test_the_window_is_the_smaller_of_the_models_and_the_callers(llama: LoadedModel) -> None:
    assert Engine(llama, None, NonePolicy()).window == WINDOW
    assert Engine(llama, None, NonePolicy(), window=20).window == 20
    assert Engine(llama, None, NonePolicy(), window=10**6).window == WINDOW


@pytest.mark.parametrize(
    ("prompt", "params", "reason"),
    [
        ([], SamplingParams(), "empty"),
        ([1] * WINDOW, SamplingParams(), f"window is {WINDOW}"),
        ([1, 97], SamplingParams(), "97 is not in the vocabulary"),
        ([1, -1], SamplingParams(), "-1 is not in the vocabulary"),
        ([1], SamplingParams(stop=("x",)), "tokenizer"),
    ],
)
def test_prompts_that_cannot_be_used(
    llama: LoadedModel, prompt: list[int], params: SamplingParams, reason: str
) -> None:
    engine = Engine(llama, None, NonePolicy())
    with pytest.raises(InputError, match=reason) as error:
        engine.add(prompt, params)
    assert "\n" not in str(error.value)
    assert engine.unfinished == 0


# Joining and leaving


def test_one_request_ends_early_and_the_others_go_on(llama: LoadedModel) -> None:
    params = [SamplingParams(max_tokens=most) for most in (3, 18, 1, 9)]
    engine = Engine(llama, NgramDrafter(), policy("smart"))
    requests = [engine.add(prompt, one) for prompt, one in zip(PROMPTS, params, strict=True)]
    assert finish(engine, requests) == plain(llama, PROMPTS, params)


@pytest.mark.parametrize("drafter", ["ngram", "model", "noisy"])
@pytest.mark.parametrize("seed", [0, 1])
def test_random_joins_leaves_and_aborts_leave_every_output_as_alone(
    llama: LoadedModel, drafter: str, seed: int
) -> None:
    draw = random.Random(seed)

    def noisy(text: Sequence[int]) -> list[tuple[int, float]]:
        """The target's own choice among others, now and then: rows are accepted anywhere in the tree."""
        return [((sum(text) * factor + factor) % 97, 0.3) for factor in (1, 5, 11)][: 1 + sum(text) % 3]

    made: dict[str, Drafter] = {
        "ngram": NgramDrafter(),
        "model": ModelDrafter(prepare_model(tiny_model("llama", window=WINDOW), None, "draft"), 97, 4, WINDOW, top_k=3),
        "noisy": ScriptedDrafter(noisy, max_depth=3),
    }
    how = policy("smart", flat_profile(levels=True)) if drafter == "model" else policy("smart")
    engine = Engine(llama, made[drafter], how, max_batch=4, prefill_tokens=9)
    waiting = [
        (
            random_prompts([draw.randint(1, 40)], seed=draw.randrange(10**6))[0],
            SamplingParams(
                max_tokens=draw.randint(1, 20), temperature=draw.choice([0.0, 1.0]), seed=draw.randrange(99)
            ),
        )
        for _ in range(40)
    ]
    alive: list[Request] = []
    ended: list[tuple[list[int], SamplingParams, Request]] = []
    given: dict[int, tuple[list[int], SamplingParams]] = {}
    aborted = 0
    while waiting or engine.unfinished:
        while waiting and draw.random() < 0.4:
            prompt, params = waiting.pop()
            alive.append(engine.add(prompt, params))
            given[alive[-1].id] = (prompt, params)
        if alive and draw.random() < 0.05:
            gone = alive.pop(draw.randrange(len(alive)))
            engine.abort(gone)
            aborted += 1
        if engine.unfinished:
            for request in engine.step():
                if request.finish_reason is not None:
                    alive.remove(request)
                    ended.append((*given[request.id], request))
        seating = engine.runner.seating
        slots = [seating.slot(request_id) for request_id in seating.cached]
        assert len(slots) == len(set(slots)) <= 4
        assert set(seating.cached) <= {request.id for request in alive}
        if draw.random() < 0.2:
            assert_cache_is_plain(engine.runner, llama, alive)
    assert engine.unfinished == seating.rows_in_use() == 0
    assert aborted > 2
    assert len(ended) == 40 - aborted
    assert sum(request.stats.verified for _, _, request in ended) > 100
    alone = plain(llama, [prompt for prompt, _, _ in ended], [params for _, params, _ in ended])
    assert [request.output for _, _, request in ended] == alone
    if isinstance(engine.drafter, ModelDrafter):
        assert engine.drafter.runner.seating.rows_in_use() == 0


def test_a_request_may_be_aborted_wherever_it_is(llama: LoadedModel) -> None:
    engine = Engine(llama, NgramDrafter(), policy("smart"), max_batch=2, prefill_tokens=10)
    params = SamplingParams(max_tokens=15)
    prompts = random_prompts([3, 50, 8, 8], seed=7)
    decoding, joining, waiting, kept = [engine.add(prompt, params) for prompt in prompts]
    engine.step()
    assert decoding.output
    assert not joining.output
    for request in (waiting, joining, decoding):
        engine.abort(request)
        assert request.finish_reason is None
    assert engine.unfinished == 1
    assert engine.runner.seating.rows_in_use() == 0
    assert finish(engine, [kept]) == plain(llama, [prompts[3]], params)


def test_prompts_share_a_step_by_how_many_join_and_how_many_decode(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    tokens = PromptShare.tokens

    def noted(self: PromptShare, decoding: Sequence[Request], joining: int = 1) -> int:
        asked.append((len(decoding), joining))
        return tokens(self, decoding, joining)

    monkeypatch.setattr(PromptShare, "tokens", noted)
    engine = Engine(llama, None, NonePolicy(), max_batch=4, prefill_tokens=6)
    for prompt in random_prompts([5, 9, 20, 20], seed=1):
        engine.add(prompt, SamplingParams(max_tokens=30))
    for _ in range(4):
        engine.step()
    assert asked[0] == (0, 4)
    assert all(sum(one) == 4 for one in asked)
    assert any(decoding for decoding, _ in asked)


def test_prompts_longer_than_the_budget_do_not_hold_up_the_others(llama: LoadedModel) -> None:
    engine = Engine(llama, None, NonePolicy(), prefill_tokens=6)
    short = engine.add([1, 2, 3], SamplingParams(max_tokens=30))
    engine.step()
    long = engine.add(random_prompts([60])[0], SamplingParams(max_tokens=2))
    while not long.output:
        before = len(short.output)
        engine.step()
        assert len(short.output) == before + 1
    assert len(short.output) >= 60 // 6


def test_prompts_are_read_at_once_while_only_the_end_counts_and_then_in_pieces_again(llama: LoadedModel) -> None:
    def steps_to_read(hurry: bool) -> int:
        engine = Engine(llama, None, policy("none", steep_profile()), max_batch=2)
        engine.add([1, 2, 3], SamplingParams(max_tokens=100, ignore_eos=True))
        engine.step()
        long = engine.add(random_prompts([120])[0], SamplingParams(max_tokens=2, ignore_eos=True))
        steps = 0
        with engine.in_a_hurry() if hurry else nullcontext():
            while not long.output:
                engine.step()
                steps += 1
        assert engine.share.limited
        return steps

    assert steps_to_read(hurry=True) == 1
    assert steps_to_read(hurry=False) > 3


# Books


def test_the_books_balance(llama: LoadedModel) -> None:
    told = truth(llama, PROMPTS, SamplingParams(max_tokens=15))
    engine = Engine(llama, ScriptedDrafter(told.branching), policy("smart"), max_batch=3)
    engine.traces = []
    requests = [engine.add(prompt, SamplingParams(max_tokens=15)) for prompt in PROMPTS]
    finish(engine, requests)
    stats, each = engine.stats, [request.stats for request in requests]
    assert stats.tokens == 4 * 15
    assert stats.first_tokens == 4
    assert stats.requests_decoded == sum(one.steps for one in each) == len(engine.traces)
    assert stats.verified_rows == sum(one.verified + one.steps for one in each)
    assert stats.tau == pytest.approx(sum(one.tokens for one in each) / sum(one.steps for one in each))
    assert 0 < stats.target_seconds + stats.draft_seconds <= stats.seconds
    assert 0 < stats.compared_steps <= stats.decode_steps <= stats.steps
    for request, one in zip(requests, each, strict=True):
        assert one.tokens == one.steps + one.accepted == 14
        assert sum(one.accepted_by_depth) == one.accepted
        assert sum(one.sizes.values()) == one.steps
        assert sum(size * steps for size, steps in one.sizes.items()) == one.verified
        assert all(hit <= seen for hit, seen in zip(one.accepted_by_depth, one.observed_by_depth, strict=True))
        traces = [trace for trace in engine.traces if trace.request_id == request.id]
        assert [token for trace in traces for token in trace.tokens] == request.output[1:]
        assert [trace.root for trace in traces] == [
            request.output[sum(len(earlier.tokens) for earlier in traces[:place])] for place in range(len(traces))
        ]
        assert sum(len(trace.nodes) for trace in traces) == one.drafted
        assert sum(node.verified for trace in traces for node in trace.nodes) == one.verified
        assert sum(node.accepted for trace in traces for node in trace.nodes) == one.accepted
        for trace in traces:
            path = [node.token for node in trace.nodes if node.accepted]
            assert trace.tokens[:-1] == tuple(path)
            for node in trace.nodes:
                assert node.verified or not node.accepted
                above = trace.nodes[node.parent].path if node.parent >= 0 else 1.0
                assert node.path == pytest.approx(above * node.probability)


def test_drafts_that_were_not_verified_are_learned_from(llama: LoadedModel) -> None:
    # On a steep device hardly anything is verified; lookup still learns what would have been accepted.
    drafter = NgramDrafter()
    before = drafter.acceptance.rates()
    requests = decode(
        llama, drafter, policy("smart", steep_profile()), random_prompts([40] * 3), SamplingParams(max_tokens=40)
    )
    assert sum(request.stats.drafted for request in requests) > 3 * sum(request.stats.verified for request in requests)
    assert np.any(drafter.acceptance.rates() != before)


# Switching itself off and on


def verified_per_step(target: LoadedModel, profile: Profile, drafter: Drafter, prompts: list[list[int]]) -> list[float]:
    """Mean verified nodes a request and step, for every tenth of the steps."""
    engine = Engine(target, drafter, policy("smart", profile))
    engine.traces = []
    params = SamplingParams(max_tokens=100, temperature=1.0, seed=5)
    finish(engine, [engine.add(prompt, params) for prompt in prompts])
    nodes = [sum(node.verified for node in trace.nodes) for trace in engine.traces]
    return [float(np.mean(part)) for part in np.array_split(nodes, 10)]


def test_on_random_text_lookup_switches_itself_off_where_rows_are_dear_and_goes_on_where_they_are_free() -> None:
    # Nearly uniform outputs: what was said before says nothing about what comes next.
    target = prepare_model(tiny_model("llama", peak=0.3, window=WINDOW), None, "random")
    prompts = random_prompts([20, 20, 20], seed=9)
    steep = verified_per_step(target, steep_profile(), NgramDrafter(), prompts)
    assert max(steep[1:]) < 0.1
    flat = verified_per_step(target, flat_profile(), NgramDrafter(), prompts)
    assert min(flat[1:]) > 0.2  # as often as there is something to look up
    assert sum(flat) > 20 * sum(steep[1:])


def test_a_drafter_that_turns_useless_is_dropped_within_a_bounded_number_of_steps(llama: LoadedModel) -> None:
    # It promises 0.9 and keeps nothing: the engine's calibration finds out.
    params = SamplingParams(max_tokens=80)
    drafter = ScriptedDrafter(truth(llama, PROMPTS[:1], params).wrong, max_depth=1)
    drafter.calibrated = False
    engine = Engine(llama, drafter, policy("smart", steep_half()))
    engine.traces = []
    request = engine.add(PROMPTS[0], params)
    finish(engine, [request])
    sizes = [sum(node.verified for node in trace.nodes) for trace in engine.traces]
    assert sum(sizes[:5]) > 0
    assert sum(sizes[40:]) <= 4  # a look from time to time
    assert request.stats.accepted == 0


def steep_half() -> Profile:
    """Every row costs half a plain step: worth it for a node that is accepted nine times in ten."""
    profile = steep_profile()
    points = tuple(
        type(point)(point.batch, point.tokens, point.context, 0.01 * (point.batch + (point.tokens - point.batch) / 2))
        for point in profile.verify
    )
    return Profile(None, points)


# Gatekeeping


def test_sampled_proposals_are_refused_before_anything_is_decoded(llama: LoadedModel) -> None:
    sampled = ScriptedDrafter(lambda text: [], proposal=Proposal.SAMPLED)
    for name in ("smart", "paper", "eagle2"):
        with pytest.raises(InputError, match="biases"):
            Engine(llama, sampled, policy(name))


def test_a_target_may_know_more_tokens_than_its_draft_model(llama: LoadedModel) -> None:
    # Padded vocabularies: the target's rows beyond the draft model's are tokens like any others to it.
    target = prepare_model(tiny_model("llama", vocab=128, window=WINDOW), None, "padded")
    draft_model = prepare_model(tiny_model("llama", vocab=97, window=WINDOW), None, "draft")
    prompts = random_prompts([6, 11], vocab=128, seed=3)
    params = SamplingParams(max_tokens=20)
    expected = plain(target, prompts, params)
    assert max(max(output) for output in expected) >= 97
    drafter = ModelDrafter(draft_model, 128, slots=2, window=WINDOW, top_k=2)
    how = policy("smart", flat_profile(levels=True))
    assert [request.output for request in decode(target, drafter, how, prompts, params)] == expected
