"""Recorded pools: written, read, checked, replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smartree.errors import InputError
from smartree.simulate.recorded import RecordedPool, RecordedPools, read_pools, write_pools
from smartree.tree import Forest

GOOD: dict[str, Any] = {
    "step": 0,
    "request": 0,
    "parents": [-1, -1, 0, 2],
    "probabilities": [0.6, 0.3, 0.5, 0.25],
    "ranks": [0, 1, 0, 0],
    "accepted": [1, 0, 1, 0],
}


def pool(step: int = 0, request: int = 0, **change: Any) -> RecordedPool:
    return RecordedPool.from_json(GOOD | {"step": step, "request": request} | change)


def test_pools_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pools.jsonl"
    write_pools(path, [pool(0), pool(1, parents=[], probabilities=[], ranks=[], accepted=[])])
    first, second = read_pools(path)
    assert first.to_json() == GOOD
    assert len(second.parents) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"parents": [-1, 1, 0, 2]},
        {"parents": [-2, -1, 0, 2]},
        {"probabilities": [0.6, 0.3, 0.5, 0.0]},
        {"probabilities": [0.6, 0.3, 0.5, 1.5]},
        {"probabilities": [0.6, 0.3, 0.5, float("nan")]},
        {"probabilities": [0.6]},
        {"ranks": [0, 0, 0, 0]},
        {"ranks": [0, -1, 0, 0]},
        {"accepted": [1, 1, 0, 0]},
        {"accepted": [0, 0, 1, 0]},
        {"step": -1},
        {"request": "x"},
        {"parents": None},
        {"parents": [[-1, 0], [1]]},
    ],
)
def test_impossible_pools_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "pools.jsonl"
    path.write_text(json.dumps(GOOD) + "\n\n" + json.dumps(GOOD | change) + "\n")
    with pytest.raises(InputError, match="Line 3 of the pools file"):
        read_pools(path)


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_pools(tmp_path / "missing.jsonl")
    path = tmp_path / "pools.jsonl"
    for content in ("", "\n\n"):
        path.write_text(content)
        with pytest.raises(InputError, match="holds no pools"):
            read_pools(path)
    path.write_text("{\n")
    with pytest.raises(InputError, match=r"Line 1 .* is not JSON"):
        read_pools(path)
    path.write_text('{"step": 0}\n')
    with pytest.raises(InputError, match="Line 1"):
        read_pools(path)


def test_replaying_gives_the_recorded_children_and_fates() -> None:
    pools = RecordedPools("test", [pool()], batch=2)
    pools.begin(0)
    forest = Forest(np.zeros(2, np.int64))
    level = pools.expand(forest, np.array([0, 1]))
    assert level.parents.tolist() == [0, 0, 1, 1]
    assert level.probabilities.tolist() == [0.6, 0.3, 0.6, 0.3]
    nodes = forest.append(level)
    deeper = pools.expand(forest, nodes)
    assert deeper.parents.tolist() == [2, 4]  # only the first child of each root has a child
    forest.append(deeper)
    assert pools.accepted(forest).tolist() == [True, True, True, False, True, False, True, True]
    assert pools.worth(forest).tolist() == [1, 1, 1, 0, 1, 0, 1, 1]
    assert len(pools.expand(forest, np.array([3]))) == 0


def test_steps_go_round_and_requests_share_recordings() -> None:
    recorded = [
        pool(step, request, parents=[-1], probabilities=[0.1 * (1 + step) + 0.05 * request], ranks=[0], accepted=[0])
        for request in range(2)
        for step in range(4)
    ]
    pools = RecordedPools("test", recorded, batch=4)
    seen = []
    for step in range(5):
        pools.begin(step)
        found = pools.expand(Forest(np.zeros(4, np.int64)), np.arange(4)).probabilities
        seen.append(np.round(found, 6).tolist())
    assert seen[0] == [0.1, 0.15, 0.3, 0.35]  # the second pair starts halfway
    assert seen[4] == seen[0]


def test_no_pools_and_no_batch_are_refused() -> None:
    with pytest.raises(InputError):
        RecordedPools("test", [], batch=1)
    with pytest.raises(InputError):
        RecordedPools("test", [pool()], batch=0)
