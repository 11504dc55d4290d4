"""Does the depth schedule help? Every policy with and without it, on long simulated generations.

    OMP_NUM_THREADS=1 python benchmarks/simulate/schedule.py

Requests generate for `steps` steps (over a thousand tokens each); throughput with the schedule over throughput without,
for the schedule's defaults (full tree for 10 tokens, 5 levels up to token 50, 3 up to 100, again) and two gentler ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from smartree.cost import CostModel
from smartree.policies import Policy, make_policy
from smartree.policies.schedule import DepthSchedule, ScheduledPolicy
from smartree.simulate.acceptance import PRESETS, ParametricPools
from smartree.simulate.devices import DEVICES
from smartree.simulate.loop import price, run
from smartree.simulate.models import MODELS
from smartree.simulate.roofline import cost_model

SETUPS = (("l40s", "llava-1.5-7b"), ("h100-sxm", "llama-3.1-8b"), ("h200-sxm", "llama-3.3-70b-tp2"))
BATCHES, POLICIES = (1, 8, 32), ("smart", "paper", "eagle2")
SCHEDULES = {
    "default": DepthSchedule(),
    "half of the cycle full": DepthSchedule(full=50, middle=75),
    "8 levels, then 5": DepthSchedule(first_depth=8, second_depth=5),
}
STEPS, SEED = 600, 0


def speedup(policy: Policy, cost: CostModel, model: str, batch: int) -> float:
    """Of one policy over plain decoding, its learning included."""
    shape = MODELS[model]
    pools = ParametricPools(PRESETS[shape.acceptance], batch, STEPS, SEED)
    return price(run(policy, pools, cost, context=shape.context, steps=STEPS), cost, batch, shape.context).speedup


def rows() -> Iterator[dict[str, object]]:
    """One row per device, batch and policy."""
    for (device, model), batch, name in product(SETUPS, BATCHES, POLICIES):
        cost = cost_model(DEVICES[device], MODELS[model], batches=(batch,))
        plain = speedup(make_policy(name, cost), cost, model, batch)
        row: dict[str, object] = {"device": device, "model": model, "batch": batch, "policy": name}
        row["speedup"] = round(plain, 4)
        for label, schedule in SCHEDULES.items():
            scheduled = speedup(ScheduledPolicy(make_policy(name, cost), schedule), cost, model, batch)
            row[label] = round(scheduled / plain, 4)
        yield row


def main() -> None:
    """Runs everything, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path(__file__).with_name("schedule.json"))
    target = parser.parse_args().json
    found = list(rows())
    table = Table(*found[0])
    for row in found:
        table.add_row(*map(str, row.values()))
    Console(width=140).print(table)
    for name, label in product(POLICIES, SCHEDULES):
        ratios = np.array([row[label] for row in found if row["policy"] == name], np.float64)
        mean = float(np.exp(np.log(ratios).mean()))
        print(f"{name}, {label}: {ratios.min():.3f} to {ratios.max():.3f}, geometric mean {mean:.3f}")
    header = {"command": "python benchmarks/simulate/schedule.py", "steps": STEPS, "seed": SEED}
    target.write_text(json.dumps({"header": header, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
