"""Smooth cost curves: seconds of a pass over its rows per request, by a few parameters."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LARGEST_EXPONENT = 700.0  # exp() of more overflows a double


class Curve(Protocol):
    """A fitted curve.

    Attributes:
        residual: root mean square of the relative errors at the measured sizes, a fraction.
        held_out: the same at sizes left out of the fit, one at a time; None if nobody asked.
    """

    @property
    def residual(self) -> float: ...

    @property
    def held_out(self) -> float | None: ...

    def seconds(self, rows: Floats | float) -> Floats:
        """Seconds of a pass with `rows` rows per request."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The parameters and errors as a JSON object."""
        ...


class _Parameters:
    """What all curves share: their fields are their JSON."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The parameters and errors as a JSON object."""
        return {name: value for name, value in asdict(self).items() if value is not None}  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class LinearCurve(_Parameters):
    """base + slope * n. Of a drafter's levels it is the paper's C_draft = lambda * |T| + beta."""

    base: float
    slope: float
    residual: float
    held_out: float | None = None

    def seconds(self, rows: Floats | float) -> Floats:
        """Seconds of a pass with `rows` rows per request."""
        return np.asarray(self.base + self.slope * np.asarray(rows, np.float64))


@dataclass(frozen=True, slots=True)
class RooflineCurve(_Parameters):
    """max(memory, compute * n) + overhead: flat while weights are read, then in proportion to the rows."""

    memory: float
    compute: float
    overhead: float
    residual: float
    held_out: float | None = None

    @property
    def knee(self) -> float:
        """Rows per request where computing takes as long as reading; infinite if rows are free."""
        return self.memory / self.compute if self.compute > 0 else float("inf")

    def seconds(self, rows: Floats | float) -> Floats:
        """Seconds of a pass with `rows` rows per request."""
        return np.asarray(np.maximum(self.memory, self.compute * np.asarray(rows, np.float64)) + self.overhead)


@dataclass(frozen=True, slots=True)
class KneeCurve(_Parameters):
    """base + slope * n + bend * max(n - knee, 0): two lines that meet at the knee, the second one steeper."""

    base: float
    slope: float
    knee: float
    bend: float
    residual: float
    held_out: float | None = None

    def seconds(self, rows: Floats | float) -> Floats:
        """Seconds of a pass with `rows` rows per request."""
        n = np.asarray(rows, np.float64)
        return np.asarray(self.base + self.slope * n + self.bend * np.maximum(n - self.knee, 0.0))


@dataclass(frozen=True, slots=True)
class PowerExponential(_Parameters):
    """C_verify(n) = gamma * (exp(delta * n^rho) - 1) + eta for n rows per request (SMART, section 3).

    The paper sets eta = 0; a free eta expresses the flat, memory-bound part.
    """

    gamma: float
    delta: float
    rho: float
    eta: float
    residual: float
    held_out: float | None = None

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
