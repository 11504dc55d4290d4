"""What the next level is expected to bring: a prior first, then what past levels brought."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.policies.growth import Growth, above_price, best_width
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


def test_depths_never_drafted_are_expected_to_bring_what_the_deepest_known_one_does() -> None:
    growth = learned(grown(2, 0.9))
    np.testing.assert_array_equal(growth.gains(np.array([0.5]), 5), growth.gains(np.array([0.5]), 1))
    assert growth.gains(np.array([1.0]), 5)[0] == pytest.approx(0.9, rel=1e-3)


def test_before_anything_was_drafted_every_depth_has_the_prior() -> None:
    growth = Growth()
    np.testing.assert_array_equal(growth.gains(np.array([1.0]), 0), growth.gains(np.array([1.0]), 7))
    assert 0.5 < growth.gains(np.array([1.0]), 0)[0] < 0.8


def test_likely_parents_count_for_more() -> None:
    # Two parents at 0.8 and 0.2 with a child at 0.5 and 1.0 each: (0.8 * 0.5 + 0.2 * 1.0) / (0.8 + 0.2) = 0.6.
    forest = grow(1, [candidates_of([0, 0], [0.8, 0.2]), candidates_of([1, 2], [0.5, 1.0])])
    assert learned(forest).gains(np.array([1.0]), 1)[0] == pytest.approx(0.6, rel=1e-3)


def first_rate(growth: Growth, depth: int = 0) -> float:
    return float(growth.gains(np.array([1.0]), depth)[0])


def test_at_first_it_is_the_plain_mean_with_a_prior_of_three_steps() -> None:
    growth, prior = Growth(window=50.0), first_rate(Growth())
    seen = [0.9, 0.1, 0.4, 0.0, 0.3, 0.8]
    for count, value in enumerate(seen, start=1):
        growth.observe(grown(1, value), np.array([0]))
        assert first_rate(growth) == pytest.approx((3 * prior + sum(seen[:count])) / (3 + count))


def test_later_a_step_moves_the_mean_by_its_share_of_the_window() -> None:
    growth = Growth(window=10.0)
    for _ in range(30):
        growth.observe(grown(1, 0.2), np.array([0]))
    before = first_rate(growth)
    growth.observe(grown(1, 1.0), np.array([0]))
    assert first_rate(growth) == pytest.approx(before + (1.0 - before) / 10)


def test_depths_that_are_not_reached_keep_their_mean_but_the_next_look_counts_for_more() -> None:
    growth = learned(grown(2, 0.4))
    for _ in range(200):
        growth.observe(grown(1, 0.4), np.array([0]))
    assert first_rate(growth, 1) == pytest.approx(0.4, rel=1e-3)
    two_levels = grown(2, 0.8)
    growth.observe(two_levels, parents_of(two_levels))
    assert first_rate(growth, 0) == pytest.approx(0.4 + 0.4 / 50, rel=1e-3)
    # 50 steps were worth remembering; 200 steps later 50 * 0.98^200 = 0.9 of them are left: a rate of 1 / 4.9.
    assert first_rate(growth, 1) == pytest.approx(0.4 + 0.4 / (4 + 50 * 0.98**200), rel=1e-3)


def test_a_step_without_drafts_teaches_nothing() -> None:
    # Nothing was asked of the drafter, so nothing is known.
    growth = learned(Forest(np.zeros(3, np.int64)))
    np.testing.assert_array_equal(growth.gains(np.array([1.0]), 0), Growth().gains(np.array([1.0]), 0))


def test_a_node_that_was_expanded_in_vain_counts() -> None:
    growth = Growth()
    for _ in range(500):
        growth.observe(Forest(np.zeros(1, np.int64)), np.array([0]))
    np.testing.assert_allclose(growth.gains(np.array([1.0]), 0), 0, atol=1e-3)


# --- how wide a level should be ------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(0.0, 1.0), max_size=12),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
    st.floats(0.0, 0.5),
    st.lists(st.floats(0.0, 0.5), min_size=12, max_size=12),
)
@settings(deadline=None, max_examples=300)
def test_no_other_width_is_worth_more(
    paths: list[float], rates: list[float], row_price: float, rises: list[float]
) -> None:
    falling, prices = sorted(paths, reverse=True), np.cumsum(rises)
    values = [0.0]
    for width in range(1, len(falling) + 1):
        brought = sum(max(path * rate - row_price, 0.0) for path in falling[:width] for rate in rates)
        values.append(brought - float(prices[width - 1]))
    above = above_price(np.array(falling), np.array(rates), row_price)
    width = best_width(above, prices[: len(falling)])
    assert values[width] == pytest.approx(max(values), abs=1e-12)


def test_a_width_by_hand() -> None:
    # Rates 0.5 and 0.2, a row at 0.1: 0.9 brings (0.45 - 0.1) + (0.18 - 0.1) = 0.43, 0.5 brings 0.15, 0.1 nothing.
    paths, rates = np.array([0.9, 0.5, 0.1]), np.array([0.5, 0.2])
    brought = above_price(paths, rates, 0.1)
    np.testing.assert_allclose(brought, [0.43, 0.15, 0.0])
    assert best_width(brought, np.array([0.2, 0.3, 0.4])) == 2  # 0.23, 0.28, 0.18
    assert best_width(brought, np.array([0.2, 0.4, 0.6])) == 1  # 0.23, 0.18
    assert best_width(brought, np.array([0.5, 0.7, 0.9])) == 0
    assert best_width(brought, np.array([0.43, 0.58, 0.6])) == 0  # nothing to gain: the smaller one
    assert best_width(np.empty(0), np.empty(0)) == 0


def test_a_bend_of_the_draft_cost_that_pays_later_is_stepped_over() -> None:
    # The second node loses (0.1 for 0.3) and the ones after it are free: three are worth less than one, eight more.
    assert best_width(np.full(3, 0.1), np.array([0.05, 0.35, 0.35])) == 1
    assert best_width(np.full(8, 0.1), np.array([0.05, *[0.35] * 7])) == 8


def test_another_engine_begins_with_what_was_learned_and_soon_follows_its_own_text() -> None:
    first, second = learned(grown(3, 0.8, 0.1, 0.05, 0.01)), Growth()
    assert not second.known
    second.load_json(first.to_json())
    assert second.known
    for depth in range(4):
        np.testing.assert_allclose(second.at(depth), first.at(depth), rtol=1e-3)
    forest = grown(1, 0.4, 0.1, 0.05, 0.01)
    for _ in range(30):
        second.observe(forest, parents_of(forest))
    assert second.at(0)[0] < 0.55


def test_what_is_known_of_a_drafter_is_believed_before_anything_was_seen() -> None:
    growth = Growth()
    growth.expect([[0.7, 0.1, 0.05, 0.02, 0.01], [0.5, 0.1, 0.05, 0.02, 0.01]])
    assert growth.known
    assert growth.at(0).tolist() == [0.7, 0.1, 0.05, 0.02]
    assert growth.highest(5) == 0.5
    growth.expect([])
    assert not growth.known


@pytest.mark.parametrize("bad", [{"means": [[0.5] * 3], "steps": [1]}, {"means": [[0.5] * 4], "steps": []}])
def test_what_has_another_shape_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="shape"):
        Growth().load_json(bad)
