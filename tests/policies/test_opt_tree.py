"""OPT-Tree: as deep as a level adds a constant, compared with the rule in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.errors import InputError
from smartree.policies import StepState
from smartree.policies.opt_tree import OptTreePolicy
from tests.policies.steps import cost_of, draft, nothing_found, same_children, state_of

COST = cost_of(1, [1.0, 2.0])


def best_sum(pool: list[float], nodes: int) -> float:
    return sum(sorted(pool, reverse=True)[:nodes])


def reference(children: tuple[float, ...], nodes: int, threshold: float, max_depth: int) -> tuple[list[float], int]:
    """The rule for one request whose nodes all get the same children: chosen path probabilities and levels."""
    beam, pool, levels = [1.0], list[float](), 0
    while levels < max_depth:
        before = best_sum(pool, nodes)
        level = [parent * child for parent in beam for child in children]
        pool, levels = pool + level, levels + 1
        if best_sum(pool, nodes) - before < threshold:
            break
        beam = sorted(level, reverse=True)[:nodes]
    return sorted(pool, reverse=True)[:nodes], levels


@given(
    st.lists(st.floats(0.02, 0.95), min_size=1, max_size=4),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.05, 0.2, 0.7]),
    st.integers(1, 5),
)
@settings(deadline=None, max_examples=100)
def test_the_tree_equals_the_rule_in_plain_python(
    children: list[float], nodes: int, threshold: float, max_depth: int
) -> None:
    policy = OptTreePolicy(nodes=nodes, threshold=threshold, max_depth=max_depth)
    step = draft(policy, COST, state_of(1), same_children(*children))
    expected, levels = reference(tuple(children), nodes, threshold, max_depth)
    assert step.levels == levels
    np.testing.assert_allclose(step.forest.path[step.selected], expected)


def test_by_hand() -> None:
    # One child of 0.8: levels add 0.8, 0.64, 0.512; the first below 0.6 is the third, and it is kept.
    step = draft(OptTreePolicy(threshold=0.6), COST, state_of(1), same_children(0.8))
    assert (step.levels, len(step.selected)) == (3, 3)
    # A tree of 2 nodes: the second level pushes nothing out and the third adds nothing, as the best two are in.
    step = draft(OptTreePolicy(nodes=2, threshold=0.1), COST, state_of(1), same_children(0.8))
    assert (step.levels, len(step.selected)) == (3, 2)


def test_the_mean_gain_of_the_batch_decides() -> None:
    # Depth limits of 1 and 9: from level 2 on only one request grows, so a level adds half of 0.9, 0.81, ...
    step = draft(OptTreePolicy(threshold=0.4), COST, StepState(2, 0, np.array([1, 9])), same_children(0.9))
    assert np.bincount(step.forest.request[step.selected]).tolist() == [1, 3]  # (0.9 + 0.9) / 2, 0.405, 0.36


def test_a_lower_threshold_never_makes_it_shallower() -> None:
    levels = [
        draft(OptTreePolicy(threshold=threshold), COST, state_of(1), same_children(0.7, 0.1)).levels
        for threshold in (0.9, 0.7, 0.5, 0.3, 0.1, 0.0)
    ]
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (1, 10)  # the default cap


def test_the_device_changes_nothing() -> None:
    # It is a baseline: a constant for every device, where smart asks the cost table.
    sizes = []
    for slope in (0.0, 10.0):
        cost = cost_of(1, 1.0 + slope * np.arange(60.0))
        policy = OptTreePolicy(cost)
        step = draft(policy, cost, state_of(1), same_children(0.7, 0.2))
        sizes.append(len(step.selected))
        assert policy.predicted_seconds == pytest.approx(1.0 + slope * sizes[-1])
    assert sizes[0] == sizes[1] > 0
    assert OptTreePolicy().inspects_tokens


def test_no_request_gets_more_than_its_nodes() -> None:
    step = draft(OptTreePolicy(nodes=7, threshold=0.0), COST, state_of(3), same_children(0.5, 0.3, 0.2))
    assert np.bincount(step.forest.request[step.selected]).tolist() == [7] * 3


def test_every_step_starts_afresh() -> None:
    policy = OptTreePolicy(threshold=0.5)
    draft(policy, COST, state_of(1), same_children(0.1))  # ends with a gain below the threshold
    assert draft(policy, COST, state_of(1), same_children(0.9)).levels > 1


def test_a_drafter_without_an_idea_leaves_plain_decoding() -> None:
    step = draft(OptTreePolicy(), COST, state_of(2), nothing_found)
    assert (step.levels, len(step.selected)) == (1, 0)


@pytest.mark.parametrize("options", [{"nodes": 0}, {"max_depth": 0}, {"threshold": -0.1}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="opt-tree needs positive nodes and max_depth"):
        OptTreePolicy(**options)  # type: ignore[arg-type]
