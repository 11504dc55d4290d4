"""The cost model hands the table's answers on, until the clock says otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.cost import CostModel, CostPoint, CostTable
from smartree.cost.padding import PaddingCost

TABLE = CostTable([CostPoint(2, 2, 0, 1.0), CostPoint(2, 10, 0, 5.0)])


def slowed(ratio: float, steps: int = 100) -> CostModel:
    """A model whose clock takes `ratio` times what its table says, at every size."""
    model = CostModel(TABLE)
    for step in range(steps):
        tokens = 2 + step % 9
        model.observe(2, tokens, 0, ratio * float(TABLE.seconds(2, tokens, 0)))
    return model


def test_the_model_answers_what_the_table_measured() -> None:
    model = CostModel(TABLE)
    assert model.autoregressive(2, 0) == 1.0
    np.testing.assert_allclose(model.verify(2, np.array([2, 6, 10]), 0), [1.0, 3.0, 5.0])
    assert model.overhead == 0.0
    assert not model.draft.by_level
    assert model.draft.seconds_per_step == 0.0


def test_what_the_clock_says_corrects_every_answer() -> None:
    model = slowed(2.0)
    assert model.autoregressive(2, 0) == pytest.approx(2.0, rel=0.02)
    np.testing.assert_allclose(model.verify(2, np.array([2, 6, 10]), 0), [2.0, 6.0, 10.0], rtol=0.02)
    assert float(model.verify(2, 6, 0)) == pytest.approx(6.0, rel=0.02)
    assert float(model.table.seconds(2, 6, 0)) == 3.0  # the measurements stay what they are


def test_answers_of_a_corrected_model_do_not_depend_on_what_was_asked_before() -> None:
    fresh, used = slowed(0.5), slowed(0.5)
    used.verify(2, 5, 0)
    used.verify(4, 700, 640)
    wanted = np.array([2, 9, 511, 512, 3000])
    np.testing.assert_array_equal(used.verify(2, wanted, 0), fresh.verify(2, wanted, 0))
    np.testing.assert_array_equal([float(used.verify(2, int(n), 0)) for n in wanted], fresh.verify(2, wanted, 0))


def test_an_answer_follows_each_new_observation() -> None:
    model = slowed(1.0)
    before = model.autoregressive(2, 0)
    for _ in range(20):
        model.observe(2, 2, 0, 3.0)
    assert model.autoregressive(2, 0) > 2 * before


def test_contexts_are_answered_apart() -> None:
    points = [CostPoint(1, n, context, 1.0 + context / 1000) for n in (1, 8) for context in (32, 1032)]
    model = CostModel(CostTable(points))
    for _ in range(50):
        model.observe(1, 1, 32, 2 * float(model.table.seconds(1, 1, 32)))
    short, long = model.autoregressive(1, 32), model.autoregressive(1, 1032)
    assert (short, long) == pytest.approx((2 * 1.032, 2 * 2.032), rel=0.02)
    assert model.autoregressive(1, 32) == short


def test_without_a_padding_cost_uneven_trees_cost_what_their_rows_do() -> None:
    model = CostModel(TABLE)
    assert model.padding.free
    np.testing.assert_array_equal(model.unevenness(2, np.array([3, 4, 7]), np.array([2, 3, 6]), 0), np.zeros(3))


def test_unevenness_is_what_the_rows_of_padding_cost() -> None:
    model = CostModel(TABLE, padding=PaddingCost(0.5, 1e-3))
    tokens, widths = np.array([2, 3, 4, 4, 7]), np.array([1, 2, 2, 3, 6])
    seconds = model.unevenness(2, tokens, widths, 100)
    np.testing.assert_allclose(seconds, [0.0, 0.5 + 0.1, 0.0, 0.5 + 0.2, 0.5 + 0.5])
    assert float(model.unevenness(2, 7, 6, 100)) == pytest.approx(1.0)


def test_unevenness_follows_the_clock() -> None:
    model = CostModel(TABLE, padding=PaddingCost(0.5, 1e-3))
    for step in range(100):
        tokens = 2 + step % 9
        model.observe(2, tokens, 0, 1.7 * float(TABLE.seconds(2, tokens, 0)))
    assert float(model.unevenness(2, 3, 2, 100)) == pytest.approx(1.7 * 0.6, rel=0.02)
    assert float(model.unevenness(2, 4, 2, 100)) == 0.0


def test_padding_is_not_blamed_on_the_size_of_the_pass() -> None:
    padding = PaddingCost(0.5, 1e-2)
    aware, unaware = CostModel(TABLE, padding=padding), CostModel(TABLE, padding=padding)
    for step in range(200):
        tokens, width = (6, 5) if step % 2 else (4, 2)  # four rows of padding, or none
        seconds = float(TABLE.seconds(2, tokens, 0)) + float(padding.of(2 * width - tokens, 0))
        aware.observe(2, tokens, 0, seconds, width)
        unaware.observe(2, tokens, 0, seconds)
    np.testing.assert_allclose(aware.verify(2, np.arange(2, 11), 0), TABLE.seconds(2, np.arange(2, 11), 0), rtol=1e-9)
    assert float(unaware.verify(2, 6, 0)) > 1.2 * float(TABLE.seconds(2, 6, 0))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_none_teach_nothing(seconds: float) -> None:
    model = CostModel(TABLE)
    for _ in range(50):
        model.observe(2, 6, 0, seconds)
    model.observe(0, 0, 0, 1.0)
    assert model.refinement.version == 0
    assert model.autoregressive(2, 0) == 1.0


def test_uneven_passes_say_nothing_of_even_ones() -> None:
    model, sizes = CostModel(TABLE, padding=PaddingCost(0.1)), np.arange(2, 11)
    for step in range(400):  # even passes are as the table says, uneven ones of 6 rows take half as long again
        tokens, width, slower = (6, 4, 1.5) if step % 2 else (4, 2, 1.0)
        padding = 0.1 if step % 2 else 0.0
        model.observe(2, tokens, 0, slower * (float(TABLE.seconds(2, tokens, 0)) + padding), width)
    even, uneven = model.verify(2, sizes, 0), model.verify(2, sizes, 0) + model.unevenness(2, sizes, sizes, 0)
    at = int(np.flatnonzero(sizes == 6)[0])
    expected = float(TABLE.seconds(2, 6, 0))
    assert uneven[at] == pytest.approx(1.5 * (expected + 0.1), rel=0.1)
    assert even[at] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("steps", [0, 40])
def test_one_answer_is_one_of_many(steps: int) -> None:
    model = slowed(1.3, steps)
    curve = model.curve(2, 60, 100)
    np.testing.assert_array_equal(curve[2:61], model.verify(2, np.arange(2, 61), 100))
    assert [model.pass_seconds(2, rows, 100) for rows in (4, 9, 60)] == curve[[4, 9, 60]].tolist()
    with pytest.raises(ValueError, match="read-only"):
        curve[5] = 0.0


def test_a_curve_is_the_same_object_until_the_clock_has_said_something_new() -> None:
    model = slowed(1.3)
    curve = model.curve(2, 60, 100)
    assert model.curve(2, 30, 127) is curve  # one bucket of contexts
    for _ in range(8):
        model.observe(2, 8, 100, 2.0 * model.pass_seconds(2, 8, 100))
    assert model.curve(2, 60, 100) is not curve


@pytest.mark.parametrize(("rows", "width"), [(16, 4), (16, 5), (16, 13), (4, 1)])
@pytest.mark.parametrize("steps", [0, 100])
def test_the_unevenness_of_one_pass_is_one_of_many(rows: int, width: int, steps: int) -> None:
    model = CostModel(TABLE, padding=PaddingCost(1e-3, 1e-6))
    for step in range(steps):
        model.observe(4, 16, 100, 0.03, width=4 + step % 3)
    many = model.unevenness(4, np.array([rows, rows]), np.array([width, width]), 100)
    assert many.tolist() == [model.uneven_seconds(4, rows, width, 100)] * 2
