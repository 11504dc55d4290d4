"""The paper's curves: generated ones are found again, and logarithms do not overflow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smartree.cost import CostPoint, PowerExponential, fit_power_exponential, power_exponential_fits

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


def test_the_residual_is_the_root_mean_square_error_over_the_mean() -> None:
    seconds = np.array([1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0])  # no curve goes through these
    rows = np.arange(1.0, 9.0)
    fit = fit_power_exponential(rows, seconds)
    assert fit.residual == pytest.approx(np.sqrt(np.mean((fit.seconds(rows) - seconds) ** 2)) / 2.0, rel=1e-6)
    assert fit.residual > 0.2


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
