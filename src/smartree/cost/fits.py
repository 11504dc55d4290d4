"""The paper's cost curves, fitted by least squares beside the measured table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from smartree.cost.table import CostPoint

Floats = NDArray[np.float64]
LARGEST_EXPONENT = 700.0  # exp() of more overflows a double


@dataclass(frozen=True, slots=True)
class PowerExponential:
    """C_verify(n) = gamma * (exp(delta * n^rho) - 1) + eta for n rows per request (SMART, section 3).

    The paper sets eta = 0; a free eta expresses the flat, memory-bound part.
    """

    gamma: float
    delta: float
    rho: float
    eta: float
    residual: float
    """Root mean square error over the mean, a fraction."""

    def seconds(self, rows: Floats | float) -> Floats:
        """Seconds of a pass with `rows` rows per request; infinite where it leaves the range of a double."""
        exponent = self.delta * np.asarray(rows, np.float64) ** self.rho
        with np.errstate(over="ignore"):
            return np.asarray(self.gamma * np.expm1(exponent) + self.eta)

    def log_seconds(self, rows: float) -> float:
        """log of C_verify at `rows`: a logarithm, so no size overflows."""
        tiny = np.finfo(np.float64).tiny
        exponent = self.delta * rows**self.rho
        grown = exponent if exponent > LARGEST_EXPONENT else np.log(max(np.expm1(exponent), tiny))
        return float(np.logaddexp(np.log(max(self.gamma, tiny)) + grown, np.log(max(self.eta, tiny))))

    def log_slope(self, rows: float) -> float:
        """log of dC_verify/dn at `rows`: a logarithm, so no size overflows."""
        tiny = np.finfo(np.float64).tiny
        factors = np.log(np.maximum([self.gamma, self.delta, self.rho], tiny)).sum()
        return float(factors + (self.rho - 1) * np.log(rows) + self.delta * rows**self.rho)

    def to_json(self) -> dict[str, float]:
        """The parameters as a JSON object."""
        return asdict(self)


def fit_power_exponential(rows: Floats, seconds: Floats, *, free_eta: bool = True) -> PowerExponential:
    """Least squares of the paper's curve on measured passes, relative errors weighted alike.

    Args:
        rows: [P] rows per request.
        seconds: [P] measured seconds.
        free_eta: False fixes eta to 0, as the paper does.

    A pass that never gets dearer fits gamma = 0.
    """
    from scipy.optimize import least_squares  # slow to import, and only needed here

    scale, largest = float(np.mean(seconds)), float(np.max(rows))
    floor = float(np.min(seconds)) / scale

    def curve(logs: Floats) -> Floats:
        gamma, delta, rho = np.exp(logs[:3])
        exponent = np.minimum(delta * (rows / largest) ** rho, LARGEST_EXPONENT)
        return np.asarray(gamma * np.expm1(exponent) + (logs[3] if free_eta else 0.0))

    def relative_error(logs: Floats) -> Floats:
        return np.asarray(curve(logs) * scale / seconds - 1.0)

    best = None
    for rho in (0.3, 1.0, 1.5):
        start = [np.log(max(1 - floor, 0.05)), np.log(0.7), np.log(rho)] + ([floor] if free_eta else [])
        low = [np.log(1e-9), np.log(1e-6), np.log(0.02)] + ([0.0] if free_eta else [])
        high = [np.log(1e6), np.log(50.0), np.log(6.0)] + ([max(floor, 1e-9) * 1.0001] if free_eta else [])
        found = least_squares(relative_error, start, bounds=(low, high))
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    gamma, delta, rho = np.exp(best.x[:3])
    eta = float(best.x[3]) if free_eta else 0.0
    residual = float(np.sqrt(np.mean((curve(best.x) - seconds / scale) ** 2)))
    return PowerExponential(float(gamma * scale), float(delta / largest**rho), float(rho), float(eta * scale), residual)


def power_exponential_fits(points: Sequence[CostPoint], *, free_eta: bool = True) -> dict[int, PowerExponential]:
    """The paper's curve for every measured batch size, over rows per request at the smallest measured context."""
    fits = {}
    for batch in sorted({point.batch for point in points}):
        context = min(point.context for point in points if point.batch == batch)
        chosen = [point for point in points if point.batch == batch and point.context == context]
        if len({point.tokens for point in chosen}) >= 4:
            rows = np.array([point.tokens / batch for point in chosen])
            fits[batch] = fit_power_exponential(rows, np.array([p.seconds for p in chosen]), free_eta=free_eta)
    return fits
