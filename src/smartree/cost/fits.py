"""Fits smooth curves beside the measured table, says how far off they are, and which one to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from smartree.cost.curves import (
    LARGEST_EXPONENT,
    Curve,
    Floats,
    KneeCurve,
    LinearCurve,
    PowerExponential,
    RooflineCurve,
)
from smartree.cost.draft import DraftCost
from smartree.cost.table import CostPoint, CostTable

__all__ = [
    "LARGEST_RESIDUAL",
    "FittedCurves",
    "PowerExponential",
    "choose_curve",
    "curve_fits",
    "draft_fits",
    "fit_knee",
    "fit_linear",
    "fit_power_exponential",
    "fit_roofline",
    "fit_warnings",
    "power_exponential_fits",
]

LARGEST_RESIDUAL = 0.05
"""A curve that misses the measurements by more is worth a warning."""
FEWEST_SIZES = 4
"""Sizes that a batch must have been measured at: as many as the curves have parameters."""
_CLEARLY_BETTER = 0.001
_LARGEST_ERROR = 1e3  # an extrapolation may overflow; JSON has no infinity


@dataclass(frozen=True, slots=True)
class FittedCurves:
    """Every curve of one batch size.

    Attributes:
        power_exponential, linear, roofline, knee: the curves, each with its residual and held-out error.
        table_held_out: the held-out error of the measured table itself, on the same sizes.
        draft: the line of the drafter's levels, if it was measured at two widths or more.
    """

    power_exponential: PowerExponential
    linear: LinearCurve
    roofline: RooflineCurve
    knee: KneeCurve
    table_held_out: float
    draft: LinearCurve | None = None

    @property
    def by_name(self) -> dict[str, Curve]:
        """The curves of a pass, those with fewer parameters first."""
        return {
            "linear": self.linear,
            "roofline": self.roofline,
            "knee": self.knee,
            "power_exponential": self.power_exponential,
        }

    def to_json(self) -> dict[str, Any]:
        """The paper's parameters at the top, the other curves under their names, and which one to use."""
        data: dict[str, Any] = dict(self.power_exponential.to_json())
        others = {name: curve.to_json() for name, curve in self.by_name.items() if name != "power_exponential"}
        data |= others | {"table": {"held_out": self.table_held_out}, "chosen": choose_curve(self.by_name)}
        return data | ({"draft": self.draft.to_json()} if self.draft is not None else {})


def choose_curve(curves: Mapping[str, Curve]) -> str:
    """Which curve to use where a smooth one is needed; whatever can take the measured table takes the table.

    The lowest held-out error wins, but a curve that comes earlier (fewer parameters) is preferred if it is no
    more than 0.1 percentage points worse.

    Args:
        curves: by name, simple ones first, all with a held-out error.
    """
    errors = {name: np.inf if curve.held_out is None else curve.held_out for name, curve in curves.items()}
    best = min(errors.values())
    return next(name for name, error in errors.items() if error <= best + _CLEARLY_BETTER)


def fit_linear(rows: Floats, seconds: Floats, *, free_base: bool = True) -> LinearCurve:
    """The line with the least relative errors; neither part is negative.

    Args:
        rows: [P] rows per request.
        seconds: [P] measured seconds.
        free_base: False makes it go through the origin.
    """
    columns = [np.ones(len(rows)), rows] if free_base else [rows]
    parts, residual = _non_negative(columns, seconds)
    base, slope = parts if free_base else (0.0, *parts)
    return LinearCurve(float(base), float(slope), residual)


def fit_roofline(rows: Floats, seconds: Floats) -> RooflineCurve:
    """The roofline with the least relative errors: overhead + compute * max(n, knee), with the best knee."""

    def columns(knee: float) -> list[Floats]:
        return [np.ones(len(rows)), np.maximum(rows, knee)]

    knee = _best_knee(columns, rows, seconds)
    (overhead, compute), residual = _non_negative(columns(knee), seconds)
    return RooflineCurve(float(compute * knee), float(compute), float(overhead), residual)


def fit_knee(rows: Floats, seconds: Floats) -> KneeCurve:
    """The two lines with the least relative errors that meet at the best knee and bend upwards."""

    def columns(knee: float) -> list[Floats]:
        return [np.ones(len(rows)), rows, np.maximum(rows - knee, 0.0)]

    knee = _best_knee(columns, rows, seconds)
    (base, slope, bend), residual = _non_negative(columns(knee), seconds)
    return KneeCurve(float(base), float(slope), knee, float(bend), residual)


