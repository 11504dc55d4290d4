"""Who takes part in a step: order, budget, places, and no leak over many steps."""

from __future__ import annotations

import random
from itertools import count

import pytest

from smartree.engine.budget import BLOCK, RowBudget
from smartree.engine.request import Request
from smartree.engine.scheduler import Scheduler, StepPlan
from smartree.models.seating import Seating
from smartree.sampling_params import SamplingParams

IDS = count()


def a_request(length: int) -> Request:
    return Request(next(IDS), list(range(length)), length, SamplingParams(max_tokens=10**6), 0, frozenset())


def a_scheduler(most: int, prefill_tokens: int, rows: int = 10**6) -> Scheduler:
    return Scheduler(most, prefill_tokens, RowBudget(rows))


def chunks(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(chunk.request.id, chunk.start, chunk.end) for chunk in plan.chunks]


def no_rows() -> dict[int, int]:
    return {}


def step(scheduler: Scheduler, cached: dict[int, int]) -> StepPlan:
    """What the engine does when nothing is decoded."""
    for request in scheduler.admit():
        cached.pop(request.id, None)
    plan = scheduler.plan(cached)
    for chunk in plan.chunks:
        cached[chunk.request.id] = chunk.end
        if chunk.last:
            scheduler.joined(chunk.request)
    return plan


def added(scheduler: Scheduler, *lengths: int) -> list[Request]:
    requests = [a_request(length) for length in lengths]
    for request in requests:
        scheduler.add(request)
    return requests


# The budget of prompt tokens


def test_half_of_the_budget_goes_by_arrival_and_half_to_who_has_least_left() -> None:
    scheduler, cached = a_scheduler(8, prefill_tokens=10), no_rows()
    one, two, three = added(scheduler, 4, 9, 2)
    plan = step(scheduler, cached)
    assert chunks(plan) == [(one.id, 0, 4), (two.id, 0, 4), (three.id, 0, 2)]
    assert [chunk.last for chunk in plan.chunks] == [True, False, True]
    assert plan.seated == [one, two, three]
    plan = step(scheduler, cached)
    assert plan.decoding == [one, three]
    assert chunks(plan) == [(two.id, 4, 9)]
    plan = step(scheduler, cached)
    assert plan.decoding == [one, three, two]
    assert plan.chunks == []
    assert scheduler.unfinished == 3


def test_a_long_prompt_holds_no_short_one_up() -> None:
    scheduler, cached = a_scheduler(8, prefill_tokens=20), no_rows()
    (long,) = added(scheduler, 500)
    step(scheduler, cached)
    for _ in range(10):  # alone it has the whole budget, beside others half of it
        (short,) = added(scheduler, 10)
        plan = step(scheduler, cached)
        assert chunks(plan)[0][2] - chunks(plan)[0][1] == 10
        assert chunks(plan)[1] == (short.id, 0, 10)
        scheduler.leave(short)
    assert cached[long.id] == 20 + 10 * 10


def test_many_short_prompts_hold_no_long_one_up() -> None:
    scheduler, cached = a_scheduler(64, prefill_tokens=8), no_rows()
    (long,) = added(scheduler, 100)
    steps = 0
    while cached.get(long.id, 0) < 100:
        added(scheduler, 1, 1, 1, 1, 1, 1, 1, 1)
        steps += 1
        for chunk in step(scheduler, cached).chunks:
            if chunk.last and chunk.request is not long:
                scheduler.leave(chunk.request)
    assert steps == 100 // 4


