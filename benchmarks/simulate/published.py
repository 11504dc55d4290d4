"""Simulated against published results: fits the free parameters on one part, reports the error on the rest.

Run: .venv/bin/python benchmarks/simulate/published.py   (2 minutes; writes published.json beside it)

Three fits: on the MSD row of the RTX Pro 6000 batch sweep (3 numbers; LLaVA-1.5 7B assumed), on the MSD row of the L40S
sweep (4 numbers), and on both. Free: compute_fraction, row_seconds, and the accepted length of MSD's tree; everything
else at its default. Whatever a fit has not seen is compared under it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from presets import solve
from scipy.optimize import differential_evolution

from smartree.cost import CostModel
from smartree.policies import Eagle2Policy, PaperPolicy, Policy, SmartPolicy
from smartree.simulate.acceptance import PRESETS, AcceptanceLaw, ParametricPools
from smartree.simulate.devices import DEVICES, Overheads
from smartree.simulate.loop import Outcome, SimulatedStep, price, run
from smartree.simulate.models import MODELS, ModelShape
from smartree.simulate.roofline import cost_model

STEPS, WARM_UP, SEED = 60, 40, 3
MSD_DEPTH, EAGLE3_DEPTH = 5, 7
MSD_SWEEP = {
    "rtx-pro-6000": {1: 2.20, 8: 1.84, 32: 0.82},
    "l40s": {1: 1.82, 4: 1.63, 8: 1.22, 12: 0.90},
}
SMART_SWEEP = {
    "rtx-pro-6000": {1: 2.17, 32: 1.39},
    "l40s": {1: 1.77, 4: 1.65, 8: 1.50, 12: 1.40},
}
BUDGETS = {100: 1.43, 200: 1.58, 300: 1.28, 400: 1.27}
ALPHAS = {1.0: 1.51, 0.9: 1.55, 0.8: 1.56, 0.7: 1.55, 0.5: 1.54}
# Means of the printed columns: (baseline, with SMART).
MAIN_TABLES = {
    "llava-1.5-7b": (1.22, 1.58),
    "llava-1.5-13b": (1.29, 1.55),
    "qwen2-vl-7b": (1.18, 1.26),
    "llama-3.1-8b": (1.36, 1.59),
    "llama-3.3-70b-tp2": (2.69, 3.35),
    "deepseek-r1-8b": (1.46, 1.68),
}
TABLE_BATCHES = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32)


@dataclass(frozen=True)
class Fit:
    """Parameters fitted to sweeps of MSD."""

    devices: tuple[str, ...]
    compute_fraction: float
    row_seconds: float
    length: float
    rms_log_error: float

    @property
    def overheads(self) -> Overheads:
        return replace(Overheads(), compute_fraction=self.compute_fraction, row_seconds=self.row_seconds)


def msd_speedup(device: str, batch: int, overheads: Overheads, length: float) -> float:
    """MSD's tree is always full, so that its time needs no simulation: 60 rows a request, 6 draft levels."""
    model = MODELS["llava-1.5-7b"]
    cost = cost_model(DEVICES[device], model, batches=(batch,), overheads=overheads)
    widths = (batch, *[10 * batch] * MSD_DEPTH)
    return price([SimulatedStep(widths, 60 * batch, batch * length)], cost, batch, model.context).speedup


def fit(devices: tuple[str, ...]) -> Fit:
    """Least squares on logarithms of speedups, within physical bounds."""

    def parts(x: np.ndarray) -> tuple[Overheads, float]:
        overheads = replace(Overheads(), compute_fraction=float(x[0]), row_seconds=float(np.exp(x[1])))
        return overheads, float(x[2])

    def squares(x: np.ndarray) -> float:
        overheads, length = parts(x)
        errors = [
            np.log(msd_speedup(device, batch, overheads, length) / published)
            for device in devices
            for batch, published in MSD_SWEEP[device].items()
        ]
        return float(np.mean(np.square(errors)))

    bounds = [(0.3, 0.95), (np.log(1e-7), np.log(1e-4)), (1.5, 6.0)]
    found = differential_evolution(squares, bounds, seed=0, maxiter=20, popsize=6, tol=1e-6)
    overheads, length = parts(found.x)
    return Fit(devices, overheads.compute_fraction, overheads.row_seconds, length, float(np.sqrt(found.fun)))