def fit_power_exponential(
    rows: Floats, seconds: Floats, *, free_eta: bool = True, start: PowerExponential | None = None
) -> PowerExponential:
    """Least squares of the paper's curve on measured passes, relative errors weighted alike.

    Args:
        rows: [P] rows per request.
        seconds: [P] measured seconds.
        free_eta: False fixes eta to 0, as the paper does.
        start: a curve to start from; a few shapes are tried if there is none.

    A pass that never gets dearer fits gamma = 0.
    """
    from scipy.optimize import least_squares  # slow to import, and only needed here

    scale, largest = float(np.mean(seconds)), float(np.max(rows))
    floor = float(np.min(seconds)) / scale
    low = np.array([np.log(1e-9), np.log(1e-6), np.log(0.02)] + ([0.0] if free_eta else []))
    high = np.array([np.log(1e6), np.log(50.0), np.log(6.0)] + ([float(np.max(seconds)) / scale] if free_eta else []))

    def curve(logs: Floats) -> Floats:
        gamma, delta, rho = np.exp(logs[:3])
        exponent = np.minimum(delta * (rows / largest) ** rho, LARGEST_EXPONENT)
        return np.asarray(gamma * np.expm1(exponent) + (logs[3] if free_eta else 0.0))

    def relative_error(logs: Floats) -> Floats:
        return np.asarray(curve(logs) * scale / seconds - 1.0)

    if start is not None:
        parts = [start.gamma / scale, start.delta * largest**start.rho, start.rho]
        starts = [[*np.log(parts), start.eta / scale]]
    else:
        starts = [[np.log(max(1 - floor, 0.05)), np.log(0.7), np.log(rho), floor] for rho in (0.3, 1.0, 1.5)]
    found = [
        least_squares(relative_error, np.clip(first[: len(low)], low, high), bounds=(low, high)) for first in starts
    ]
    best = min(found, key=lambda result: float(result.cost))
    gamma, delta, rho = np.exp(best.x[:3])
    eta = float(best.x[3]) if free_eta else 0.0
    residual = float(np.sqrt(np.mean(relative_error(best.x) ** 2)))
    return PowerExponential(float(gamma * scale), float(delta / largest**rho), float(rho), float(eta * scale), residual)


def power_exponential_fits(points: Sequence[CostPoint], *, free_eta: bool = True) -> dict[int, PowerExponential]:
    """The paper's curve for every measured batch size, over rows per request at the smallest measured context."""
    return {
        batch: fit_power_exponential(tokens / batch, seconds, free_eta=free_eta)
        for batch, tokens, seconds in _measured(points)
    }


def curve_fits(points: Sequence[CostPoint], draft: DraftCost | None = None) -> dict[int, FittedCurves]:
    """Every curve for every measured batch size, over rows per request at the smallest measured context.

    The held-out error leaves one size out at a time, each but the smallest in turn: below that nothing is ever asked,
    while beyond the largest decisions do ask.
    """
    lines = draft_fits(draft) if draft is not None else {}
    return {batch: replace(fitted, draft=lines.get(batch)) for batch, fitted in _curve_fits(tuple(points)).items()}


@lru_cache(maxsize=4)  # a profile is saved, printed and warned about: fit it once
def _curve_fits(points: tuple[CostPoint, ...]) -> dict[int, FittedCurves]:
    fits = {}
    for batch, tokens, seconds in _measured(points):
        rows = tokens / batch
        power = fit_power_exponential(rows, seconds)
        again = partial(fit_power_exponential, start=power)
        fits[batch] = FittedCurves(
            replace(power, held_out=_held_out(again, rows, seconds)),
            replace(fit_linear(rows, seconds), held_out=_held_out(fit_linear, rows, seconds)),
            replace(fit_roofline(rows, seconds), held_out=_held_out(fit_roofline, rows, seconds)),
            replace(fit_knee(rows, seconds), held_out=_held_out(fit_knee, rows, seconds)),
            _table_held_out(batch, tokens, seconds),
        )
    return fits


