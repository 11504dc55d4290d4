"""Under load: whatever joins, leaves, waits or is thrown out, every output is that of the request alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from smartree import SamplingParams
from smartree.drafters.ngram import NgramDrafter
from smartree.engine.budget import BLOCK
from smartree.engine.engine import Engine
from smartree.engine.request import Request
from smartree.errors import InputError
from smartree.models.load import prepare_model
from smartree.policies import NonePolicy
from smartree.train.recorder import FeatureRecorder
from tests.engine import load
from tests.tiny import ScriptedDrafter, character_tokenizer, random_prompts, tiny_model

pytestmark = pytest.mark.usefixtures("still_clock")


class Clock:
    """One that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Load(RuleBasedStateMachine):
    """Requests come, are aborted, run out of time and are decoded, in any order."""

    drafting = "none"
    reuse = True

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.engine = Engine(
            load.target(),
            load.drafter(self.drafting),
            load.policy(self.drafting),
            max_batch=load.BATCH,
            prefill_tokens=12,
            cache_tokens=6 * BLOCK,
            prefix_reuse=self.reuse,
            clock=self.clock,
        )
        self.alive: list[Request] = []
        self.over: list[Request] = []
        self.aborted: list[Request] = []

    @rule(
        prompt=st.sampled_from(load.PROMPTS),
        params=st.sampled_from(load.PARAMS),
        timeout=st.sampled_from([None, None, None, 5.0]),
    )
    def add(self, prompt: list[int], params: SamplingParams, timeout: float | None) -> None:
        self.alive.append(self.engine.add(prompt, params, timeout))

    @rule(data=st.data())
    @precondition(lambda self: self.alive)
    def abort(self, data: st.DataObject) -> None:
        request = self.alive.pop(data.draw(st.integers(0, len(self.alive) - 1)))
        self.engine.abort(request)
        self.engine.abort(request)  # twice is harmless
        self.aborted.append(request)

    @rule(seconds=st.sampled_from([1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            before = {request.id: len(request.tokens) for request in self.engine.scheduler.decoding}
            due = {one.id for one in self.alive if one.deadline is not None and one.deadline <= self.clock.now}
            moved = self.engine.step()
            for request in self.alive:
                # Whoever decoded went on, unless it ran out of time or of rows.
                if request.id in before and not request.stats.preemptions and request.id not in due:
                    assert len(request.tokens) > before[request.id]
            assert {request.id for request in moved if request.finish_reason == "timeout"} == due
            for request in moved:
                if request.finish_reason is not None:
                    self.alive.remove(request)
                    self.over.append(request)

    @invariant()
    def books(self) -> None:
        engine, seating = self.engine, self.engine.runner.seating
        assert engine.unfinished == len(self.alive)
        assert set(seating.cached) <= {request.id for request in self.alive}
        held = [*seating.cached, *seating.retired]
        slots = [seating.slot(request_id) for request_id in held]
        assert len(set(slots)) == len(slots) <= load.BATCH + 1
        rows = [*seating.cached.values(), *seating.retired.values()]
        assert sum(-(-count // BLOCK) for count in rows) <= engine.budget.total

    def teardown(self) -> None:
        load.run(self.engine)
        for request in [*self.alive, *self.over, *self.aborted]:
            load.assert_like_solo(request)
        load.assert_nothing_is_held(self.engine)


@pytest.mark.parametrize("reuse", [True, False], ids=["reuse", "no reuse"])
@pytest.mark.parametrize("drafting", load.DRAFTERS)
def test_any_load_gives_every_request_its_own_output(drafting: str, reuse: bool) -> None:
    machine: Any = type("Machine", (Load,), {"drafting": drafting, "reuse": reuse})
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    examples = 8 if reuse else 3
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=checks),
    )


def churn(engine: Engine, clock: Clock, requests: int, seed: int) -> list[Request]:
    """A long queue of random requests, some of which are aborted or run out of time; all of them, over."""
    draw = random.Random(seed)
    made: list[Request] = []
    while len(made) < requests or engine.unfinished:
        while len(made) < requests and engine.unfinished < 2 * load.BATCH:
            timeout = 8.0 if draw.random() < 0.3 else None
            made.append(engine.add(draw.choice(load.PROMPTS), draw.choice(load.PARAMS), timeout))
        if draw.random() < 0.02:
            engine.abort(draw.choice(made))
        clock.now += draw.random()
        engine.step()
    return made


@pytest.mark.parametrize("drafting", load.DRAFTERS)
def test_rows_are_taken_back_and_handed_on_and_nothing_shows(drafting: str) -> None:
    clock = Clock()
    engine = Engine(
        load.target(),
        load.drafter(drafting),
        load.policy(drafting),
        max_batch=load.BATCH,
        prefill_tokens=16,
        cache_tokens=6 * BLOCK,
        clock=clock,
    )
    requests: list[Request] = []
    # How much is drafted, and so how much room there is, depends on real times a little: go on until all has happened.
    for seed in range(12):
        requests += churn(engine, clock, 25, seed=seed)
        if engine.stats.preemptions > 1 and engine.stats.reused_tokens > 0 and len(requests) > 25:
            break
    for request in requests:
        load.assert_like_solo(request)
    load.assert_nothing_is_held(engine)
    stats, each = engine.stats, [request.stats for request in requests]
    assert stats.preemptions == sum(one.preemptions for one in each) > 1
    assert stats.reused_tokens == sum(one.reused for one in each) > 0
    assert "timeout" in {request.finish_reason for request in requests}
    if drafting != "none":
        assert sum(one.accepted for one in each) > 0


@pytest.mark.slow
@pytest.mark.parametrize("drafting", ["ngram", "head+ngram"])
def test_ten_thousand_steps_leave_nothing_behind(drafting: str) -> None:
    clock = Clock()
    engine = Engine(
        load.target(),
        load.drafter(drafting),
        load.policy(drafting),
        max_batch=load.BATCH,
        cache_tokens=6 * BLOCK,
        clock=clock,
    )
    seed = 0
    while engine.stats.steps < 10_000:
        for request in churn(engine, clock, 100, seed=seed):
            load.assert_like_solo(request)
        load.assert_nothing_is_held(engine)
        assert len(engine.runner.seating.retired) <= load.BATCH + 1
        seed += 1
    assert engine.runner.cache.rows <= load.WINDOW + 64


# Running out of rows


def tight(blocks: int, **settings: Any) -> Engine:
    drafter = ScriptedDrafter(lambda text: [])
    return Engine(load.target(), drafter, NonePolicy(), cache_tokens=blocks * BLOCK, max_batch=4, **settings)


def test_requests_reserve_what_they_have_and_not_what_they_may_get() -> None:
    engine = tight(6)
    requests = [engine.add(prompt, SamplingParams(max_tokens=60)) for prompt in random_prompts([5, 6, 7])]
    engine.step()
    # Each may need five blocks; all three run on two each.
    assert all(request.output for request in requests)
    load.run(engine, requests)


def test_the_youngest_is_preempted_and_goes_on_where_it_was() -> None:
    engine = tight(6, prefix_reuse=False)
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=11)
    old, young = [engine.add(prompt, params) for prompt in random_prompts([30, 31], seed=6)]
    seen: list[int] = []
    while old.finish_reason is None:
        engine.step()
        assert young.output[: len(seen)] == seen  # nothing is taken back
        seen = young.output
    assert old.stats.preemptions == 0
    assert young.stats.preemptions == 1
    assert isinstance(engine.drafter, ScriptedDrafter)
    assert engine.drafter.released[0] == young.id  # it learns the request anew
    load.run(engine, [old, young])
    assert young.stats.steps + 1 + young.stats.preemptions == len(young.output)
    assert engine.stats.first_tokens == 3


def test_stop_strings_and_counts_survive_preemption() -> None:
    tokenizer = character_tokenizer()
    target = prepare_model(tiny_model("llama", window=load.WINDOW), tokenizer, "with text")
    prompts = random_prompts([30, 31], seed=6)

    def output(prompts: list[list[int]], stop: tuple[str, ...], blocks: int) -> list[Request]:
        engine = Engine(target, None, NonePolicy(), cache_tokens=blocks * BLOCK)
        requests = [engine.add(prompt, SamplingParams(max_tokens=60, stop=stop)) for prompt in prompts]
        while engine.unfinished:
            engine.step()
        return requests

    free = output(prompts[1:], (), 100)[0].output
    text = str(tokenizer.decode(free))
    stop = text[38:42]  # it begins before the young one is thrown out or after, wherever that is
    expected = output(prompts[1:], (stop,), 100)[0]
    _, young = output(prompts, (stop,), 6)
    assert young.stats.preemptions == 1
    assert (young.output, young.finish_reason) == (expected.output, expected.finish_reason)
    assert young.stop_text is not None
    assert expected.stop_text is not None
    assert young.stop_text.cut == expected.stop_text.cut


def test_a_request_larger_than_the_whole_cache_is_refused() -> None:
    engine = tight(4)
    assert engine.add([1] * 30, SamplingParams(max_tokens=35))
    with pytest.raises(InputError, match="30 tokens with max_tokens 36 needs 65 cache rows, but there are 64"):
        engine.add([1] * 30, SamplingParams(max_tokens=36))
    with pytest.raises(InputError, match="cache_tokens is 15"):
        Engine(load.target(), None, NonePolicy(), cache_tokens=15)


def test_trees_take_only_rows_that_are_free() -> None:
    wide = ScriptedDrafter(lambda text: [(token, 0.5) for token in range(20)], max_depth=1)
    how = load.policy("ngram")
    prompts = random_prompts([30, 31], seed=6)
    sizes = {}
    for blocks in (5, 100):
        engine = Engine(load.target(), wide, how, cache_tokens=blocks * BLOCK, max_batch=4)
        requests = [engine.add(prompt, SamplingParams(max_tokens=10)) for prompt in prompts]
        load.run(engine, requests)
        assert engine.stats.preemptions == (blocks == 5)
        sizes[blocks] = {size for request in requests for size in request.stats.sizes}
    assert sizes[100] == {0, 20}  # none before the last token
    assert any(0 < size < 20 for size in sizes[5])


# Order and time


def test_requests_are_served_in_the_order_they_came() -> None:
    engine = Engine(load.target(), None, NonePolicy(), max_batch=2, prefill_tokens=8)
    requests = [engine.add(prompt, SamplingParams(max_tokens=6)) for prompt in random_prompts([7] * 8, seed=5)]
    first_steps: dict[int, int] = {}
    steps = 0
    while engine.unfinished:
        for request in engine.step():
            first_steps.setdefault(request.id, steps)
        steps += 1
    assert list(first_steps) == [request.id for request in requests]
    assert sorted(first_steps.values()) == list(first_steps.values())


def test_decoding_requests_move_on_in_every_step_while_a_long_prompt_joins() -> None:
    engine = Engine(load.target(), NgramDrafter(), load.policy("ngram"), max_batch=4, prefill_tokens=6)
    decoding = [engine.add(prompt, SamplingParams(max_tokens=60)) for prompt in random_prompts([2, 3])]
    while not all(request.output for request in decoding):
        engine.step()
    long = engine.add(random_prompts([60])[0], SamplingParams(max_tokens=2))
    steps = 0
    while not long.output:
        before = [len(request.output) for request in decoding]
        engine.step()
        steps += 1
        assert all(len(one.output) > count for one, count in zip(decoding, before, strict=True) if count < 60)
    assert steps == 60 // 6


def test_a_request_out_of_time_ends_with_what_it_has_wherever_it_is() -> None:
    clock = Clock()
    engine = Engine(load.target(), None, NonePolicy(), max_batch=2, prefill_tokens=4, clock=clock)
    prompts = random_prompts([2, 40, 3], seed=7)
    params = SamplingParams(max_tokens=30)
    decoding, joining, waiting = requests = [engine.add(prompt, params, 10.0) for prompt in prompts]
    for _ in range(3):
        engine.step()
    assert decoding.output
    assert not joining.output
    clock.now += 10.0
    assert set(engine.step()) == set(requests)
    assert [request.finish_reason for request in requests] == ["timeout"] * 3
    for request in requests:
        load.assert_like_solo(request)
    assert waiting.output == []
    assert engine.step() == []  # nothing to do is harmless
    load.assert_nothing_is_held(engine)
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(InputError, match="timeout is"):
            engine.add([1], params, wrong)


def test_an_abort_from_inside_a_step_waits_for_its_end() -> None:
    engine: Engine
    requests: list[Request] = []

    def children(text: Any) -> list[tuple[int, float]]:
        if len(requests[0].output) == 3:
            engine.abort(requests[0])
        return [(1, 0.5)]

    engine = Engine(load.target(), ScriptedDrafter(children), load.policy("ngram"))
    requests += [engine.add(prompt, SamplingParams(max_tokens=9)) for prompt in random_prompts([3, 4])]
    load.run(engine, requests[1:])
    assert requests[0].finish_reason is None
    assert len(requests[0].output) >= 4
    load.assert_like_solo(requests[0])
    load.assert_nothing_is_held(engine)


# Equal beginnings


@pytest.mark.parametrize("drafting", load.DRAFTERS)
def test_samples_of_one_prompt_read_it_once(drafting: str) -> None:
    engine = Engine(
        load.target(), load.drafter(drafting), load.policy(drafting), max_batch=load.BATCH, prefill_tokens=20
    )
    params = [SamplingParams(max_tokens=9, temperature=1.0, seed=seed) for seed in range(3)]
    requests = [engine.add(load.SYSTEM, one) for one in params]
    load.run(engine, requests)
    # The first reads 40 tokens in two steps, the others wait for it and read the last one.
    assert engine.stats.reused_tokens == 2 * 39
    assert engine.stats.read_tokens + engine.stats.reused_tokens == 3 * 40
    assert [request.stats.reused > 0 for request in requests] == [False, True, True]


@pytest.mark.parametrize("drafting", load.DRAFTERS)
def test_the_next_turn_of_a_conversation_reads_only_what_is_new(drafting: str) -> None:
    engine = Engine(load.target(), load.drafter(drafting), load.policy(drafting), max_batch=1)
    text = load.SYSTEM[:20]
    for turn in range(3):
        read = engine.stats.read_tokens
        request = engine.add(text, SamplingParams(max_tokens=12))
        load.run(engine, [request])
        if turn and not drafting.startswith("head"):  # a head has the rows that it read before the last level
            assert engine.stats.read_tokens - read <= 2 + 4
        if turn:
            assert request.stats.reused >= 16
        text = [*request.tokens, 3, 1, 4, 1]
    load.assert_nothing_is_held(engine)


def test_reuse_can_be_switched_off_and_is_off_for_drafters_that_cannot_follow() -> None:
    for engine in (
        Engine(load.target(), None, NonePolicy(), prefix_reuse=False),
        Engine(load.target(), FeatureRecorder((0, 1)), NonePolicy()),
    ):
        requests = [engine.add(load.SYSTEM, SamplingParams(max_tokens=3)) for _ in range(3)]
        load.run(engine, requests)
        assert engine.stats.reused_tokens == 0
        assert dict(engine.runner.seating.retired) == {}


def test_rows_of_ended_requests_make_way() -> None:
    engine = tight(6)
    load.run(engine, [engine.add(load.SYSTEM, SamplingParams(max_tokens=5))])
    assert sum(engine.runner.seating.retired.values()) > 40
    other = engine.add(random_prompts([60], seed=9)[0], SamplingParams(max_tokens=20))
    load.run(engine, [other])
    assert other.stats.preemptions == 0
    again = engine.add(load.SYSTEM, SamplingParams(max_tokens=5))
    load.run(engine, [again])
    assert again.stats.reused == 0
