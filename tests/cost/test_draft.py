"""What drafting costs: nothing per level for one-pass drafters, measured levels for the others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smartree.cost import DraftCost, DraftPoint
from smartree.cost.draft import level_points
from smartree.errors import InputError

NAN, INFINITY = float("nan"), float("inf")
LEVELS = DraftCost(
    levels=(
        DraftPoint(1, 1, 1.0),
        DraftPoint(1, 10, 1.9),
        DraftPoint(1, 20, 3.9),
        DraftPoint(4, 4, 2.0),
        DraftPoint(4, 40, 5.6),
    )
)


def test_a_one_pass_drafter_pays_nothing_by_level() -> None:
    assert not DraftCost(0.5).by_level
    assert DraftCost(0.5).level_seconds(4, 100) == 0.0


@pytest.mark.parametrize(("width", "seconds"), [(1, 1.0), (4, 1.3), (10, 1.9), (15, 2.9), (20, 3.9)])
def test_widths_between_measured_ones_lie_on_the_line(width: int, seconds: float) -> None:
    assert LEVELS.by_level
    assert LEVELS.level_seconds(1, width) == pytest.approx(seconds)


def test_between_two_measured_batches_the_smaller_one_counts() -> None:
    halfway = DraftCost(levels=(DraftPoint(3, 1, 3.0), DraftPoint(1, 1, 1.0)))
    assert halfway.level_seconds(2, 1) == 1.0


def test_widths_below_the_smallest_cost_what_it_costs() -> None:
    assert LEVELS.level_seconds(4, 1) == 2.0


def test_widths_past_the_largest_go_on_at_the_mean_slope() -> None:
    # (5.6 - 2.0) / (40 - 4) = 0.1 s per row
    assert LEVELS.level_seconds(4, 60) == pytest.approx(7.6)


@pytest.mark.parametrize(("batch", "nearest"), [(1, 1), (2, 1), (3, 4), (4, 4), (64, 4)])
def test_the_nearest_measured_batch_counts(batch: int, nearest: int) -> None:
    assert LEVELS.level_seconds(batch, 16) == LEVELS.level_seconds(nearest, 16)


def test_wider_levels_are_never_cheaper_whatever_the_noise() -> None:
    noisy = DraftCost(levels=(DraftPoint(1, 1, 2.0), DraftPoint(1, 5, 1.0), DraftPoint(1, 9, 3.0)))
    seconds = [noisy.level_seconds(1, width) for width in range(1, 30)]
    assert seconds == sorted(seconds)


def test_rows_may_come_in_any_order() -> None:
    assert DraftCost(levels=LEVELS.levels[::-1]).level_seconds(1, 4) == pytest.approx(1.3)


@pytest.mark.parametrize("cost", [LEVELS, DraftCost(0.5), DraftCost(levels=(DraftPoint(1, 10, 2.0),))])
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_many_widths_at_once_are_those_widths_one_by_one(cost: DraftCost, batch: int) -> None:
    widths = np.arange(1, 80)
    seconds = cost.level_seconds(batch, widths)
    assert seconds.tolist() == [cost.level_seconds(batch, int(width)) for width in widths]
    assert len(cost.level_seconds(batch, np.empty(0, np.int64))) == 0


def test_the_first_widths_are_those_widths_one_by_one() -> None:
    curve = DraftCost(levels=(DraftPoint(2, 3, 0.01), DraftPoint(2, 9, 0.04))).levels_of(2)
    for count in (4, 2, 0, 30):  # longer and shorter than what was asked before
        assert curve.first(count).tolist() == [curve.at(width) for width in range(1, count + 1)]


def test_costs_are_equal_whatever_they_were_asked() -> None:
    asked, fresh = DraftCost(levels=LEVELS.levels), DraftCost(levels=LEVELS.levels)
    asked.level_seconds(4, 7)
    assert asked == fresh
    assert repr(asked) == repr(fresh)


def test_one_measured_width_is_taken_for_all() -> None:
    assert DraftCost(levels=(DraftPoint(1, 10, 2.0),)).level_seconds(1, 100) == 2.0


def test_repeated_measurements_of_one_width_give_a_finite_time() -> None:
    # As in the verify table, a width may be measured more than once.
    twice = DraftCost(levels=(DraftPoint(1, 10, 1.0), DraftPoint(1, 10, 2.0)))
    assert math.isfinite(twice.level_seconds(1, 20))


@pytest.mark.parametrize("seconds", [-1.0, NAN, INFINITY])
def test_a_bad_constant_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="seconds_per_step"):
        DraftCost(seconds)


@pytest.mark.parametrize(
    "point",
    [
        DraftPoint(1, 1, 0.0),
        DraftPoint(1, 1, NAN),
        DraftPoint(1, 1, -1.0),
        DraftPoint(1, 0, 1.0),
        DraftPoint(0, 1, 1.0),
    ],
)
def test_a_bad_level_is_refused(point: DraftPoint) -> None:
    with pytest.raises(InputError, match="draft level"):
        DraftCost(levels=(DraftPoint(1, 1, 1.0), point))


def test_level_points_come_from_json_rows() -> None:
    assert level_points([{"batch": 2, "width": 8, "seconds": 0.5}]) == (DraftPoint(2, 8, 0.5),)
