"""Whose rows a request can start with, and how long they stay."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartree import SamplingParams
from smartree.engine.budget import BLOCK, RowBudget
from smartree.engine.prefixes import LEAST_SHARED, Donor, Prefixes, _common
from smartree.engine.request import Request
from smartree.models.seating import Seating

IDS = count()
TEXT = list(range(100, 160))


def a_request(tokens: list[int]) -> Request:
    return Request(next(IDS), tokens, len(tokens), SamplingParams(), 0, frozenset())


def seated(seating: Seating, request: Request, rows: int) -> Request:
    seating.seat([*sorted(seating.cached, key=seating.slot), request.id])
    seating.cached[request.id] = rows
    return request


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40), st.integers(0, 40))
def test_equal_first_tokens_are_counted_if_they_are_enough(one: list[int], other: list[int], equal: int) -> None:
    other = one[:equal] + other
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert _common(one, other) == (expected if expected >= LEAST_SHARED else 0)


def test_the_donor_with_most_rows_is_taken_and_one_token_is_left() -> None:
    seating = Seating(6)
    prefixes = Prefixes(seating)
    short = seated(seating, a_request([*TEXT[:20], 1, 2]), 21)
    long = seated(seating, a_request(list(TEXT)), 59)
    stranger = seated(seating, a_request([9] * 50), 49)
    running = [short, long, stranger]
    assert prefixes.donor(a_request(TEXT[:40]), running) == Donor(long.id, 39, 39)
    assert prefixes.donor(a_request([*TEXT, 3]), running) == Donor(long.id, 59, 60)
    assert prefixes.donor(a_request([*TEXT[:20], 1, 2, 3]), running) == Donor(short.id, 21, 22)
    assert prefixes.donor(a_request(TEXT[:16]), running) is None  # fifteen and the one that is left
    assert prefixes.donor(a_request([5] * 50), running) is None


@pytest.mark.parametrize(("rows", "ready"), [(0, False), (24, False), (25, True), (39, True)])
def test_waiting_for_a_donor_must_save_enough(rows: int, ready: bool) -> None:
    seating = Seating(4)
    prefixes = Prefixes(seating)
    reading = seated(seating, a_request(list(TEXT)), rows)
    donor = prefixes.donor(a_request(TEXT[:41]), [reading])
    assert donor is not None
    assert (donor.rows, donor.later, donor.ready) == (rows, 40, ready)
    # With somebody who has as good as all of it, nobody waits.
    ended = seated(seating, a_request([*TEXT[:30], 1]), 31)
    prefixes.keep(ended)
    donor = prefixes.donor(a_request(TEXT[:41]), [reading])
    assert donor is not None
    assert donor.ready
    assert donor.rows == max(30, rows)


def test_ended_requests_give_their_blocks_up_oldest_first() -> None:
    seating = Seating(6)
    prefixes = Prefixes(seating)
    requests = [seated(seating, a_request([number] * 40), 2 * BLOCK + 1) for number in range(3)]
    for request in requests:
        prefixes.keep(request)
    budget = RowBudget(100 * BLOCK)
    assert prefixes.make_room(budget, 9) == []
    assert prefixes.make_room(budget, 8) == [requests[0].id]
    # One that lost its slot to somebody is heard of the next time.
    seating.release(requests[1].id)
    assert prefixes.make_room(budget, 8) == [requests[1].id]
    assert prefixes.donor(a_request([2] * 30), []) == Donor(requests[2].id, 29, 29)
    assert prefixes.make_room(budget, 0) == [requests[2].id]
    assert prefixes.donor(a_request([2] * 30), []) is None
