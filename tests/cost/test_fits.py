"""Smooth curves: generated ones are found again, errors are honest, the best one is named, and nothing overflows."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.cost import (
    CostPoint,
    DraftCost,
    DraftPoint,
    PowerExponential,
    Profile,
    fit_power_exponential,
    power_exponential_fits,
)
from smartree.cost.curves import Curve, KneeCurve, LinearCurve, RooflineCurve
from smartree.cost.fits import (
    choose_curve,
    curve_fits,
    draft_fits,
    fit_knee,
    fit_linear,
    fit_roofline,
    fit_warnings,
)
from tests.cost.keys import KEY

ROWS = np.array([1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256], np.float64)
FREE = [  # gamma, delta, rho, eta
    (1e-3, 0.02, 1.0, 10e-3),  # a flat floor, then a bend
    (5e-3, 0.05, 0.6, 1e-3),
    (2e-3, 1e-3, 1.3, 30e-3),
    (0.5, 0.3, 0.3, 0.2),
]
FIXED = [(20e-3, 0.4, 0.25, 0.0), (1e-3, 0.02, 1.0, 0.0), (10e-3, 0.1, 0.7, 0.0), (3e-3, 2e-3, 1.2, 0.0)]


def curve(gamma: float, delta: float, rho: float, eta: float) -> PowerExponential:
    return PowerExponential(gamma, delta, rho, eta, 0.0)


@pytest.mark.parametrize("parameters", FREE + FIXED)
def test_a_generated_curve_with_a_floor_is_found_again(parameters: tuple[float, float, float, float]) -> None:
    truth = curve(*parameters)
    fit = fit_power_exponential(ROWS, truth.seconds(ROWS))
    between = np.linspace(1, 256, 100)
    np.testing.assert_allclose(fit.seconds(between), truth.seconds(between), rtol=0.01)
    assert fit.residual < 0.01


@pytest.mark.parametrize("parameters", FIXED)
def test_a_generated_curve_without_a_floor_is_found_again_with_eta_fixed(
    parameters: tuple[float, float, float, float],
) -> None:
    truth = curve(*parameters)
    fit = fit_power_exponential(ROWS, truth.seconds(ROWS), free_eta=False)
    assert fit.eta == 0.0
    between = np.linspace(1, 256, 100)
    np.testing.assert_allclose(fit.seconds(between), truth.seconds(between), rtol=0.01)


def test_a_flat_pass_gets_a_flat_curve() -> None:
    fit = fit_power_exponential(ROWS, np.full(len(ROWS), 10e-3))
    np.testing.assert_allclose(fit.seconds(ROWS), 10e-3, rtol=0.01)
    assert math.exp(fit.log_slope(256.0)) * 256 < 0.01 * 10e-3


@pytest.mark.parametrize("fit", [fit_linear, fit_roofline, fit_knee, fit_power_exponential])
def test_the_residual_is_the_root_mean_square_of_the_relative_errors(fit: Callable[..., Curve]) -> None:
    rows, seconds = np.arange(1.0, 9.0), np.array([1.0, 3.0] * 4)  # no curve goes through these
    found = fit(rows, seconds)
    assert found.residual == pytest.approx(np.sqrt(np.mean((found.seconds(rows) / seconds - 1) ** 2)), rel=1e-6)
    assert found.residual > 0.2


def test_a_floor_cannot_be_expressed_without_eta() -> None:
    # Why the default leaves eta free: the paper's curve goes through the origin, a memory-bound pass does not.
    seconds = np.where(ROWS <= 64, 10e-3, 10e-3 * ROWS / 64)
    assert fit_power_exponential(ROWS, seconds).residual < fit_power_exponential(ROWS, seconds, free_eta=False).residual


@pytest.mark.parametrize("parameters", FREE + FIXED)
@pytest.mark.parametrize("rows", [1.0, 7.0, 100.0])
def test_log_slope_is_the_logarithm_of_the_numeric_derivative(
    parameters: tuple[float, float, float, float], rows: float
) -> None:
    truth, step = curve(*parameters), 1e-4 * rows
    numeric = (float(truth.seconds(rows + step)) - float(truth.seconds(rows - step))) / (2 * step)
    assert truth.log_slope(rows) == pytest.approx(math.log(numeric), abs=1e-5)


def test_log_slope_does_not_overflow_at_a_million_rows() -> None:
    # log(1e-3 * 0.02 * 1) + 0 * log(1e6) + 0.02 * 1e6, while exp(20000) overflows a double.
    assert curve(1e-3, 0.02, 1.0, 0.0).log_slope(1e6) == pytest.approx(math.log(2e-5) + 20_000)
    assert float(curve(1e-3, 0.02, 1.0, 0.0).seconds(1e6)) == math.inf


def test_seconds_of_a_curve_by_hand() -> None:
    # 2 * (exp(ln 2 * 3) - 1) + 5 = 2 * 7 + 5
    assert float(curve(2.0, math.log(2), 1.0, 5.0).seconds(3)) == pytest.approx(19.0)


def test_fits_are_made_per_batch_over_rows_per_request_at_the_smallest_context() -> None:
    truth = curve(1e-3, 0.1, 1.0, 10e-3)
    points = [CostPoint(4, 4 * n, 128, float(truth.seconds(n))) for n in (1, 2, 4, 8, 16)]
    points += [CostPoint(4, 4 * n, 4096, 1.0) for n in (1, 2, 4, 8, 16)]  # another context: not to be mixed in
    points += [CostPoint(1, n, 0, 1.0) for n in (1, 2, 3)]  # too few sizes for three or four parameters
    fits = power_exponential_fits(points)
    assert set(fits) == {4}
    np.testing.assert_allclose(fits[4].seconds(np.arange(1.0, 17.0)), truth.seconds(np.arange(1.0, 17.0)), rtol=0.01)
    assert power_exponential_fits(points, free_eta=False)[4].eta == 0.0


def test_repeats_of_few_sizes_are_not_enough_to_fit() -> None:
    assert power_exponential_fits([CostPoint(1, n, 0, 1.0) for n in (1, 2, 3, 1, 2, 3)]) == {}


# --- the other curves --------------------------------------------------------------------------------------------

SIMPLE: list[tuple[Callable[..., Curve], Curve]] = [
    (fit_linear, LinearCurve(5e-3, 1e-3, 0.0)),
    (fit_linear, LinearCurve(5e-3, 0.0, 0.0)),
    (fit_linear, LinearCurve(0.0, 2e-3, 0.0)),
    (fit_roofline, RooflineCurve(10e-3, 1.25e-3, 2e-3, 0.0)),  # bends at a measured size, 8
    (fit_roofline, RooflineCurve(10e-3, 0.3e-3, 1e-3, 0.0)),  # between two, at 33.3
    (fit_roofline, RooflineCurve(1e-3, 1e-3, 0.0, 0.0)),  # never flat
    (fit_knee, KneeCurve(10e-3, 0.1e-3, 24.0, 1e-3, 0.0)),
    (fit_knee, KneeCurve(3e-3, 0.5e-3, 70.7, 2e-3, 0.0)),
    (fit_knee, KneeCurve(10e-3, 0.0, 5.0, 1e-3, 0.0)),
]


@pytest.mark.parametrize(("fit", "truth"), SIMPLE)
def test_generated_curves_are_found_again(fit: Callable[..., Curve], truth: Curve) -> None:
    found = fit(ROWS, truth.seconds(ROWS))
    assert found.residual < 1e-6
    np.testing.assert_allclose(found.seconds(np.arange(1.0, 300.0)), truth.seconds(np.arange(1.0, 300.0)), rtol=1e-4)
    assert found.held_out is None


@pytest.mark.parametrize(("fit", "truth"), SIMPLE)
def test_noise_of_three_percent_moves_a_curve_by_about_as_much(fit: Callable[..., Curve], truth: Curve) -> None:
    errors = []
    for seed in range(5):
        noise = np.exp(0.03 * np.random.default_rng(seed).normal(size=len(ROWS)))
        found = fit(ROWS, truth.seconds(ROWS) * noise)
        errors.append(np.mean(np.abs(found.seconds(ROWS) / truth.seconds(ROWS) - 1)))
        assert found.residual < 0.05
    assert np.mean(errors) < 0.03


def test_parameters_come_back_too() -> None:
    truth = RooflineCurve(10e-3, 0.3e-3, 1e-3, 0.0)
    roofline = fit_roofline(ROWS, truth.seconds(ROWS))
    assert roofline.knee == pytest.approx(10 / 0.3, rel=1e-3)
    assert (roofline.memory, roofline.compute, roofline.overhead) == pytest.approx((10e-3, 0.3e-3, 1e-3), rel=1e-3)
    knee = fit_knee(ROWS, KneeCurve(3e-3, 0.5e-3, 70.7, 2e-3, 0.0).seconds(ROWS))
    assert (knee.base, knee.slope, knee.knee, knee.bend) == pytest.approx((3e-3, 0.5e-3, 70.7, 2e-3), rel=1e-3)


def test_a_roofline_whose_rows_are_free_has_no_knee() -> None:
    assert RooflineCurve(1.0, 0.0, 0.0, 0.0).knee == math.inf


def test_a_line_through_the_origin_is_an_option() -> None:
    # Least relative errors of s n on (1, 3) and (2, 4): sum of (s n / t - 1)^2 is least at
    # s = sum(n / t) / sum(n^2 / t^2) = (1/3 + 1/2) / (1/9 + 1/4) = 30/13.
    line = fit_linear(np.array([1.0, 2.0]), np.array([3.0, 4.0]), free_base=False)
    assert (line.base, line.slope) == pytest.approx((0.0, 30 / 13))
    free = fit_linear(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    assert (free.base, free.slope, free.residual) == pytest.approx((2.0, 1.0, 0.0), abs=1e-12)


@given(st.lists(st.floats(1e-5, 10.0), min_size=4, max_size=10))
@settings(deadline=None, max_examples=60)
def test_no_curve_falls_or_goes_below_zero_whatever_was_measured(seconds: list[float]) -> None:
    rows = np.arange(1.0, len(seconds) + 1)
    fits: tuple[Callable[..., Curve], ...] = (fit_linear, fit_roofline, fit_knee)
    for fit in fits:
        predicted = fit(rows, np.array(seconds)).seconds(np.linspace(0.0, 40.0, 50))
        assert np.all(np.isfinite(predicted))
        assert np.all(np.diff(predicted) >= -1e-12 * predicted[-1])
        assert predicted[0] >= 0


# --- errors and the choice ---------------------------------------------------------------------------------------


def points_of(curve: Curve, batch: int = 1, noise: float = 0.0, seed: int = 0) -> list[CostPoint]:
    random = np.random.default_rng(seed)
    seconds = curve.seconds(ROWS) * np.exp(noise * random.normal(size=len(ROWS)))
    return [CostPoint(batch, batch * int(n), 0, float(value)) for n, value in zip(ROWS, seconds, strict=True)]


def test_the_held_out_error_leaves_each_size_but_the_smallest_out_in_turn() -> None:
    points = [CostPoint(1, n, 0, t) for n, t in ((1, 1.0), (2, 1.2), (4, 1.9), (8, 3.0), (16, 6.1))]
    rows, seconds = np.array([1.0, 2, 4, 8, 16]), np.array([1.0, 1.2, 1.9, 3.0, 6.1])
    errors = []
    for left in range(1, 5):
        others = np.arange(5) != left
        errors.append(float(fit_linear(rows[others], seconds[others]).seconds(rows[left])) / seconds[left] - 1)
    fitted = curve_fits(points)[1]
    assert fitted.linear.held_out == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    # The table without a size: the line between its neighbours; 8 is in the middle of 4 and 16 by a third.
    # Without 16 the slope of the upper half of (1, 2, 4, 8) goes on: (3.0 - 1.9) / 4.
    expected = np.array([1.0 + 0.9 / 3, 1.2 + 1.8 / 3, 1.9 + 4.2 / 3, 3.0 + 8 * 1.1 / 4]) / seconds[1:] - 1
    assert fitted.table_held_out == pytest.approx(np.sqrt(np.mean(expected**2)))


@pytest.mark.parametrize(
    ("name", "curve"),
    [
        ("linear", LinearCurve(5e-3, 1e-3, 0.0)),
        ("linear", LinearCurve(5e-3, 0.0, 0.0)),
        ("roofline", RooflineCurve(10e-3, 0.3e-3, 1e-3, 0.0)),
        ("knee", KneeCurve(10e-3, 0.1e-3, 24.0, 1e-3, 0.0)),
        ("power_exponential", PowerExponential(1e-3, 0.02, 1.0, 10e-3, 0.0)),
    ],
)
def test_the_curve_that_made_the_points_is_chosen(name: str, curve: Curve) -> None:
    for noise in (0.0, 0.002):
        assert choose_curve(curve_fits(points_of(curve, noise=noise))[1].by_name) == name


def test_the_lowest_held_out_error_wins_and_the_simpler_curve_if_it_is_as_good() -> None:
    def choice(*errors: float | None) -> str:
        return choose_curve({str(place): LinearCurve(1.0, 1.0, 0.0, error) for place, error in enumerate(errors)})

    assert choice(0.05, 0.03, 0.01, 0.02) == "2"
    assert choice(0.0305, 0.03, 0.0299, 0.5) == "0"
    assert choice(0.0311, 0.03, 0.0299, 0.5) == "1"
    assert choice(None, 0.9) == "1"  # nobody knows how good it is


def test_small_residuals_are_not_what_is_chosen_by() -> None:
    # More parameters follow the noise of a line more closely; sizes left out of the fit say who is right.
    chosen, closest = [], []
    for seed in range(10):
        curves = curve_fits(points_of(LinearCurve(10e-3, 0.0, 0.0), noise=0.03, seed=seed))[1].by_name
        chosen.append(choose_curve(curves))
        closest.append(min(curves, key=lambda name: curves[name].residual))
    assert chosen.count("linear") > closest.count("linear")
    assert chosen.count("linear") >= 6


def test_a_curve_that_misses_by_more_than_five_percent_is_a_warning_by_batch() -> None:
    bent = KneeCurve(10e-3, 0.0, 64.0, 2e-3, 0.0)
    points = [*points_of(LinearCurve(5e-3, 1e-3, 0.0)), *points_of(bent, batch=4)]
    residual = curve_fits(points)[4].power_exponential.residual
    assert residual > 0.05
    (warning,) = fit_warnings(points)
    assert warning.startswith(f"At batch 4 the paper's curve misses the measured passes by {residual:.1%}")
    assert warning.endswith("the best smooth curve there is knee (0.0%).")
    assert "\n" not in warning


def test_repeated_measurements_count_by_their_median() -> None:
    truth = LinearCurve(5e-3, 1e-3, 0.0)
    slow = [CostPoint(1, 8, 0, 1.0), CostPoint(1, 8, 0, float(truth.seconds(8.0)))]
    assert curve_fits([*points_of(truth), *slow])[1].linear.residual < 1e-9


def test_the_drafter_s_line_is_that_of_the_paper() -> None:
    # C_draft = lambda |T| + beta, over rows per request; one width is no line.
    levels = [DraftPoint(4, 4 * width, 1e-3 + 0.2e-3 * width) for width in (1, 4, 10)] + [DraftPoint(1, 10, 1e-3)]
    lines = draft_fits(DraftCost(levels=tuple(levels)))
    assert set(lines) == {4}
    assert (lines[4].base, lines[4].slope) == pytest.approx((1e-3, 0.2e-3))
    assert draft_fits(DraftCost(0.25)) == {}


def test_the_profile_s_json_holds_the_paper_s_parameters_and_the_other_curves_by_name() -> None:
    points = points_of(RooflineCurve(10e-3, 0.3e-3, 1e-3, 0.0), noise=0.02) + [CostPoint(2, n, 0, 1.0) for n in (2, 4)]
    levels = tuple(DraftPoint(1, width, 1e-3 * width) for width in (1, 10))
    profile = Profile(None, tuple(points), DraftCost(levels=levels))
    fits = json.loads(json.dumps(profile.to_json(), allow_nan=False))["fits"]
    assert set(fits) == {"1"}  # two sizes are too few for batch 2
    fit = fits["1"]
    power = power_exponential_fits(points)[1]
    assert {name: fit[name] for name in ("gamma", "delta", "rho", "eta", "residual")} == power.to_json()
    assert set(fit["linear"]) == {"base", "slope", "residual", "held_out"}
    assert set(fit["roofline"]) == {"memory", "compute", "overhead", "residual", "held_out"}
    assert set(fit["knee"]) == {"base", "slope", "knee", "bend", "residual", "held_out"}
    assert fit["chosen"] == "roofline"
    assert fit["held_out"] > fit["roofline"]["held_out"]
    assert 0 < fit["table"]["held_out"] < 0.1
    assert fit["draft"]["slope"] == pytest.approx(1e-3)


def test_the_documented_profile_has_the_fields_of_a_real_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cost.md").read_text(encoding="utf-8")
    documented = json.loads(text.split("```json\n")[1].split("```")[0])
    real = Profile(KEY, tuple(points_of(LinearCurve(5e-3, 1e-3, 0.0)))).to_json()
    assert set(documented) == set(real)
    assert set(documented["key"]) == set(real["key"])
    fit, real_fit = documented["fits"]["1"], real["fits"]["1"]
    assert set(fit) == set(real_fit)
    assert all(set(fit[name]) == set(real_fit[name]) for name in ("linear", "roofline", "knee", "table"))
    assert Profile.from_json(documented).cost_model().autoregressive(1, 256) == 0.0101


def test_an_extrapolation_that_overflows_is_still_json() -> None:
    points = [CostPoint(1, n, 0, t) for n, t in ((1, 1.0), (2, 1.0), (3, 1.0), (4, 50.0), (400, 60.0))]
    data = Profile(None, tuple(points)).to_json()
    json.dumps(data, allow_nan=False)
    assert data["fits"]["1"]["held_out"] > 1


def test_importing_the_curves_leaves_scipy_out() -> None:
    # scipy.optimize takes longer to load than the whole core.
    code = "import smartree.cost.fits, sys; print('scipy.optimize' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
