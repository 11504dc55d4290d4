"""Seats: a batch's slots follow each other, data follows its request, nothing leaks."""

from __future__ import annotations

import random

import pytest

from smartree.models.seating import Move, Seating


def apply(moves: list[Move], slots: list[list[str]]) -> None:
    """What a cache does with the moves."""
    for move in moves:
        slots[move.target] = slots[move.source][: move.rows] + slots[move.target][move.rows :]


def test_requests_sit_in_the_order_of_the_batch() -> None:
    seating = Seating(4)
    assert seating.seat([7, 5, 9]) == []  # nobody has rows yet
    assert [seating.slot(request_id) for request_id in (7, 5, 9)] == [0, 1, 2]
    assert len(seating) == 3
    assert seating.rows_in_use() == 0
    seating.cached[5] = 4
    assert seating.rows_in_use() == 4


def test_the_last_request_takes_the_place_of_one_that_left() -> None:
    seating = Seating(4)
    seating.seat([1, 2, 3])
    seating.cached.update({1: 10, 2: 20, 3: 30})
    seating.release(1)
    assert seating.seat([3, 2]) == [Move(source=2, target=0, rows=30)]
    assert seating.rows_in_use() == 50


def test_two_requests_change_places_through_the_spare_slot() -> None:
    seating = Seating(3)
    seating.seat([1, 2])
    seating.cached.update({1: 10, 2: 20})
    slots = [["a"] * 10, ["b"] * 20, []]
    apply(seating.seat([2, 1]), slots)
    assert (seating.slot(2), seating.slot(1)) == (0, 1)
    assert slots[0][:20] == ["b"] * 20
    assert slots[1][:10] == ["a"] * 10


def test_releasing_twice_or_a_stranger_is_harmless() -> None:
    seating = Seating(2)
    seating.seat([1])
    seating.release(1)
    seating.release(1)
    seating.release(99)
    assert len(seating) == seating.rows_in_use() == 0
    assert seating.seat([2]) == []


def test_a_request_that_comes_back_starts_without_rows() -> None:
    seating = Seating(2)
    seating.seat([1])
    seating.cached[1] = 5
    seating.release(1)
    seating.seat([1])
    assert seating.cached == {1: 0}


def test_a_retired_request_stays_until_its_slot_is_needed() -> None:
    seating = Seating(3)
    seating.seat([1, 2])
    seating.cached.update({1: 10, 2: 20})
    seating.retire(1)
    assert (len(seating), seating.rows_in_use(), dict(seating.retired)) == (1, 20, {1: 10})
    # The last request moves into the gap, and the retired one makes room: its rows are not lost yet.
    assert seating.seat([2]) == [Move(0, 2, 10), Move(1, 0, 20)]
    assert dict(seating.retired) == {1: 10}
    assert seating.seat([2, 3]) == []
    seating.cached[3] = 5
    assert seating.seat([3, 2]) == [Move(0, 2, 20), Move(1, 0, 5), Move(2, 1, 20)]  # now there was no other room
    assert dict(seating.retired) == {}


def test_a_request_without_rows_retires_into_nothing() -> None:
    seating = Seating(2)
    seating.seat([1])
    seating.retire(1)
    assert dict(seating.retired) == {}
    assert seating.seat([2]) == []


def test_a_new_request_gets_a_copy_of_the_shared_rows() -> None:
    seating = Seating(4)
    seating.seat([1])
    seating.cached[1] = 10
    assert seating.share(1, 7, 6) == [Move(0, 3, 6)]
    assert seating.cached == {1: 10, 7: 6}
    seating.retire(1)
    assert seating.share(1, 8, 4) == [Move(0, 2, 4)]
    assert dict(seating.retired) == {1: 10}


def test_a_retired_donor_whose_rows_are_all_wanted_hands_its_slot_over() -> None:
    seating = Seating(3)
    seating.seat([1])
    seating.cached[1] = 10
    seating.retire(1)
    assert seating.share(1, 2, 10) == []
    assert (seating.slot(2), seating.cached, dict(seating.retired)) == (0, {2: 10}, {})


def test_the_one_longest_unused_makes_room_for_a_copy() -> None:
    seating = Seating(3)
    seating.seat([1, 2, 3])
    for request_id in (1, 2, 3):
        seating.cached[request_id] = 10
        seating.retire(request_id)
    assert list(seating.retired) == [1, 2, 3]
    assert seating.share(1, 9, 4) == [Move(0, 1, 4)]  # 1 is in use, so 2 goes
    assert list(seating.retired) == [3, 1]


@pytest.mark.parametrize("seed", range(3))
def test_any_reordering_moves_every_requests_rows_to_its_new_slot(seed: int) -> None:
    # 3 x 4,000 steps of joining, leaving and reordering at random, and of beginning with others' rows.
    draw = random.Random(seed)
    most = 6
    seating = Seating(most + 1)
    slots: list[list[str]] = [[] for _ in range(most + 1)]
    batch: list[int] = []
    retired: dict[int, list[str]] = {}
    shared = 0
    names = iter(range(10**6))
    for _ in range(4000):
        for request_id in [one for one in batch if draw.random() < 0.2]:
            batch.remove(request_id)
            if draw.random() < 0.5:
                seating.release(request_id)
            else:
                rows = seating.cached[request_id]
                seating.retire(request_id)
                retired[request_id] = slots[seating.slot(request_id)][:rows] if rows else []
        while len(batch) < most and draw.random() < 0.5:
            donor = draw.choice([*seating.cached, *seating.retired, None])
            batch.append(next(names))
            known = seating.cached.get(donor, seating.retired.get(donor, 0)) if donor is not None else 0
            if donor is not None and known:
                rows = draw.choice([known, draw.randint(1, known)])
                expected = slots[seating.slot(donor)][:rows]
                apply(seating.share(donor, batch[-1], rows), slots)
                assert slots[seating.slot(batch[-1])][:rows] == expected
                slots[seating.slot(batch[-1])] = [f"{batch[-1]}:{row}" for row in range(rows)]  # its own from now on
                shared += 1
        if draw.random() < 0.3:
            draw.shuffle(batch)
        apply(seating.seat(batch), slots)
        assert [seating.slot(request_id) for request_id in batch] == list(range(len(batch)))
        assert sorted(seating.cached) == sorted(batch)
        for request_id, rows in seating.retired.items():
            assert slots[seating.slot(request_id)][:rows] == retired[request_id]
        for place, request_id in enumerate(batch):
            rows = seating.cached[request_id]
            assert slots[place][:rows] == [f"{request_id}:{row}" for row in range(rows)]
            grown = rows + draw.randint(0, 3)
            slots[place] = [f"{request_id}:{row}" for row in range(grown)] + ["old"] * draw.randint(0, 3)
            seating.cached[request_id] = grown
    assert shared > 1000
    for request_id in [*batch, *seating.retired]:
        seating.release(request_id)
    assert dict(seating.retired) == {}
    assert len(seating) == seating.rows_in_use() == 0
