"""The depth schedule: full tree, then shallow, then shallower, then full again."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.errors import InputError
from smartree.policies import Eagle2Policy, StepState
from smartree.policies.schedule import DepthSchedule, ScheduledPolicy
from smartree.tree import Forest
from tests.policies.steps import same_children

ROOMY = 1000


def deepest(generated: int) -> int:
    """Levels that a scheduled policy drafts for a request that has generated so many tokens."""
    policy = ScheduledPolicy(Eagle2Policy(depth=7))
    forest = Forest(np.zeros(1, np.int64))
    frontier = policy.begin(StepState(1, 0, np.array([ROOMY]), generated=np.array([generated])), forest)
    while policy.wants_level(forest, frontier):
        frontier = policy.grow(forest, same_children(0.9)(forest, frontier))
    return int(forest.depth[policy.select(forest)].max(initial=0))


@pytest.mark.parametrize(
    ("generated", "levels"), [(0, 8), (9, 8), (10, 5), (49, 5), (50, 3), (99, 3), (100, 8), (150, 3)]
)
def test_depth_follows_the_place_in_the_cycle(generated: int, levels: int) -> None:
    assert deepest(generated) == levels


def test_requests_of_a_batch_are_at_their_own_place() -> None:
    assert DepthSchedule().limits(np.array([5, 20, 80])).tolist() == [np.iinfo(np.int64).max, 5, 3]


def test_without_counts_nothing_is_limited() -> None:
    policy, forest = ScheduledPolicy(Eagle2Policy()), Forest(np.zeros(1, np.int64))
    assert policy.begin(StepState(1, 0, np.array([ROOMY])), forest).tolist() == [0]
    assert policy.name == "eagle2+schedule"


@pytest.mark.parametrize("wrong", [{"cycle": 0}, {"full": 60}, {"middle": 200}, {"second_depth": -1}])
def test_impossible_schedules_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="schedule"):
        DepthSchedule(**wrong)
