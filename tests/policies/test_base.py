"""What all policies share: limits, predictions, and the best of each group."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.cost.padding import PaddingCost
from smartree.policies import StepOutcome, StepState
from smartree.policies.base import BasePolicy, top_per_group, widest
from smartree.tree import DraftTree, Forest, forest_of
from smartree.tree.forest import Floats, Ints
from tests.policies.steps import cost_of, state_of
from tests.tree.forests import candidates_of, grow, ints


def naive_top_per_group(groups: Ints, scores: Floats, count: int) -> list[bool]:
    """An element stays if fewer than `count` of its group are better, or as good and earlier."""
    keep = []
    for index, (group, score) in enumerate(zip(groups, scores, strict=True)):
        rivals = [other for other in range(len(groups)) if groups[other] == group and other != index]
        ahead = [r for r in rivals if scores[r] > score or (scores[r] == score and r < index)]
        keep.append(len(ahead) < count)
    return keep


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.25, 0.5, 1.0, 0.3])), max_size=25), st.integers(0, 6)
)
@settings(deadline=None, max_examples=300)
def test_top_per_group_agrees_with_counting_who_is_ahead(elements: list[tuple[int, float]], count: int) -> None:
    groups = ints([group for group, _ in elements])
    scores = np.array([score for _, score in elements], np.float64)
    assert top_per_group(groups, scores, count).tolist() == naive_top_per_group(groups, scores, count)


def test_top_per_group_keeps_earlier_ones_on_ties() -> None:
    kept = top_per_group(ints([1, 0, 1, 1, 0]), np.array([0.5, 0.5, 0.5, 0.5, 0.5]), 2)
    assert kept.tolist() == [True, True, True, False, True]


def test_roots_without_room_for_a_node_are_not_drafted_for() -> None:
    policy, forest = BasePolicy(), Forest(np.zeros(3, np.int64))
    assert policy.begin(StepState(3, 0, ints([2, 0, 1])), forest).tolist() == [0, 2]


def test_nodes_at_their_request_s_depth_limit_are_not_expanded() -> None:
    policy = BasePolicy()
    forest = grow(2, [candidates_of([0, 1], [0.5, 0.5]), candidates_of([2, 3], [0.5, 0.5])])  # 2, 3 above 4, 5
    policy.begin(StepState(2, 0, ints([2, 3])), forest)
    assert policy.within_limits(forest, ints([2, 3, 4, 5])).tolist() == [2, 3, 5]


def test_levels_are_wanted_until_max_depth_or_an_empty_frontier() -> None:
    policy = BasePolicy(max_depth=1)
    forest = grow(1, [candidates_of([0], [0.5])])
    policy.begin(state_of(1), forest)
    assert policy.wants_level(forest, ints([0]))
    assert not policy.wants_level(forest, ints([1]))
    assert not policy.wants_level(forest, ints([]))


def long_and_short() -> Forest:
    """A chain of three nodes, 2, 4 and 5, for the first request; one node, 3, for the second."""
    return forest_of([DraftTree.of([-1, 0, 1], [0.5] * 3), DraftTree.of([-1], [0.5])])


def test_the_prediction_is_what_the_cost_model_says_of_all_rows() -> None:
    policy = BasePolicy(cost_of(2, np.arange(1.0, 20.0)))
    assert math.isnan(policy.predicted_seconds)
    forest = long_and_short()
    policy.begin(state_of(2, extra_tokens=3), forest)
    policy.predict(forest, ints([2, 3, 4]))
    assert policy.predicted_seconds == pytest.approx(7.0)  # 8 rows of 2 requests: 1 s + 6


@pytest.mark.parametrize(("selected", "padding"), [([], 0), ([2], 1), ([2, 3], 0), ([2, 4, 5], 3), ([2, 3, 4, 5], 2)])
def test_the_prediction_counts_the_rows_of_padding(selected: list[int], padding: int) -> None:
    # 0.25 s as soon as there is padding, and 2 ms a row for each of the 64 cached rows that attention reads at least.
    cost = cost_of(2, np.arange(1.0, 20.0))
    cost.padding = PaddingCost(0.25, 2e-3)
    policy = BasePolicy(cost)
    forest = long_and_short()
    policy.begin(state_of(2), forest)
    policy.predict(forest, ints(selected))
    extra = 0.25 + padding * 64 * 2e-3 if padding else 0.0
    assert policy.predicted_seconds == pytest.approx(1.0 + len(selected) + extra)


def test_the_clock_is_compared_with_a_prediction_that_counts_the_padding() -> None:
    # Every pass takes what table and padding say together: nothing is to be corrected.
    cost = cost_of(2, np.arange(1.0, 20.0))
    cost.padding = PaddingCost(0.5, 2e-3)
    policy = BasePolicy(cost)
    forest = long_and_short()
    for selected in [ints([2, 4, 5]), ints([2]), ints([2, 3])] * 30:
        policy.begin(state_of(2), forest)
        policy.predict(forest, selected)
        seconds = policy.predicted_seconds
        policy.observe(StepOutcome(policy.state, forest, selected, 2, seconds, seconds))
    assert cost.refinement.version > 0
    assert cost.refinement.scale == pytest.approx(1.0)
    np.testing.assert_allclose(cost.verify(2, np.arange(2, 7), 0), np.arange(1.0, 6.0))


def test_the_widest_request_counts_with_its_root() -> None:
    forest = long_and_short()
    assert widest(forest, ints([])) == 1
    assert widest(forest, ints([3])) == 2
    assert widest(forest, ints([2, 3, 4, 5])) == 4


def test_without_a_cost_model_there_is_no_prediction() -> None:
    policy = BasePolicy()
    forest = forest_of([DraftTree.of([-1], [0.5])])
    policy.begin(state_of(1), forest)
    policy.predict(forest, ints([1]))
    assert math.isnan(policy.predicted_seconds)
