"""What the next level is expected to bring: a prior first, then what past levels brought."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.policies.growth import Growth
from smartree.tree import Forest
from tests.policies.steps import same_children
from tests.tree.forests import candidates_of, grow


def grown(levels: int, *probabilities: float, batch: int = 1) -> Forest:
    """A forest in which every node has children with these probabilities."""
    forest = Forest(np.zeros(batch, np.int64))
    frontier = np.arange(batch)
    for _ in range(levels):
        frontier = forest.append(same_children(*probabilities)(forest, frontier))
    return forest


def learned(forest: Forest, steps: int = 500) -> Growth:
    growth = Growth()
    for _ in range(steps):
        growth.observe(forest, parents_of(forest))
    return growth


def parents_of(forest: Forest) -> np.ndarray:
    """The nodes that have children: those that were expanded."""
    return np.unique(forest.parent[forest.batch :])


def test_growth_learns_constant_probabilities_at_every_depth() -> None:
    growth = learned(grown(3, 0.7, 0.2, 0.05, 0.01, batch=2))
    for depth in range(3):
        np.testing.assert_allclose(growth.gains(np.array([1.0]), depth), [0.7, 0.2, 0.05, 0.01], rtol=1e-3)


def test_gains_are_the_products_of_paths_and_rates() -> None:
    growth = learned(grown(2, 0.5, 0.25, 0.0, 0.0))
    # 0.3 * (0.5, 0.25) and 0.8 * (0.5, 0.25)
    expected = [0.15, 0.075, 0, 0, 0.4, 0.2, 0, 0]
    np.testing.assert_allclose(growth.gains(np.array([0.3, 0.8]), 1), expected, atol=1e-3)


def test_ranks_a_drafter_never_proposes_are_worth_nothing() -> None:
    growth = learned(grown(1, 0.6))  # one child a node
    np.testing.assert_allclose(growth.gains(np.array([1.0]), 0), [0.6, 0, 0, 0], atol=1e-3)


def test_depths_never_drafted_keep_the_prior() -> None:
    untouched, growth = Growth(), learned(grown(2, 0.9))
    np.testing.assert_array_equal(growth.gains(np.array([0.5]), 2), untouched.gains(np.array([0.5]), 2))
    assert growth.gains(np.array([1.0]), 1)[0] == pytest.approx(0.9, rel=1e-3)


def test_likely_parents_count_for_more() -> None:
    # Two parents at 0.8 and 0.2 with a child at 0.5 and 1.0 each: (0.8 * 0.5 + 0.2 * 1.0) / (0.8 + 0.2) = 0.6.
    forest = grow(1, [candidates_of([0, 0], [0.8, 0.2]), candidates_of([1, 2], [0.5, 1.0])])
    assert learned(forest).gains(np.array([1.0]), 1)[0] == pytest.approx(0.6, rel=1e-3)


def test_one_step_moves_the_mean_by_its_share_of_the_window() -> None:
    growth = Growth(window=10.0)
    before = growth.gains(np.array([1.0]), 0)[0]
    growth.observe(grown(1, 1.0), np.array([0]))
    assert growth.gains(np.array([1.0]), 0)[0] == pytest.approx(before + (1.0 - before) / 10)


def test_a_step_without_drafts_teaches_nothing() -> None:
    # Nothing was asked of the drafter, so nothing is known.
    growth = learned(Forest(np.zeros(3, np.int64)))
    np.testing.assert_array_equal(growth.gains(np.array([1.0]), 0), Growth().gains(np.array([1.0]), 0))


def test_a_node_that_was_expanded_in_vain_counts() -> None:
    growth = Growth()
    for _ in range(500):
        growth.observe(Forest(np.zeros(1, np.int64)), np.array([0]))
    np.testing.assert_allclose(growth.gains(np.array([1.0]), 0), 0, atol=1e-3)
