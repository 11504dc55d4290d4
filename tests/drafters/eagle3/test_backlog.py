"""Hidden states that wait to be read: nothing is lost, mixed up or kept for longer than its request."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.drafters.eagle3.backlog import Backlog
from smartree.tree.forest import Ints


class Halving:
    """Reduces states [M, 2] to features [M, 1], and notes how many rows came at a time."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, states: torch.Tensor, rows: Ints | None) -> torch.Tensor:
        chosen = states if rows is None else states[torch.from_numpy(rows)]
        self.calls.append(len(chosen))
        return chosen.sum(dim=1, keepdim=True) / 2


def rows_of(numbers: list[int]) -> torch.Tensor:
    """States whose features are these numbers."""
    column = torch.tensor(numbers, dtype=torch.float64)
    return torch.stack([column, column], dim=1)


def numbers_of(features: torch.Tensor) -> list[int]:
    assert features.shape[1] == 1
    return [int(number) for number in features[:, 0].tolist()]


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_what_is_taken_is_what_a_list_for_each_request_would_give(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smartree.drafters.eagle3.backlog._PART", data.draw(st.sampled_from([16, 80, 2**21])))
        patch.setattr("smartree.drafters.eagle3.backlog._PIECE", data.draw(st.sampled_from([32, 2**21])))
        patch.setattr("smartree.drafters.eagle3.backlog._LARGE", data.draw(st.sampled_from([3, 1000])))
        run_at_random(data)


def run_at_random(data: st.DataObject) -> None:
    backlog, lists = Backlog(Halving(), data.draw(st.sampled_from([64, 400, 2**24]))), dict[int, list[int]]()
    coming, number = 0, 0
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["add", "add", "add", "take", "forget", "copy"]))
        if action == "add":
            known = data.draw(st.lists(st.sampled_from(sorted(lists)), unique=True)) if lists else []
            new = list(range(coming, coming + data.draw(st.integers(0 if known else 1, 2))))
            coming += len(new)
            ids = data.draw(st.permutations([*known, *new]))
            counts = data.draw(st.lists(st.sampled_from([1, 1, 2, 5, 200]), min_size=len(ids), max_size=len(ids)))
            numbers = list(range(number, number + sum(counts)))
            if data.draw(st.booleans()):  # rows of a pass that also has others
                places = np.array(data.draw(st.permutations(range(len(numbers) + 2)))[: len(numbers)], np.int64)
                states = rows_of([-1] * (len(numbers) + 2))
                states[torch.from_numpy(places)] = rows_of(numbers)
                backlog.add(ids, counts, states, places)
            else:
                backlog.add(ids, counts, rows_of(numbers))
            for request, count in zip(ids, counts, strict=True):
                lists[request] = [*lists.get(request, []), *range(number, number + count)]
                number += count
        elif action == "take" and lists:
            ids = data.draw(st.lists(st.sampled_from(sorted(lists)), unique=True, min_size=1))
            most = data.draw(st.sampled_from([None, 1, 3, 150, 500]))
            assert numbers_of(backlog.take(ids, most)) == [one for request in ids for one in lists[request][:most]]
            for request in ids:
                lists[request] = [] if most is None else lists[request][most:]  # it lives on and gets more
        elif action == "copy" and any(lists.values()):
            donor = data.draw(st.sampled_from(sorted(request for request in lists if lists[request])))
            free = sorted(set(range(coming)) - set(lists))
            heir = data.draw(st.sampled_from(free)) if free else coming  # one that was forgotten may come back
            coming = max(coming, heir + 1)
            lists[heir] = lists[donor][: data.draw(st.integers(1, len(lists[donor])))]
            backlog.copy(donor, heir, len(lists[heir]))
        elif action == "forget" and lists:
            gone = data.draw(st.sampled_from(sorted(lists)))
            backlog.forget(gone)
            del lists[gone]
        assert [backlog.rows(request) for request in range(coming)] == [
            len(lists.get(request, [])) for request in range(coming)
        ]
        assert len(backlog) == sum(map(len, lists.values()))
        lists = {request: numbers for request, numbers in lists.items() if numbers}


def test_rows_come_request_by_request_in_the_order_asked_for() -> None:
    backlog = Backlog(Halving())
    backlog.add([4, 7], [2, 1], rows_of([10, 11, 20]))
    backlog.add([7, 9, 4], [2, 1, 1], rows_of([21, 22, 30, 12]))
    assert numbers_of(backlog.take([7, 4])) == [20, 21, 22, 10, 11, 12]
    assert (backlog.rows(7), backlog.rows(9), len(backlog)) == (0, 1, 1)
    backlog.add([4], [1], rows_of([13]))
    assert numbers_of(backlog.take([9, 4])) == [30, 13]


