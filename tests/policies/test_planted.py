"""Nodes that were there for nothing before a policy decides."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.cost import CostModel, DraftCost
from smartree.cost.draft import DraftPoint
from smartree.policies.factory import POLICY_NAMES, make_policy
from smartree.policies.growth import Growth
from smartree.policies.smart import SmartPolicy
from smartree.tree.forest import Candidates, Forest
from tests.policies.steps import cost_of, same_children, state_of


def chain(*probabilities: float, request: int = 0, batch: int = 1) -> Forest:
    """A forest with one planted chain."""
    forest = Forest(np.zeros(batch, np.int64))
    parent = request
    for depth, probability in enumerate(probabilities):
        place = np.array([parent])
        chances = np.array([probability])
        parent = int(forest.plant(Candidates(place, place + 7, chances, place * 0, place * 0 + depth, chances))[0])
    return forest


def levels_that_cost(seconds: float = 2e-3) -> CostModel:
    """A pass is flat up to 8 nodes, then rises; a level takes a fifth of a pass."""
    verify = 10e-3 + 2e-3 * np.maximum(np.arange(32) - 8, 0)
    return cost_of(1, verify, DraftCost(levels=(DraftPoint(1, 1, seconds), DraftPoint(1, 10, seconds))))


def levels(policy: SmartPolicy, forest: Forest) -> int:
    """How many levels the policy asks for."""
    frontier, count = policy.begin(state_of(1), forest), 0
    while policy.wants_level(forest, frontier):
        frontier = policy.grow(forest, same_children(0.7, 0.1)(forest, frontier))
        count += 1
    return count


def test_only_smart_takes_what_is_planted() -> None:
    state = state_of(1)
    takes = {name for name in POLICY_NAMES if make_policy(name, levels_that_cost()).least_planted(state) is not None}
    assert takes == {"smart"}


def test_a_sure_continuation_makes_levels_needless() -> None:
    policy = SmartPolicy(levels_that_cost())
    assert levels(policy, chain()) > 0
    assert levels(policy, chain(0.99, 0.99, 0.99)) == 0
    assert levels(policy, chain(0.05, 0.05)) > 0


def test_what_is_planted_is_verified_without_a_level() -> None:
    policy, forest = SmartPolicy(levels_that_cost()), chain(0.99, 0.98, 0.97, 0.9)
    policy.begin(state_of(1), forest)
    assert policy.select(forest).tolist() == [1, 2, 3, 4]


def test_planted_nodes_and_drafted_ones_compete() -> None:
    policy, forest = SmartPolicy(levels_that_cost(1e-5)), chain(0.3, 0.2, 0.1)
    frontier = policy.begin(state_of(1), forest)
    assert policy.wants_level(forest, frontier)
    policy.grow(forest, same_children(0.6)(forest, frontier))
    selected = policy.select(forest).tolist()
    assert selected[0] == 4
    assert 1 in selected


@pytest.mark.parametrize("planted", [0.0, 0.5])
def test_growth_is_that_of_the_other_drafter_alone(planted: float) -> None:
    growth, alone = Growth(), Growth()
    for _ in range(20):
        forest, free = chain(planted), Forest(np.zeros(1, np.int64))
        forest.append(same_children(0.4 * (1 - planted))(forest, np.array([0])))
        free.append(same_children(0.4)(free, np.array([0])))
        growth.observe(forest, np.array([0]))
        alone.observe(free, np.array([0]))
    assert growth.at(0)[0] == pytest.approx(alone.at(0)[0])
