"""The measured table: monotone, exact on plateaus, sane beyond what was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from smartree.cost import CostPoint, CostTable
from smartree.errors import InputError

NAN, INFINITY = float("nan"), float("inf")
SECONDS = st.floats(1e-4, 1.0)


def table(tokens: Sequence[int], seconds: Sequence[float], batch: int = 1, context: int = 0) -> CostTable:
    return CostTable([CostPoint(batch, n, context, s) for n, s in zip(tokens, seconds, strict=True)])


def line(batch: int, context: int, base: float, slope: float) -> list[CostPoint]:
    return [CostPoint(batch, n, context, base + slope * n) for n in (4, 8, 16, 32, 64)]


def staircase(tokens: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """1 s up to 8 tokens, 3 s up to 16, 4 s up to 32, 9 s from there on."""
    return np.asarray([1.0, 3.0, 4.0, 9.0])[np.searchsorted([8, 16, 32], tokens)]


def test_a_staircase_measured_at_both_sides_of_each_step_is_reproduced_exactly() -> None:
    measured = np.array([1, 8, 9, 16, 17, 32, 33, 40])
    everywhere = np.arange(1, 41)
    predicted = table(measured.tolist(), staircase(measured).tolist()).seconds(1, everywhere, 0)
    np.testing.assert_allclose(predicted, staircase(everywhere), rtol=1e-12)


def test_points_between_two_measurements_lie_on_the_line() -> None:
    predicted = table([1, 9], [1.0, 3.0]).seconds(1, np.array([1, 3, 5, 9]), 0)
    np.testing.assert_allclose(predicted, [1.0, 1.5, 2.0, 3.0])


def test_noise_that_says_more_tokens_are_cheaper_is_averaged_out() -> None:
    # Isotonic regression of 1, 3, 2, 4 pools the violating pair: 1, 2.5, 2.5, 4.
    predicted = table([1, 2, 3, 4], [1.0, 3.0, 2.0, 4.0]).seconds(1, np.arange(1, 5), 0)
    np.testing.assert_allclose(predicted, [1.0, 2.5, 2.5, 4.0])


def test_rows_may_come_in_any_order() -> None:
    shuffled = table([9, 1, 4], [9.0, 1.0, 4.0])
    np.testing.assert_allclose(shuffled.seconds(1, np.arange(1, 10), 0), np.arange(1, 10))


@given(st.dictionaries(st.integers(1, 200), SECONDS, min_size=1, max_size=12))
@settings(deadline=None, max_examples=150)
def test_predictions_never_fall_with_tokens_and_stay_within_what_was_measured(measured: dict[int, float]) -> None:
    predicted = table(list(measured), list(measured.values())).seconds(1, np.arange(1, 600), 0)
    assert np.all(np.diff(predicted) >= -1e-12)
    inside = predicted[: max(measured)]
    assert inside.min() >= min(measured.values()) * (1 - 1e-12)
    assert inside.max() <= max(measured.values()) * (1 + 1e-12)


@given(
    st.dictionaries(
        st.integers(0, 30).map(lambda blocks: 100 * blocks),
        st.lists(SECONDS, min_size=2, max_size=2),
        min_size=2,
        max_size=4,
    )
)
@settings(deadline=None, max_examples=150)
def test_a_pass_is_never_cheaper_with_more_context(measured: dict[int, list[float]]) -> None:
    points = [CostPoint(1, n, c, s) for c, row in measured.items() for n, s in zip((1, 32), row, strict=True)]
    noisy = CostTable(points)
    for tokens in (1, 7, 32, 40):
        by_context = [float(noisy.seconds(1, tokens, context)) for context in range(0, 4000, 50)]
        assert np.all(np.diff(by_context) >= -1e-12)


def test_a_dip_at_the_middle_context_does_not_make_longer_contexts_cheaper() -> None:
    # The smallest case of the law above: 10 s at 0, 5 s at 512 (noise), 20 s at 1024.
    noisy = CostTable([CostPoint(1, 1, context, seconds) for context, seconds in ((0, 10.0), (512, 5.0), (1024, 20.0))])
    by_context = [noisy.autoregressive(1, context) for context in range(0, 1100, 64)]
    assert by_context == sorted(by_context)


def test_contexts_between_two_measured_ones_lie_on_the_line_and_go_on_past_the_last() -> None:
    # Contexts are looked up in buckets of 64 at their middle, so these are exact where the context is 32 + 64 k.
    measured = CostTable([*line(1, 32, 1.0, 0.0), *line(1, 672, 3.0, 0.0)])
    assert float(measured.seconds(1, 8, 32)) == pytest.approx(1.0)
    assert float(measured.seconds(1, 8, 352)) == pytest.approx(2.0)
    assert float(measured.seconds(1, 8, 672)) == pytest.approx(3.0)
    assert float(measured.seconds(1, 8, 1312)) == pytest.approx(5.0)


def test_contexts_below_the_smallest_measured_one_cost_what_it_costs() -> None:
    measured = CostTable([*line(1, 1024, 1.0, 0.1), *line(1, 2048, 3.0, 0.1)])
    assert float(measured.seconds(1, 8, 0)) == pytest.approx(1.8)


def test_a_context_within_a_bucket_is_off_by_no_more_than_the_bucket() -> None:
    measured = CostTable([*line(1, 0, 1.0, 0.0), *line(1, 1000, 2.0, 0.0)])
    for context in (0, 63, 64, 500, 999):
        assert float(measured.seconds(1, 8, context)) == pytest.approx(1 + context / 1000, abs=0.033)


def test_extrapolation_continues_the_slope() -> None:
    predicted = table([1, 8, 16, 24, 32], [1.0, 1.0, 2.0, 3.0, 4.0]).seconds(1, np.array([40, 64, 1032]), 0)
    np.testing.assert_allclose(predicted, [5.0, 8.0, 129.0])


def test_extrapolation_of_a_flat_or_single_measurement_is_flat() -> None:
    assert float(table([1], [2.0]).seconds(1, 50, 0)) == 2.0
    assert float(table([1, 2, 3, 4], [2.0] * 4).seconds(1, 500, 0)) == pytest.approx(2.0)


def test_a_batch_between_two_measured_ones_lies_on_the_line_between_them() -> None:
    measured = CostTable([*line(1, 0, 1.0, 0.1), *line(4, 0, 7.0, 0.2)])
    # One third of the way from batch 1 to batch 4, at 16 tokens: 2.6 + (10.2 - 2.6) / 3.
    assert float(measured.seconds(2, 16, 0)) == pytest.approx(2.6 + 7.6 / 3)
    assert float(measured.seconds(1, 16, 0)) == pytest.approx(2.6)
    assert float(measured.seconds(4, 16, 0)) == pytest.approx(10.2)


def test_a_batch_outside_the_measured_ones_takes_the_nearest() -> None:
    measured = CostTable([*line(2, 0, 1.0, 0.1), *line(4, 0, 7.0, 0.2)])
    assert float(measured.seconds(1, 16, 0)) == float(measured.seconds(2, 16, 0))
    assert float(measured.seconds(9, 16, 0)) == float(measured.seconds(4, 16, 0))
    assert measured.batches == (2, 4)


def test_repeated_rows_count_by_their_median() -> None:
    # One slow outlier must not move the table; a mean would say 4.
    assert float(table([1, 1, 1], [1.0, 10.0, 1.0]).seconds(1, 1, 0)) == 1.0


def test_autoregressive_is_a_pass_of_one_token_per_request() -> None:
    measured = CostTable([CostPoint(4, 4, 0, 2.0), CostPoint(4, 40, 0, 5.0)])
    assert measured.autoregressive(4, 0) == 2.0


def test_answers_do_not_depend_on_what_was_asked_before() -> None:
    tokens, seconds = [1, 100, 3000], [1.0, 2.0, 40.0]
    fresh = table(tokens, seconds)
    used = table(tokens, seconds)
    used.seconds(1, 5, 0)  # caches a short curve
    used.seconds(1, 5, 640)
    wanted = np.array([1, 700, 2999, 20_000])
    np.testing.assert_array_equal(used.seconds(1, wanted, 0), fresh.seconds(1, wanted, 0))
    np.testing.assert_array_equal([float(used.seconds(1, int(n), 0)) for n in wanted], fresh.seconds(1, wanted, 0))


@pytest.mark.parametrize(
    "row",
    [
        CostPoint(1, 1, 0, 0.0),
        CostPoint(1, 1, 0, -1.0),
        CostPoint(1, 1, 0, NAN),
        CostPoint(1, 1, 0, INFINITY),
        CostPoint(4, 3, 0, 1.0),  # fewer tokens than requests
        CostPoint(0, 1, 0, 1.0),
        CostPoint(-1, 1, 0, 1.0),
        CostPoint(1, 1, -64, 1.0),
    ],
)
def test_an_impossible_row_is_refused_by_name(row: CostPoint) -> None:
    with pytest.raises(InputError, match="impossible row") as caught:
        CostTable([CostPoint(1, 1, 0, 1.0), row])
    assert repr(row) in str(caught.value)


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(InputError, match="no verify rows"):
        CostTable([])
