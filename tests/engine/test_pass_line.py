"""A line through what passes took."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.engine.pass_line import PassLine


def seen(passes: list[tuple[int, float]]) -> PassLine:
    line = PassLine()
    for rows, seconds in passes:
        line.observe(rows, seconds)
    return line


def test_nothing_is_known_before_passes_of_two_sizes() -> None:
    assert seen([]).curve(10) is None
    assert seen([(512, 1.0)] * 5).curve(10) is None
    assert seen([(16, 1.0), (16, 1.1), (16, 0.9)]).curve(10) is None
    assert seen([(512, 1.0), (4, 0.2)]).curve(10) is not None


@pytest.mark.parametrize("passes", [[4, 512], [512] * 50 + [4], [16, 40, 17, 100, 512]])
def test_passes_on_a_line_give_that_line(passes: list[int]) -> None:
    curve = seen([(rows, 0.5 + 0.01 * rows) for rows in passes]).curve(600)
    assert curve is not None
    np.testing.assert_allclose(curve, 0.5 + 0.01 * np.arange(601), rtol=1e-6)


def test_more_rows_never_take_less_time_and_no_pass_less_than_none() -> None:
    falling = seen([(10, 1.0), (100, 0.5)]).curve(200)
    steep = seen([(10, 0.01), (100, 1.0)]).curve(200)
    assert falling is not None
    assert steep is not None
    assert np.all(np.diff(falling) >= 0)
    assert np.all(steep >= 0)


def test_what_a_row_takes_is_remembered_while_all_passes_are_of_one_size() -> None:
    line = seen([(512, 0.5 + 0.01 * 512), *[(4, 0.54), (3, 0.53)] * 1000])
    curve = line.curve(600)
    assert curve is not None
    np.testing.assert_allclose(curve, 0.5 + 0.01 * np.arange(601), rtol=1e-6)
    for _ in range(300):
        line.observe(4, 0.34)  # the machine is faster now
    later = line.curve(600)
    assert later is not None
    np.testing.assert_allclose(later, 0.3 + 0.01 * np.arange(601), rtol=0.01)


def test_a_moment_in_which_the_machine_stood_still_changes_little() -> None:
    line = seen([(rows, 0.5 + 0.01 * rows) for rows in (512, 4, 4, 4, 100, 4, 4)])
    line.observe(4, 100.0)
    curve = line.curve(600)
    assert curve is not None
    assert np.all(curve < 1.5 * (0.5 + 0.01 * np.arange(601)))
    assert np.all(curve > 0.5 * (0.5 + 0.01 * np.arange(601)))


@pytest.mark.parametrize("faster", [2, 5, 100])
def test_every_pass_takes_some_time_whatever_the_clock_does(faster: int) -> None:
    """A slope of a slow hour would say that one row takes less than nothing where sixteen take little."""
    line = seen([(rows, 0.1 + 0.05 * rows) for rows in (512, 16, 16, 100)])
    for rows in (*[16] * 400, 1, 1, 16, 1):
        line.observe(rows, (0.1 + 0.05 * rows) / faster)
        curve = line.curve(20)
        assert curve is not None
        assert np.all(curve[1:] > 0)
        assert curve[1] < curve[16] + 1e-12


def test_a_clock_that_stands_still_tells_nothing() -> None:
    assert seen([(512, 0.0), (4, 0.0), (100, 0.0)]).curve(10) is None


def test_what_was_long_ago_fades() -> None:
    line = seen([(rows, 5.0 + 0.1 * rows) for rows in (4, 60) * 100])
    for _ in range(200):
        for rows in (4, 60):
            line.observe(rows, 0.5 + 0.01 * rows)
    curve = line.curve(100)
    assert curve is not None
    np.testing.assert_allclose(curve, 0.5 + 0.01 * np.arange(101), rtol=0.01)
