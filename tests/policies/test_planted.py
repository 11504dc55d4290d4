"""Nodes that were there for nothing before a policy decides."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.cost import CostModel, DraftCost
from smartree.cost.draft import DraftPoint
from smartree.policies.base import StepOutcome
from smartree.policies.factory import POLICY_NAMES, make_policy
from smartree.policies.growth import Growth
from smartree.policies.smart import SmartPolicy
from smartree.policies.smart_options import SmartOptions
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


def lookup_steps(policy: SmartPolicy, cost: CostModel, accepted: int, beside: float, steps: int) -> int:
    """Steps with a chain planted wherever that is wanted; in how many it was."""
    looked = 0
    for _ in range(steps):
        state, forest = state_of(1), chain(0.9, 0.9, 0.9)
        if policy.least_planted(state) is None:
            forest = chain()
        planted = len(forest) > 1
        looked += planted
        policy.begin(state, forest)
        selected = policy.select(forest)
        seconds = float(cost.verify(1, 1 + len(selected), state.context))
        tokens = 1 + (min(accepted, len(selected)) if planted else 0)
        policy.observe(
            StepOutcome(state, forest, selected, tokens, seconds + (beside if planted else 0.0), seconds, 0.0)
        )
    return looked


@pytest.mark.parametrize(("accepted", "beside", "pays"), [(2, 1e-3, True), (0, 1e-3, False), (1, 20e-3, False)])
def test_lookups_are_made_while_they_bring_more_than_they_take(accepted: int, beside: float, pays: bool) -> None:
    cost = levels_that_cost(seconds=1.0)  # nobody drafts a level
    policy = SmartPolicy(cost, SmartOptions(explore_share=0))
    for _ in range(5):  # what plain steps take
        policy.observe(StepOutcome(state_of(1), chain(), np.empty(0, np.int64), 1, 10e-3, 10e-3, 0.0))
    looked = lookup_steps(policy, cost, accepted, beside, 200)
    assert looked == 200 if pays else looked < 60


def test_what_is_planted_deeper_is_worth_half_a_row_at_least() -> None:
    cost = cost_of(4, 10e-3 + 2e-3 * np.arange(64.0), DraftCost(levels=(DraftPoint(4, 4, 1.0),)))
    policy, state = SmartPolicy(cost, SmartOptions(explore_share=0)), state_of(4)
    assert policy.least_planted(state) == 0.0  # nobody knows yet what time is worth
    for _ in range(8):
        policy.begin(state, Forest(np.zeros(4, np.int64)))
        policy.observe(StepOutcome(state, Forest(np.zeros(4, np.int64)), np.empty(0, np.int64), 4, 10e-3, 10e-3))
    policy.begin(state, Forest(np.zeros(4, np.int64)))
    assert policy.least_planted(state) == pytest.approx(0.5 * (4 / 10e-3) * 2e-3, rel=0.05)


def test_planted_nodes_are_drafted_on_from_like_those_of_the_level_they_are_in() -> None:
    policy, forest = SmartPolicy(levels_that_cost(1e-5)), chain(0.9)
    frontier = policy.begin(state_of(1), forest)
    assert policy.wants_level(forest, frontier)
    second = policy.grow(forest, same_children(0.05)(forest, frontier))
    assert second.tolist()[0] == 1  # planted, and likelier than what was drafted beside it
    assert policy.wants_level(forest, second)
    policy.grow(forest, same_children(0.9)(forest, second))
    deepest = [node for node in policy.select(forest).tolist() if forest.depth[node] == 2]
    assert deepest
    assert int(forest.parent[deepest[0]]) == 1


def test_a_planted_node_whose_planted_children_are_likely_is_not_worth_a_draft_row() -> None:
    def expanded(*planted: float) -> list[int]:
        rows_cost = DraftCost(levels=(DraftPoint(1, 1, 1e-5), DraftPoint(1, 10, 2e-3)))
        policy, forest = SmartPolicy(cost_of(1, np.full(32, 10e-3), rows_cost)), chain(*planted)
        frontier = policy.begin(state_of(1), forest)
        assert policy.wants_level(forest, frontier)
        return policy.grow(forest, same_children(0.02)(forest, frontier)).tolist()

    assert 1 in expanded(0.9)
    assert 1 not in expanded(0.9, 0.9999)


def test_what_a_level_says_of_planted_nodes_counts_in_what_is_verified() -> None:
    rows_cost = cost_of(1, 10e-3 + 1e-3 * np.arange(32.0), DraftCost(levels=(DraftPoint(1, 1, 1e-5),)))
    policy, forest = SmartPolicy(rows_cost), chain(0.6, 0.6, 0.6)
    for _ in range(10):  # until it is known what time is worth
        policy.begin(state_of(1), chain())
        policy.observe(StepOutcome(state_of(1), chain(), np.empty(0, np.int64), 1, 10e-3))
    frontier = policy.begin(state_of(1), forest)
    assert policy.wants_level(forest, frontier)
    forest.revise(np.array([1]), np.array([0.01]))  # as a drafter does that disagrees
    policy.grow(forest, same_children(0.8)(forest, frontier))
    assert policy.select(forest).tolist() == [4]
