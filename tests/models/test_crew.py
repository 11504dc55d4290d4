"""What rank 0 tells the others, without the others: orders are complete, in order, and fit to be sent."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from smartree.models.cache import CacheShape, SlotCache
from smartree.models.crew import Mirror, Order, PassOrder, RowMove, RunnerOrder, SlotCopy, processes
from smartree.models.packed_pass import PackedPass, causal_group


class Recorder:
    """A crew whose orders nobody follows."""

    def __init__(self) -> None:
        self.sent: list[Order] = []
        self.forgotten: list[int] = []

    def number(self) -> int:
        return 40 + len(self.sent)

    def send(self, order: Order) -> None:
        self.sent.append(pickle.loads(pickle.dumps(order)))

    def drop(self, runner: int) -> None:
        self.forgotten.append(runner)

    def dropped(self) -> tuple[int, ...]:
        taken, self.forgotten = tuple(self.forgotten), []
        return taken


def mirror(recorder: Recorder) -> Mirror:
    crew: Any = recorder
    return Mirror(crew, 3, 2, 64)


def pass_order(recorder: Recorder) -> PassOrder:
    order = recorder.sent[-1]
    assert isinstance(order, PassOrder)
    return order


def test_a_pass_carries_the_changes_since_the_last_one() -> None:
    recorder = Recorder()
    runner = mirror(recorder)
    changes: list[RowMove | SlotCopy] = [RowMove(0, (5, 7), 4), SlotCopy(1, 0, 9), RowMove(1, (3,), 3)]
    runner.changed(changes[:2])
    runner.changed(changes[2:])
    assert recorder.sent == [RunnerOrder(40, 3, 2, 64)]
    runner.passing([causal_group(1, 4, 2)], np.array([8, 9]), np.array([1]))
    assert pass_order(recorder).changes == tuple(changes)
    runner.passing([causal_group(1, 6, 1)], np.array([8]), None)
    assert pass_order(recorder).changes == ()
    assert pass_order(recorder).keep is None


def test_a_group_that_was_used_is_sent_without_its_tensors() -> None:
    recorder = Recorder()
    group = causal_group(1, 4, 2)
    cache = SlotCache(CacheShape(1, 1, 4), 2, 64, torch.float32, torch.device("cpu"))
    packed = PackedPass([group], cache)
    expected = group.bias(1, 0, torch.float32, cache.device)
    mirror(recorder).passing([group], np.array([8, 9]), None)
    (received,) = pass_order(recorder).groups
    assert received._biases == {}
    again = PackedPass([received], cache)
    assert torch.equal(again.positions, packed.positions)
    assert torch.equal(received.bias(1, 0, torch.float32, cache.device), expected)


def test_a_runner_that_is_gone_is_dropped_with_the_next_pass() -> None:
    recorder = Recorder()
    gone, kept = mirror(recorder), mirror(recorder)
    del gone
    gc.collect()
    for dropped in ((40,), ()):
        kept.passing([causal_group(0, 0, 1)], np.array([1]), None)
        assert pass_order(recorder).dropped == dropped


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "4", "RANK": "1"}, 1),  # a job manager's, without torchrun
        ({"WORLD_SIZE": "4", "RANK": "1", "LOCAL_RANK": "1"}, 4),
        ({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, 1),
    ],
)
def test_processes_are_those_of_torchrun(
    variables: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert processes() == expected
