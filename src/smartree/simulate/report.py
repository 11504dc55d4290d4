"""What a sweep says of itself: the header of its JSON, and how policies compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from smartree import __version__
from smartree.simulate.devices import DEVICES, Overheads
from smartree.simulate.setups import RooflineSetup, Setup
from smartree.simulate.sweep import Row, SweepOptions


def sweep_header(setups: Sequence[Setup], options: SweepOptions, overheads: Overheads) -> dict[str, Any]:
    """Everything that somebody needs to run the same again."""
    acceptance = options.acceptance.name if options.acceptance else {s.model: s.acceptance for s in setups}
    return {
        "smartree": __version__,
        "devices": {name: asdict(DEVICES[name]) for name in dict.fromkeys(s.device for s in setups) if name in DEVICES},
        "overheads": asdict(overheads) if any(isinstance(s, RooflineSetup) for s in setups) else {},
        "models": list(dict.fromkeys(s.model for s in setups)),
        "context": {s.model: s.context for s in setups},
        "acceptance": acceptance,
        "policies": list(options.policies),
        "batches": list(options.batches),
        "steps": {str(batch): options.steps_at(batch) for batch in options.batches},
        "warm_up": options.warm_up,
        "seed": options.seed,
    }


def speedups(rows: Iterable[Row]) -> dict[tuple[str, str, int], dict[str, float]]:
    """Speedup by policy of every (device, model, batch)."""
    table: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        table.setdefault(row.key[:3], {})[row.policy] = row.speedup
    return table


def ratios(rows: Iterable[Row], policy: str, other: str) -> dict[tuple[str, str, int], float]:
    """Throughput of a policy over another's, wherever both are."""
    return {
        cell: found[policy] / found[other]
        for cell, found in speedups(rows).items()
        if policy in found and other in found
    }


def summary(rows: Sequence[Row], policy: str = "smart") -> dict[str, dict[str, float]]:
    """Smallest, geometric mean and largest throughput of a policy over every other one's."""
    others = [name for name in dict.fromkeys(row.policy for row in rows) if name != policy]
    found = {name: np.array(list(ratios(rows, policy, name).values())) for name in others}
    return {
        name: {
            "smallest": float(values.min()),
            "geometric_mean": float(np.exp(np.log(values).mean())),
            "largest": float(values.max()),
        }
        for name, values in found.items()
        if len(values)
    }