def simulate(
    make: Callable[[CostModel], Policy],
    device: str,
    model: ModelShape,
    batch: int,
    law: AcceptanceLaw,
    overheads: Overheads,
) -> Outcome:
    """One policy on one device at one batch size."""
    cost = cost_model(DEVICES[device], model, batches=(batch,), overheads=overheads)
    pools = ParametricPools(law, batch, STEPS + WARM_UP, SEED)
    steps = run(make(cost), pools, cost, context=model.context, steps=STEPS, warm_up=WARM_UP)
    return price(steps, cost, batch, model.context)


def line(what: str, published: float, simulated: float) -> dict[str, Any]:
    """One comparison, printed."""
    print(f"  {what:58s} published {published:5.2f}  simulated {simulated:5.2f}  {simulated / published - 1:+6.0%}")
    return {"what": what, "published": published, "simulated": round(simulated, 3)}


def sweeps(found: Fit) -> list[dict[str, Any]]:
    """Both rows of both batch sweeps under a fit."""
    model, overheads = MODELS["llava-1.5-7b"], found.overheads
    law = PRESETS["msd-llava"]
    law = replace(law, mean=solve(law, found.length, MSD_DEPTH))
    rows = []
    for device, published in MSD_SWEEP.items():
        fitted = " (fitted)" if device in found.devices else ""
        for batch, value in published.items():
            simulated = msd_speedup(device, batch, overheads, found.length)
            rows.append(line(f"{device} MSD batch {batch}{fitted}", value, simulated))
    for device, published in SMART_SWEEP.items():
        for batch, value in published.items():
            outcome = simulate(PaperPolicy, device, model, batch, law, overheads)
            rows.append(line(f"{device} MSD+SMART batch {batch}, policy paper", value, outcome.speedup))
            outcome = simulate(SmartPolicy, device, model, batch, law, overheads)
            rows.append(line(f"{device} MSD+SMART batch {batch}, policy smart", value, outcome.speedup))
    return rows


def ablations(found: Fit) -> list[dict[str, Any]]:
    """The paper's budget and alpha at batch 16, under a fit."""
    model, law = MODELS["llava-1.5-7b"], PRESETS["msd-llava"]
    law = replace(law, mean=solve(law, found.length, MSD_DEPTH))
    settings: list[tuple[str, float, float]] = [("budget", budget, value) for budget, value in BUDGETS.items()]
    settings += [("alpha", alpha, value) for alpha, value in ALPHAS.items()]
    rows = []
    for name, number, value in settings:
        make = partial(PaperPolicy, **{name: number})
        outcome = simulate(make, "rtx-pro-6000", model, 16, law, found.overheads)
        rows.append(line(f"rtx-pro-6000 batch 16, paper with {name} {number}", value, outcome.speedup))
    return rows


def main_tables(overheads: Overheads) -> list[dict[str, Any]]:
    """The batch of the main tables is not stated: take the one at which the baseline comes closest."""
    rows = []
    for name, (baseline, with_smart) in MAIN_TABLES.items():
        model = MODELS[name]
        law = PRESETS[model.acceptance]
        depth = MSD_DEPTH if model.head.kind == "eagle" else EAGLE3_DEPTH

        def eagle2(cost: CostModel, depth: int = depth) -> Policy:
            return Eagle2Policy(cost, depth=depth)

        found = {
            batch: simulate(eagle2, "rtx-pro-6000", model, batch, law, overheads).speedup for batch in TABLE_BATCHES
        }
        batch = min(found, key=lambda size: abs(np.log(found[size] / baseline)))
        print(f"  {name}: the baseline fits best at batch {batch}")
        rows.append(line(f"{name} baseline, batch {batch}", baseline, found[batch]) | {"batch": batch})
        for label, policy in (("paper", PaperPolicy), ("smart", SmartPolicy)):
            outcome = simulate(policy, "rtx-pro-6000", model, batch, law, overheads)
            rows.append(line(f"{name} + SMART, policy {label}", with_smart, outcome.speedup) | {"batch": batch})
    return rows


def main() -> None:
    """Fits, compares, writes."""
    result: dict[str, Any] = {"header": {"steps": STEPS, "warm_up": WARM_UP, "seed": SEED}, "fits": []}
    for devices in (("rtx-pro-6000",), ("l40s",), ("rtx-pro-6000", "l40s")):
        found = fit(devices)
        print(f"Fitted on {' and '.join(devices)}: {found}")
        rows = sweeps(found) + (ablations(found) if found.devices == ("l40s",) else [])
        result["fits"].append({**asdict(found), "rows": rows})
    print("Main tables, default parameters, RTX Pro 6000 assumed:")
    result["main_tables"] = main_tables(Overheads())
    Path(__file__).with_name("published.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
