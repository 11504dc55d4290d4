"""The oracle's grid: every entry is a tree that can be had, none is there twice, and the usual settings are in it."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.policies.fixed import ORACLE_GRID, TreeSize, fixed_tree
from tests.policies.steps import cost_of, draft, same_children, state_of

COST = cost_of(1, [1.0, 2.0])
# A trunk so likely that every tree is as deep as it may be, and enough side branches to fill any.
TEN = same_children(0.99, *[0.001] * 9)


@pytest.mark.parametrize("depth", sorted({size.depth for size in ORACLE_GRID}))
def test_every_entry_is_reached_exactly(depth: int) -> None:
    for size in ORACLE_GRID:
        if size.depth == depth:
            step = draft(fixed_tree(size), COST, state_of(1), TEN)
            reached = TreeSize(int(step.forest.depth[step.selected].max()), size.top_k, len(step.selected))
            assert reached == size
            assert step.levels == depth


def test_no_two_entries_are_the_same() -> None:
    assert len(set(ORACLE_GRID)) == len(ORACLE_GRID)


def test_the_grid_holds_chains_and_eagle_s_tree_and_single_nodes() -> None:
    assert {TreeSize(n, 1, n) for n in (1, 2, 3, 4, 5, 6, 8)} <= set(ORACLE_GRID)
    assert TreeSize(8, 10, 59) in ORACLE_GRID  # EAGLE's defaults: 60 with the root, 7 passes after the first
    assert all(size.nodes >= size.depth >= 1 and size.top_k >= 1 for size in ORACLE_GRID)


def test_a_fixed_tree_is_the_likelihood_tree_of_its_size() -> None:
    # Two levels, beam 2, 3 nodes: 0.6, 0.6 * 0.6 and 0.3 are the likeliest; 0.6 * 0.3 = 0.18 is not in.
    step = draft(fixed_tree(TreeSize(2, 2, 3)), COST, state_of(2), same_children(0.6, 0.3, 0.1))
    for request in (0, 1):
        own = step.selected[step.forest.request[step.selected] == request]
        np.testing.assert_allclose(step.forest.path[own], [0.6, 0.36, 0.3])


def test_a_fixed_tree_predicts_its_time() -> None:
    policy = fixed_tree(TreeSize(2, 1, 2), cost_of(1, [1.0, 2.0, 3.0]))
    draft(policy, COST, state_of(1), same_children(0.5))
    assert policy.predicted_seconds == pytest.approx(3.0)