def draft_fits(draft: DraftCost) -> dict[int, LinearCurve]:
    """The paper's C_draft, a line over rows per request, for every batch size measured at two widths or more."""
    lines = {}
    for batch in sorted({level.batch for level in draft.levels}):
        levels = [level for level in draft.levels if level.batch == batch]
        if len({level.width for level in levels}) >= 2:
            rows = np.array([level.width / batch for level in levels])
            lines[batch] = fit_linear(rows, np.array([level.seconds for level in levels]))
    return lines


def fit_warnings(points: Sequence[CostPoint]) -> list[str]:
    """A sentence for each batch size whose paper's curve misses the measurements by more than 5%."""
    warnings = []
    for batch, fitted in curve_fits(points).items():
        residual = fitted.power_exponential.residual
        if residual > LARGEST_RESIDUAL:
            best = choose_curve(fitted.by_name)
            warnings.append(
                f"At batch {batch} the paper's curve misses the measured passes by {residual:.1%} (more than "
                f"{LARGEST_RESIDUAL:.0%}): policy paper decides on it, smart does not; the best smooth curve there is "
                f"{best} ({fitted.by_name[best].residual:.1%})."
            )
    return warnings


def _measured(points: Sequence[CostPoint]) -> list[tuple[int, Floats, Floats]]:
    """(batch, tokens, median seconds) at the smallest context of each batch size with enough sizes."""
    found = []
    for batch in sorted({point.batch for point in points}):
        context = min(point.context for point in points if point.batch == batch)
        times: dict[int, list[float]] = {}
        for point in points:
            if point.batch == batch and point.context == context:
                times.setdefault(point.tokens, []).append(point.seconds)
        if len(times) >= FEWEST_SIZES:
            tokens = np.array(sorted(times), np.float64)
            found.append((batch, tokens, np.array([float(np.median(times[int(n)])) for n in tokens])))
    return found


def _non_negative(columns: Sequence[Floats], seconds: Floats) -> tuple[Floats, float]:
    """Non-negative weights of the columns with the least relative errors, and their root mean square."""
    from scipy.optimize import nnls  # slow to import, and only needed here

    # Columns of one size: nnls drops what is tiny beside the rest.
    sizes = [float(np.max(column)) or 1.0 for column in columns]
    scaled = np.column_stack([column / size for column, size in zip(columns, sizes, strict=True)])
    weights, norm = nnls(scaled * (np.min(seconds) / seconds)[:, None], np.full(len(seconds), 1.0))
    return weights * np.min(seconds) / np.array(sizes), float(norm) / float(np.sqrt(len(seconds)))


def _best_knee(columns: Callable[[float], list[Floats]], rows: Floats, seconds: Floats) -> float:
    """The knee with the least error: of the measured sizes and their middles, then refined around the best."""
    from scipy.optimize import minimize_scalar

    def error(knee: float) -> float:
        return _non_negative(columns(knee), seconds)[1]

    sizes = np.unique(rows)
    places = np.sort(np.concatenate([sizes, (sizes[1:] + sizes[:-1]) / 2]))
    errors = [error(float(place)) for place in places]
    best = int(np.argmin(errors))
    knee, least = float(places[best]), errors[best]
    for low, high in ((max(best - 1, 0), best), (best, min(best + 1, len(places) - 1))):
        if low < high:
            found = minimize_scalar(error, bounds=(places[low], places[high]), method="bounded")
            if float(found.fun) < least:
                knee, least = float(found.x), float(found.fun)
    return knee


def _held_out(fit: Callable[[Floats, Floats], Curve], rows: Floats, seconds: Floats) -> float:
    """Root mean square of the relative errors at sizes left out one at a time, all but the smallest."""
    errors = []
    for place in range(1, len(rows)):
        others = np.arange(len(rows)) != place
        curve = fit(rows[others], seconds[others])
        errors.append(float(curve.seconds(float(rows[place]))) / float(seconds[place]) - 1)
    return float(np.sqrt(np.mean(np.minimum(errors, _LARGEST_ERROR) ** 2)))


def _table_held_out(batch: int, tokens: Floats, seconds: Floats) -> float:
    """What `_held_out` says of the measured table."""
    points = [CostPoint(batch, int(n), 0, float(value)) for n, value in zip(tokens, seconds, strict=True)]
    errors = []
    for place in range(1, len(points)):
        table = CostTable(points[:place] + points[place + 1 :])
        errors.append(float(table.seconds(batch, points[place].tokens, 0)) / points[place].seconds - 1)
    return float(np.sqrt(np.mean(np.square(errors))))
