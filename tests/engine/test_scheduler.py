"""Who takes part in a step: order, budget, places, and no leak over many steps."""

from __future__ import annotations

import random
from itertools import count

import pytest

from smartree.engine.request import Request
from smartree.engine.scheduler import Scheduler, StepPlan
from smartree.models.seating import Seating
from smartree.sampling_params import SamplingParams

IDS = count()


def a_request(length: int) -> Request:
    return Request(next(IDS), list(range(length)), length, SamplingParams(max_tokens=10**6), 0, frozenset())


def chunks(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(chunk.request.id, chunk.start, chunk.end) for chunk in plan.chunks]


def no_rows() -> dict[int, int]:
    return {}


def run(scheduler: Scheduler, plan: StepPlan, cached: dict[int, int]) -> None:
    """What the engine does with a plan's prompt chunks."""
    for chunk in plan.chunks:
        cached[chunk.request.id] = chunk.end
        if chunk.last:
            scheduler.joined(chunk.request)


def test_prompts_share_the_budget_in_the_order_of_arrival() -> None:
    scheduler, cached = Scheduler(8, prefill_tokens=10), no_rows()
    one, two, three = a_request(4), a_request(9), a_request(2)
    for request in (one, two, three):
        scheduler.add(request)
    plan = scheduler.plan(cached)
    assert chunks(plan) == [(one.id, 0, 4), (two.id, 0, 6)]
    assert [chunk.last for chunk in plan.chunks] == [True, False]
    assert plan.seated == [one, two, three]
    run(scheduler, plan, cached)
    plan = scheduler.plan(cached)
    assert plan.decoding == [one]
    assert chunks(plan) == [(two.id, 6, 9), (three.id, 0, 2)]
    run(scheduler, plan, cached)
    plan = scheduler.plan(cached)
    assert plan.decoding == [one, two, three]
    assert plan.chunks == []
    assert scheduler.unfinished == 3


def test_no_more_requests_than_the_batch_holds() -> None:
    scheduler, cached = Scheduler(2, prefill_tokens=100), no_rows()
    requests = [a_request(3) for _ in range(4)]
    for request in requests:
        scheduler.add(request)
    run(scheduler, scheduler.plan(cached), cached)
    plan = scheduler.plan(cached)
    assert plan.decoding == requests[:2]
    assert plan.seated == requests[:2]
    scheduler.leave(requests[0])
    plan = scheduler.plan(cached)
    assert chunks(plan) == [(requests[2].id, 0, 3)]
    assert scheduler.unfinished == 3


def test_the_last_one_takes_the_place_of_one_that_leaves() -> None:
    scheduler, cached = Scheduler(4, prefill_tokens=100), no_rows()
    one, two, three, four = requests = [a_request(1) for _ in range(4)]
    for request in requests:
        scheduler.add(request)
    run(scheduler, scheduler.plan(cached), cached)
    scheduler.leave(one)
    assert scheduler.plan(cached).decoding == [four, two, three]
    scheduler.leave(three)
    assert scheduler.plan(cached).decoding == [four, two]


def test_requests_leave_from_wherever_they_are() -> None:
    scheduler, cached = Scheduler(2, prefill_tokens=5), no_rows()
    decoding, joining, waiting = a_request(2), a_request(50), a_request(1)
    for request in (decoding, joining, waiting):
        scheduler.add(request)
    run(scheduler, scheduler.plan(cached), cached)
    for request in (waiting, joining, decoding):
        scheduler.leave(request)
    assert scheduler.unfinished == 0
    assert scheduler.plan(cached) == StepPlan([], [], [])


@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand_steps_of_joining_and_leaving_leave_nothing_behind(seed: int) -> None:
    draw = random.Random(seed)
    most, budget = 5, 7
    scheduler, seating = Scheduler(most, budget), Seating(most + 1)
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