@pytest.mark.parametrize("seed", range(3))
def test_the_budget_is_used_up_and_never_exceeded(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        budget = draw.randint(1, 40)
        scheduler = a_scheduler(10, budget)
        requests = added(scheduler, *[draw.randint(1, 30) for _ in range(draw.randint(1, 9))])
        cached = {request.id: draw.randrange(len(request.tokens)) for request in requests}
        held_back = {request.id for request in requests[1:] if draw.random() < 0.3}
        scheduler.admit()
        plan = scheduler.plan(cached, held_back)
        left = sum(len(one.tokens) - cached[one.id] for one in requests if one.id not in held_back)
        assert sum(chunk.end - chunk.start for chunk in plan.chunks) == min(budget, left)
        assert all(cached[chunk.request.id] == chunk.start < chunk.end for chunk in plan.chunks)
        assert not held_back & {chunk.request.id for chunk in plan.chunks}
        assert plan.chunks[0].request is requests[0]  # the oldest always moves on
        assert plan.seated == requests


# Places


def test_no_more_requests_than_the_batch_holds() -> None:
    scheduler, cached = a_scheduler(2, prefill_tokens=100), no_rows()
    requests = added(scheduler, 3, 3, 3, 3)
    step(scheduler, cached)
    plan = step(scheduler, cached)
    assert plan.decoding == requests[:2]
    assert plan.seated == requests[:2]
    scheduler.leave(requests[0])
    plan = step(scheduler, cached)
    assert chunks(plan) == [(requests[2].id, 0, 3)]
    assert scheduler.unfinished == 3


def test_the_last_one_takes_the_place_of_one_that_leaves() -> None:
    scheduler, cached = a_scheduler(4, prefill_tokens=100), no_rows()
    one, two, three, four = added(scheduler, 1, 1, 1, 1)
    step(scheduler, cached)
    scheduler.leave(one)
    assert step(scheduler, cached).decoding == [four, two, three]
    scheduler.leave(three)
    assert step(scheduler, cached).decoding == [four, two]


def test_requests_leave_from_wherever_they_are() -> None:
    scheduler, cached = a_scheduler(2, prefill_tokens=5), no_rows()
    decoding, joining, waiting = added(scheduler, 2, 50, 1)
    step(scheduler, cached)
    for request in (waiting, joining, decoding):
        assert scheduler.leave(request)
        assert not scheduler.leave(request)
    assert scheduler.unfinished == 0
    assert step(scheduler, cached) == StepPlan([], [], [])


def test_deadlines_count_wherever_a_request_is() -> None:
    scheduler, cached = a_scheduler(2, prefill_tokens=5), no_rows()
    decoding, joining, waiting = requests = added(scheduler, 2, 50, 1)
    for request, deadline in zip(requests, (3.0, 2.0, 1.0), strict=True):
        request.deadline = deadline
    added(scheduler, 1)  # without one
    step(scheduler, cached)
    assert scheduler.expired(0.5) == []
    assert scheduler.expired(1.0) == [waiting]
    assert scheduler.expired(2.5) == [waiting, joining]
    assert scheduler.expired(9.0) == [waiting, joining, decoding]


# Rows


def test_requests_join_in_the_order_of_arrival_when_there_are_blocks_for_their_text() -> None:
    scheduler, cached = a_scheduler(8, prefill_tokens=100, rows=5 * BLOCK), no_rows()
    one, _large, _small = added(scheduler, 2 * BLOCK, 2 * BLOCK + 1, 1)
    # The second needs three blocks and one must stay free for the first; the third does not overtake it.
    assert step(scheduler, cached).seated == [one]
    assert scheduler.free_blocks == 3
    scheduler.leave(one)
    assert [len(request.tokens) for request in step(scheduler, cached).seated] == [2 * BLOCK + 1, 1]
    assert scheduler.free_blocks == 1


def test_a_request_that_fits_alone_joins_even_if_nothing_stays_free() -> None:
    scheduler, cached = a_scheduler(8, prefill_tokens=100, rows=2 * BLOCK), no_rows()
    (one,) = added(scheduler, 2 * BLOCK)
    assert step(scheduler, cached).seated == [one]
    assert scheduler.free_blocks == 0


def test_the_youngest_gives_way_and_comes_back_first() -> None:
    scheduler, cached = a_scheduler(3, prefill_tokens=100, rows=6 * BLOCK), no_rows()
    one, two, three, four = added(scheduler, BLOCK, BLOCK, BLOCK, 1)
    step(scheduler, cached)
    assert step(scheduler, cached).decoding == [one, two, three]
    one.tokens += [0] * 3 * BLOCK
    three.tokens += [0]
    assert scheduler.admit() == [three]  # seven blocks are wanted and there are six; nobody joins in such a step
    assert scheduler.plan(cached).decoding == [one, two]
    two.tokens += [0] * 2 * BLOCK
    assert scheduler.admit() == [two]
    assert scheduler.plan(cached).decoding == [one]
    scheduler.leave(one)
    cached.clear()
    assert scheduler.admit() == []
    # Back in the order of arrival, before the one that never ran; their outputs are read with their prompts.
    plan = scheduler.plan(cached)
    assert plan.seated[:1] == [two]
    assert chunks(plan) == [(two.id, 0, 3 * BLOCK), (three.id, 0, BLOCK + 1)]
    assert scheduler.unfinished == 3
    assert four not in plan.seated or plan.seated.index(four) == 2


@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand_steps_of_joining_and_leaving_leave_nothing_behind(seed: int) -> None:
    draw = random.Random(seed)
    most, budget = 5, 7
    scheduler, seating = a_scheduler(most, budget), Seating(most + 1)
    alive: list[Request] = []
    waited: dict[int, int] = {}

    def leave(request: Request) -> None:
        alive.remove(request)
        scheduler.leave(request)
        seating.release(request.id)

    for _ in range(10_000):
        if len(alive) < 12 and draw.random() < 0.4:
            alive.append(a_request(draw.randint(1, 20)))
            scheduler.add(alive[-1])
        assert scheduler.admit() == []
        plan = scheduler.plan(seating.cached)
        seating.seat([request.id for request in plan.seated])
        # Slots are those of the batch order, all different, and hold requests of the step only.
        assert [seating.slot(request.id) for request in plan.seated] == list(range(len(plan.seated)))
        assert set(seating.cached) == {request.id for request in plan.seated}
        assert plan.seated[: len(plan.decoding)] == plan.decoding
        assert len(plan.seated) <= most
        assert sum(chunk.end - chunk.start for chunk in plan.chunks) <= budget
        for chunk in plan.chunks:
            assert chunk.start == seating.cached[chunk.request.id] < chunk.end
        for request in plan.decoding:
            assert seating.cached[request.id] == len(request.tokens) - 1
            grown = draw.randint(1, 4)
            request.tokens += [0] * grown
            seating.cached[request.id] += grown
        for chunk in plan.chunks:
            seating.cached[chunk.request.id] = chunk.end
            if chunk.last:
                scheduler.joined(chunk.request)
                chunk.request.tokens.append(0)
        for request in alive[:]:
            waited[request.id] = waited.get(request.id, 0) + (request not in plan.decoding)
            if draw.random() < (0.2 if request in plan.decoding else 0.01):
                leave(request)
        assert scheduler.unfinished == len(alive)
    # Nobody starves: a queue of twelve moves on.
    assert max(waited.values()) < 200
    for request in alive[:]:
        leave(request)
    assert scheduler.unfinished == len(seating) == seating.rows_in_use() == 0
