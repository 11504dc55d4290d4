"""What drafting costs beside its profile: learned from steps, not thrown off by slow moments."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.cost.drafting import DraftingCost


def test_before_anything_is_seen_the_profile_is_believed() -> None:
    cost = DraftingCost()
    assert cost.level(0.002) == 0.002
    assert cost.levels(np.array([0.001, 0.002])).tolist() == [0.001, 0.002]


@pytest.mark.parametrize("levels", [1, 3])
def test_ratio_and_rest_are_learned(levels: int) -> None:
    cost = DraftingCost()
    for _ in range(20):
        cost.observe(0, 0.0, 0.0, 0.001)  # plain steps: what every step costs beside the pass
    for _ in range(200):
        cost.observe(levels, 0.002 * levels, 0.003 * levels, 0.001 + 0.0005 * levels)
    assert cost.scale == pytest.approx(1.5, rel=0.01)
    assert cost.seconds_per_level == pytest.approx(0.0005, rel=0.01)
    assert cost.level(0.002) == pytest.approx(0.0035, rel=0.01)


def test_rest_of_a_speculative_step_that_is_no_larger_than_a_plain_ones_costs_nothing() -> None:
    cost = DraftingCost()
    cost.observe(0, 0.0, 0.0, 0.002)
    cost.observe(2, 0.004, 0.004, 0.001)
    assert cost.seconds_per_level == 0


def test_one_slow_moment_changes_little() -> None:
    cost = DraftingCost()
    for _ in range(100):
        cost.observe(1, 0.002, 0.002, 0.001)
    before = cost.level(0.002)
    cost.observe(1, 0.002, 1.0, 1.0)
    assert cost.level(0.002) < 1.2 * before


def test_one_slow_step_does_not_end_speculation_before_it_was_tried() -> None:
    # The profile's word counts as four steps, and the first step is an outlier like any other.
    cost = DraftingCost()
    cost.observe(1, 0.002, 1.0, 0.001)
    assert cost.scale == pytest.approx((4 + 3) / 5)
    assert cost.seconds_per_level == pytest.approx(0.001 / 5)


def test_the_first_steps_are_averaged_with_the_profile() -> None:
    cost = DraftingCost()
    for _ in range(6):
        cost.observe(1, 0.002, 0.004, 0.0)
    assert cost.scale == pytest.approx((4 * 1 + 6 * 2) / 10)


def test_a_change_is_followed() -> None:
    cost = DraftingCost()
    for measured in (0.002, 0.004):
        for _ in range(150):
            cost.observe(1, 0.002, measured, 0.0)
    assert cost.scale == pytest.approx(2.0, rel=0.01)
