"""A tree of fixed shape: positions by rank, compared with walking the shape in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.errors import InputError
from smartree.policies import StepState
from smartree.policies.static import EAGLE1_SHAPE, StaticPolicy
from smartree.tree import Forest
from tests.policies.steps import cost_of, draft, nothing_found, same_children, state_of
from tests.tree.forests import ancestors

Shape = tuple[tuple[int, ...], ...]
COST = cost_of(1, [1.0, 2.0])


def ranks_of(forest: Forest, node: int) -> tuple[int, ...]:
    """The ranks from the root to the node."""
    return tuple(int(forest.rank[above]) for above in reversed(ancestors(forest, node)[:-1]))


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Shapes in any order, every path below the root or below another one."""
    paths: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(1, 10))):
        above = draw(st.sampled_from([(), *paths]))
        paths.append((*above, draw(st.integers(0, 3))))
    return tuple(draw(st.permutations(paths)))


@given(shapes(), st.integers(1, 3), st.integers(1, 4))
@settings(deadline=None, max_examples=80)
def test_the_tree_is_what_the_shape_and_the_drafter_have_in_common(shape: Shape, batch: int, children: int) -> None:
    policy = StaticPolicy(shape=shape)
    step = draft(policy, COST, state_of(batch), same_children(*[0.2] * children))
    expected = sorted({path for path in shape if max(path) < children})
    for request in range(batch):
        own = step.selected[step.forest.request[step.selected] == request]
        assert sorted(ranks_of(step.forest, int(node)) for node in own) == expected


def test_the_default_is_eagle_1_s_tree_of_25_nodes() -> None:
    step = draft(StaticPolicy(), COST, state_of(2), same_children(0.5, 0.2, 0.1, 0.1, 0.05))
    assert np.bincount(step.forest.request[step.selected]).tolist() == [25, 25]
    assert np.bincount(step.forest.depth[step.selected[step.forest.request[step.selected] == 0]]).tolist() == [
        *(0, 4, 8, 8, 3, 2)
    ]
    assert step.levels == 5
    assert len(set(EAGLE1_SHAPE)) == 25


def test_nothing_outside_the_shape_is_expanded_or_even_recorded() -> None:
    policy, forest = StaticPolicy(shape=[(0,), (1,), (1, 0)]), Forest(np.zeros(1, np.int64))
    frontier = policy.begin(state_of(1), forest)
    frontier = policy.grow(forest, same_children(0.5, 0.3, 0.2)(forest, frontier))
    assert forest.rank[1:].tolist() == [0, 1]
    assert forest.rank[frontier].tolist() == [1]  # below (0,) the shape has nothing


def test_probabilities_and_costs_change_nothing() -> None:
    trees = []
    for probabilities, slope in (((0.9, 0.05, 0.05), 0.0), ((0.01, 0.01, 0.9), 5.0)):
        cost = cost_of(1, 1.0 + slope * np.arange(40.0))
        policy = StaticPolicy(cost)
        step = draft(policy, cost, state_of(1), same_children(*probabilities))
        trees.append({ranks_of(step.forest, int(node)) for node in step.selected})
        assert policy.predicted_seconds == pytest.approx(1.0 + slope * len(step.selected))
    assert trees[0] == trees[1]
    assert not StaticPolicy().inspects_tokens


def test_depth_limits_cut_the_shape() -> None:
    step = draft(StaticPolicy(), COST, StepState(2, 0, np.array([1, 2])), same_children(*[0.2] * 4))
    assert np.bincount(step.forest.request[step.selected]).tolist() == [4, 12]


def test_a_drafter_without_an_idea_leaves_plain_decoding() -> None:
    assert len(draft(StaticPolicy(), COST, state_of(1), nothing_found).selected) == 0


def test_every_step_starts_afresh() -> None:
    policy = StaticPolicy()
    first, second = (draft(policy, COST, state_of(batch), same_children(0.5, 0.5)) for batch in (3, 1))
    assert len(second.selected) == len(first.selected) / 3


@pytest.mark.parametrize("shape", [[], [()], [(0,), ()], [(0, 0)], [(0,), (1, 0)], [(0,), (0, 0, 0)]])
def test_a_shape_with_a_hole_is_refused(shape: list[tuple[int, ...]]) -> None:
    with pytest.raises(InputError, match="static needs a shape"):
        StaticPolicy(shape=shape)