def test_one_that_is_forgotten_takes_nothing_from_the_others() -> None:
    backlog = Backlog(Halving())
    backlog.add([1, 2], [2, 2], rows_of([1, 2, 3, 4]))
    backlog.forget(1)
    backlog.forget(99)  # never heard of
    backlog.add([3, 2], [1, 1], rows_of([5, 6]))
    assert (backlog.rows(1), len(backlog)) == (0, 4)
    assert numbers_of(backlog.take([3, 2])) == [5, 3, 4, 6]


@pytest.mark.parametrize("reduced", [False, True])
def test_the_last_one_that_goes_leaves_no_memory(reduced: bool) -> None:
    features: list[weakref.ref[torch.Tensor]] = []

    def reduce(states: torch.Tensor, rows: Ints | None) -> torch.Tensor:
        assert rows is None
        made = states.sum(dim=1, keepdim=True)
        features.append(weakref.ref(made))
        return made

    states = rows_of(list(range(600 if reduced else 6)))
    backlog = Backlog(reduce, 512 * states[:1].nbytes)
    waiting = weakref.ref(states)
    backlog.add([1, 2], [len(states) // 2] * 2, states)
    del states
    backlog.forget(2)
    backlog.forget(1)
    gc.collect()
    assert len(backlog) == 0
    assert waiting() is None
    assert [one() for one in features] == [None] * len(features)
    assert bool(features) == reduced


def test_many_waiting_states_are_reduced_at_once_and_only_once() -> None:
    reduce = Halving()
    backlog = Backlog(reduce, 512 * rows_of([0]).nbytes)
    for step in range(512):
        backlog.add([step % 3], [1], rows_of([step]))
    assert reduce.calls == []
    backlog.add([0], [1], rows_of([512]))
    assert reduce.calls == [513]
    backlog.add([1, 2], [1, 1], rows_of([513, 514]))
    taken = numbers_of(backlog.take([2, 0, 1]))
    assert reduce.calls == [513, 2]
    assert taken == [*range(2, 512, 3), 514, *range(0, 512, 3), 512, *range(1, 512, 3), 513]


def test_passes_whose_requests_have_all_ended_make_room_without_a_product() -> None:
    reduce = Halving()
    backlog = Backlog(reduce, 100 * rows_of([0]).nbytes)
    backlog.add([1000], [1], rows_of([5]))  # lives on
    for request in range(1, 40):
        backlog.add([request, 0], [9, 1], rows_of([10 * request] * 9 + [request]))
        if request < 39:
            backlog.forget(request)
            backlog.forget(0)  # everybody of that pass
    assert reduce.calls == []
    assert numbers_of(backlog.take([0, 1000, 39])) == [39, 5, *[390] * 9]


def test_taking_reduces_the_rows_of_all_in_one_product() -> None:
    reduce = Halving()
    backlog = Backlog(reduce)
    for step in range(10):
        backlog.add([0, 1], [1, 1], rows_of([2 * step, 2 * step + 1]))
    backlog.take([0])
    backlog.take([1])
    assert reduce.calls == [20]


def test_a_request_that_comes_back_has_none_of_its_old_rows() -> None:
    backlog = Backlog(Halving())
    backlog.add([1, 2], [2, 1], rows_of([1, 2, 3]))
    backlog.forget(1)
    backlog.add([1, 2], [1, 1], rows_of([4, 5]))
    assert backlog.rows(1) == 1
    assert numbers_of(backlog.take([1, 2])) == [4, 3, 5]


def test_rows_of_requests_that_have_ended_make_room_row_by_row() -> None:
    """Every pass has a row of somebody who is still there; what makes room is copied, nothing is reduced."""
    reduce = Halving()
    backlog = Backlog(reduce, most_bytes=16 * 500)
    for request in range(1, 12):
        for step in range(10):
            backlog.add([0, request], [1, 9], rows_of([10 * request + step] + [-1] * 9))
        backlog.forget(request)
    assert reduce.calls == []
    assert sum(len(states) for states in backlog._states) <= 300  # of 1,100 that came
    assert numbers_of(backlog.take([0])) == list(range(10, 120))
