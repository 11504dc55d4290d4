"""What drafting costs beside its profile: learned from steps, not thrown off by slow moments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartree.cost.drafting import DraftingCost


def test_before_anything_is_seen_the_profile_is_believed() -> None:
    cost = DraftingCost()
    assert cost.level(0.002) == 0.002
    assert cost.deeper_levels(np.array([0.001, 0.002])).tolist() == [0.001, 0.002]


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


def steady(scale: float, per_level: float, plain: float = 0.001) -> DraftingCost:
    """What is believed after many steps: draft times `scale` times the profile's, `per_level` seconds beside."""
    cost = DraftingCost()
    for _ in range(400):
        cost.observe(0, 0.0, 0.0, plain)
    for _ in range(400):
        cost.observe(1, 0.002, 0.002 * scale, plain + per_level)
    return cost


SECONDS = st.floats(0.0, 1.0)


@given(st.integers(1, 5), SECONDS, SECONDS, SECONDS)
def test_a_look_brings_good_news_or_none(levels: int, modelled: float, draft: float, rest: float) -> None:
    cost = steady(scale=3.0, per_level=0.001)
    scale, per_level = cost.scale, cost.seconds_per_level
    cost.observe_look(levels, modelled, draft, rest)
    assert 0.8 * scale - 1e-12 <= cost.scale <= scale
    assert 0.8 * per_level - 1e-12 <= cost.seconds_per_level <= per_level
    assert (cost.scale < scale) == (modelled > 0 and draft < scale * modelled and scale - draft / modelled > 1e-15)


@pytest.mark.parametrize("levels", [1, 2])
def test_looks_correct_a_belief_that_is_too_high_down_to_what_they_saw(levels: int) -> None:
    cost = steady(scale=20.0, per_level=0.01)
    for _ in range(60):
        cost.observe_look(levels, 0.002, 0.004, 0.001 + 0.0005 * levels)
    assert cost.scale == pytest.approx(2.0, rel=0.01)
    assert cost.seconds_per_level == pytest.approx(0.0005, rel=0.01)
    before = cost.level(0.002)
    for _ in range(60):  # and a slow one says nothing
        cost.observe_look(levels, 0.002, 1.0, 1.0)
    assert cost.level(0.002) == before


def test_a_look_of_a_free_drafter_says_nothing_of_its_time() -> None:
    cost = steady(scale=2.0, per_level=0.0)
    before = cost.scale
    cost.observe_look(1, 0.0, 0.001, 0.0)
    assert cost.scale == before


def test_what_is_expected_counts_like_the_profile_s_word_and_gives_way_to_the_clock() -> None:
    cost = DraftingCost()
    cost.expect(1.5, 0.0004)
    assert cost.level(0.002) == pytest.approx(0.0034)
    for _ in range(6):
        cost.observe(1, 0.002, 0.002, 0.0)
    assert cost.scale == pytest.approx((4 * 1.5 + 6 * 1.0) / 10)
    assert cost.seconds_per_level == pytest.approx(4 * 0.0004 / 10)


def test_first_levels_and_deeper_ones_are_told_apart_where_the_clock_does() -> None:
    """The first level reads what was committed, so it is dearer; a second one would seem to be as dear."""
    apart, together = DraftingCost(), DraftingCost()
    for _ in range(300):
        apart.observe(3, 0.003, 0.0045, 0.0, first=(0.001, 0.0025))
        together.observe(3, 0.003, 0.0045, 0.0)
    assert (apart.scale, apart.deeper_scale) == pytest.approx((2.5, 1.0), rel=0.01)
    assert (together.scale, together.deeper_scale) == pytest.approx((1.5, 1.5), rel=0.01)
    assert apart.level(0.001) == pytest.approx(0.0025, rel=0.01)
    assert apart.level(0.001, first=False) == pytest.approx(0.001, rel=0.01)
    assert apart.deeper_levels(np.array([0.001, 0.002])) == pytest.approx([0.001, 0.002], rel=0.01)


def test_a_deeper_level_that_was_never_seen_is_believed_to_cost_what_was_expected() -> None:
    cost = DraftingCost()
    cost.expect(1.3, 0.0)
    for _ in range(100):
        cost.observe(1, 0.001, 0.003, 0.0, first=(0.001, 0.003))
    assert cost.level(0.001) == pytest.approx(0.003, rel=0.01)
    assert cost.level(0.001, first=False) == pytest.approx(0.0013)
    other = DraftingCost()
    other.load_json(cost.to_json())
    assert (other.scale, other.deeper_scale) == (cost.scale, cost.deeper_scale)


def test_what_a_step_takes_beside_a_plain_one_is_known_once_plain_ones_were_seen() -> None:
    cost = DraftingCost()
    assert cost.beside(0.004) == 0.0
    for _ in range(5):
        cost.observe(0, 0.0, 0.0, 0.001)
    assert cost.beside(0.004) == pytest.approx(0.003)
    assert cost.beside(0.0005) == 0.0


def test_another_engine_begins_with_what_was_learned_and_follows_its_own_steps() -> None:
    first, second = DraftingCost(), DraftingCost()
    for _ in range(200):
        first.observe(0, 0.0, 0.0, 0.001)
        first.observe(1, 0.002, 0.003, 0.0015)
    second.load_json(first.to_json())
    assert second.level(0.002) == pytest.approx(first.level(0.002))
    assert second.beside(0.0015) == pytest.approx(first.beside(0.0015))
    before = second.scale
    second.observe(1, 0.002, 0.001, 0.0015)
    assert second.scale == pytest.approx(before + (0.5 - before) / 15)  # after ten steps and the profile's four
    second.observe(0, 0.0, 0.0, 0.003)  # another batch: a plain step's rest is another one
    assert second.beside(0.0035) < 0.002
    for _ in range(20):
        second.observe(1, 0.002, 0.002, 0.0025)
    assert second.scale < 1.2
    with pytest.raises(KeyError):
        second.load_json({"scale": 1.0})
