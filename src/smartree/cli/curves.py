"""A cost profile for people: the measured table, the paper's curves, and where the device bends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich import box
from rich.table import Table

from smartree.cost.fits import PowerExponential, power_exponential_fits
from smartree.cost.profile import Profile
from smartree.cost.table import CostPoint

BEND = 1.5
"""A pass is past the bend once it costs this many plain steps."""
_COLUMNS = 11  # as many as fit 80 characters


def by_batch(profile: Profile) -> dict[int, list[CostPoint]]:
    """The measured passes of each batch size at its smallest context, by tokens."""
    found: dict[int, list[CostPoint]] = {}
    for batch in sorted({point.batch for point in profile.verify}):
        points = [point for point in profile.verify if point.batch == batch]
        context = min(point.context for point in points)
        found[batch] = sorted((point for point in points if point.context == context), key=lambda p: p.tokens)
    return found


def bend(points: Sequence[CostPoint]) -> float | None:
    """Verified tokens where a pass costs 1.5 plain steps, between measured ones by a straight line; None if nowhere.

    Args:
        points: of one batch size and context, by tokens, the plain step first.
    """
    limit = BEND * points[0].seconds
    seconds = np.maximum.accumulate([point.seconds for point in points])  # noise must not bend it twice
    above = int(np.searchsorted(seconds, limit))
    if above == len(points):
        return None
    left, right = points[above - 1].tokens, points[above].tokens
    share = (limit - seconds[above - 1]) / (seconds[above] - seconds[above - 1])
    return float(left + share * (right - left))


def measured_table(profile: Profile) -> Table:
    """Milliseconds of a pass by batch size (down) and verified tokens (across)."""
    rows = by_batch(profile)
    context = min(point.context for points in rows.values() for point in points)
    title = f"Milliseconds of one pass, by batch size and verified tokens (context {context})"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("batch", justify="right")
    columns = _columns(rows)
    for tokens in columns:
        table.add_column(str(tokens), justify="right")
    for batch, points in rows.items():
        cells = {point.tokens: point.seconds for point in points}
        table.add_row(str(batch), *(milliseconds(cells[n]) if n in cells else "" for n in columns))
    return table


def _columns(rows: dict[int, list[CostPoint]]) -> list[int]:
    """The token counts worth a column: every plain step, then those that most batch sizes were measured at."""
    plain = {points[0].tokens for points in rows.values()}
    counts = Counter(point.tokens for points in rows.values() for point in points)
    last = max(counts)
    order = sorted(counts, key=lambda tokens: (tokens not in plain, tokens != last, -counts[tokens], tokens))
    return sorted(order[:_COLUMNS])


def fits_table(profile: Profile) -> Table:
    """Per batch size: the plain step, the bend, and the paper's curve with its residual."""
    title = "The paper's curve for n rows a request: gamma (exp(delta n^rho) - 1) + eta"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("batch", "plain step ms", "bends at", "gamma ms", "delta", "rho", "eta ms", "residual"):
        table.add_column(name, justify="right")
    fits = power_exponential_fits(profile.verify)
    for batch, points in by_batch(profile).items():
        place = bend(points)
        bends = f"{place:.0f} tokens" if place is not None else f"> {points[-1].tokens} tokens"
        table.add_row(str(batch), milliseconds(points[0].seconds), bends, *_fit_cells(fits.get(batch)))
    return table


def _fit_cells(fit: PowerExponential | None) -> list[str]:
    if fit is None:
        return ["", "", "", "", "too few points"]
    values = (1e3 * fit.gamma, fit.delta, fit.rho, 1e3 * fit.eta)
    return [*(f"{value:.3g}" for value in values), f"{fit.residual:.1%}"]


def bend_sentence(profile: Profile) -> str:
    """Where the device bends, batch by batch."""
    parts = []
    for batch, points in by_batch(profile).items():
        place = bend(points)
        where = f"at {place:.0f} tokens" if place is not None else f"beyond {points[-1].tokens} tokens"
        parts.append(f"{where} for batch {batch}")
    return f"A pass costs {BEND} times the plain step {'; '.join(parts)}."


def milliseconds(seconds: float) -> str:
    """Three digits of the milliseconds."""
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
