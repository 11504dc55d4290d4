"""How long decisions take: a level (wants_level and grow) and the final selection, by policy and batch size.

    OMP_NUM_THREADS=1 python benchmarks/decisions.py --json benchmarks/results/decisions.json

Every level proposes 64 candidates per request that is still drafted for, whatever the frontier's width, so the pool
grows by 64 nodes a request and level. Costs are rooflines of a device (smartree.simulate) that the clock disagrees with
by a few percent, and "nothing bends", where no node can be ruled out early; acceptance is made up. Policies learn for
some steps first; then steps are timed level by level, and medians over the steps are reported. Only the policy's time
counts: not the drafter's, not the calibration's. A level that is refused is a decision too (`stop`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections import defaultdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from smartree import __version__
from smartree.cost import CostModel, CostPoint, CostTable, DraftCost, DraftPoint
from smartree.policies import Policy, StepOutcome, StepState, make_policy
from smartree.simulate.devices import DEVICES
from smartree.simulate.models import MODELS
from smartree.simulate.roofline import cost_model
from smartree.tree.forest import Candidates, Forest, Ints

REQUESTS = (1, 32, 256)
POLICIES = ("smart", "paper", "eagle2")
DEVICE_NAMES = ("l40s", "h200-sxm", "nothing bends")
MODEL = "llama-3.1-8b"
AIMS_MS = {1: 0.2, 32: 0.5, 256: 3.0}
CANDIDATES, CONTEXT, ROOMY = 64, 512, 1000
Times = dict[str, list[float]]


def propose(forest: Forest, frontier: Ints, random: np.random.Generator) -> Candidates:
    """64 children per request of the frontier, shared by its nodes; a node's children have at most probability 1."""
    requests = forest.request[frontier]
    sharing = np.bincount(requests, minlength=forest.batch)[requests]
    counts = -(-CANDIDATES // sharing)
    parents = np.repeat(frontier, counts)
    ranks = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(random.beta(3.0, 1.5, len(frontier)), counts)
    probabilities = np.where(ranks == 0, first, (1 - first) * 0.45 / np.maximum(ranks, 1) ** 1.6)
    # A frontier that does not divide 64 would bring a few too many: the last ranks of the last nodes go.
    order = np.lexsort((ranks, forest.request[parents]))
    owners = forest.request[parents][order]
    place = np.arange(len(owners)) - np.searchsorted(owners, owners, side="left")
    kept = np.sort(order[place < CANDIDATES])
    parents, ranks, probabilities = parents[kept], ranks[kept], probabilities[kept]
    return Candidates(parents, ranks, probabilities, ranks, np.full(len(ranks), -1, np.int64), probabilities)


def step(policy: Policy, cost: CostModel, state: StepState, random: np.random.Generator, times: Times) -> None:
    """One step; adds milliseconds to `times` by what was decided."""
    forest, level, drafting = Forest(np.zeros(state.batch, np.int64)), 0, 0.0
    begin = perf_counter()
    frontier = policy.begin(state, forest)
    times["begin"].append(1e3 * (perf_counter() - begin))
    while True:
        level += 1
        begin = perf_counter()
        wanted = policy.wants_level(forest, frontier)
        asked = perf_counter() - begin
        if not wanted:
            break
        candidates = propose(forest, frontier, random)
        drafting += cost.draft.level_seconds(state.batch, len(frontier))
        begin = perf_counter()
        frontier = policy.grow(forest, candidates)
        times[f"level {level}"].append(1e3 * (asked + perf_counter() - begin))
        times["candidates"].append(len(candidates) / state.batch)
    times["stop"].append(1e3 * asked)
    begin = perf_counter()
    selected = policy.select(forest)
    times["select"].append(1e3 * (perf_counter() - begin))
    times["levels"].append(level - 1)
    times["nodes"].append(len(selected) / state.batch)
    tokens = state.batch + round(float(forest.path[selected].sum()))
    verifying, drafting = (
        policy.predicted_seconds * random.lognormal(0.02, 0.03),
        drafting * random.lognormal(0.02, 0.03),
    )
    outcome = StepOutcome(state, forest, selected, tokens, verifying + drafting, verifying, drafting)
    begin = perf_counter()
    policy.observe(outcome)
    times["observe"].append(1e3 * (perf_counter() - begin))


def measure(name: str, cost: CostModel, batch: int, repeats: int, seconds: float) -> Times:
    """Timed steps after a third as many that only teach; ends early after `seconds`."""
    policy, random = make_policy(name, cost), np.random.default_rng(0)
    state = StepState(batch, CONTEXT, np.full(batch, ROOMY, np.int64))
    begin, times = perf_counter(), defaultdict(list)
    for index in range(repeats // 3 + repeats):
        if index == repeats // 3:
            times = defaultdict(list)
        step(policy, cost, state, random, times)
        if perf_counter() - begin > seconds and index > 20:
            break
    return times


def row(device: str, name: str, batch: int, times: Times) -> dict[str, Any]:
    """Medians of one policy at one batch size; `level_ms` is that of the slowest level that half of the steps reach."""
    steps = len(times["levels"])
    levels = {k: median(v) for k, v in times.items() if k.startswith("level ") and len(v) >= steps / 2}
    return {
        "device": device,
        "policy": name,
        "requests": batch,
        "candidates_per_request": CANDIDATES,
        "steps": steps,
        "levels": median(times["levels"]),
        "nodes_per_request": round(median(times["nodes"]), 2),
        "level_ms": round(max(levels.values(), default=0.0), 4),
        "levels_ms": [round(value, 4) for value in levels.values()],
        "begin_ms": round(median(times["begin"]), 4),
        "stop_ms": round(median(times["stop"]), 4),
        "select_ms": round(median(times["select"]), 4),
        "observe_ms": round(median(times["observe"]), 4),
        "aim_ms": AIMS_MS[batch] if name == "smart" else None,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """A table on stdout."""
    names = ("device", "policy", "requests", "levels", "nodes/request", "level", "aim", "stop", "select")
    table = Table(*names, "begin", "observe")
    for one in rows:
        times = [f"{one[key]:.3f}" for key in ("stop_ms", "select_ms", "begin_ms", "observe_ms")]
        sizes = [f"{one['levels']:g}", f"{one['nodes_per_request']:g}", f"{one['level_ms']:.3f}"]
        table.add_row(one["device"], one["policy"], str(one["requests"]), *sizes, str(one["aim_ms"] or ""), *times)
    Console(width=120).print(table, "milliseconds, medians; `level`: the slowest level; `stop`: the refused one")


def costs(device: str, batch: int) -> CostModel:
    """A roofline that was sampled at this batch size, or costs that hardly rise."""
    if device in DEVICES:
        return cost_model(DEVICES[device], MODELS[MODEL], batches=(batch,), context=CONTEXT)
    sizes = batch * np.array([1, 2, 4, 16, 64, 256, 1024])
    points = [CostPoint(batch, n, CONTEXT, 1e-2 * (1 + 1e-6 * n)) for n in sizes.tolist()]
    levels = [DraftPoint(batch, n, 1e-3 * (1 + 1e-6 * n)) for n in sizes.tolist()]
    return CostModel(CostTable(points), DraftCost(levels=tuple(levels)))


def main() -> None:
    """Times all policies and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=20.0, help="most seconds of one policy at one batch size")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    rows = []
    for device in DEVICE_NAMES:
        for name in options.policies.split(","):
            for batch in REQUESTS:
                times = measure(name, costs(device, batch), batch, options.repeats, options.seconds)
                rows.append(row(device, name, batch, times))
    show(rows)
    header = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/decisions.py --json benchmarks/results/decisions.json",
        "date": datetime.date.today().isoformat(),
        "machine": processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "smartree": __version__,
        "model": MODEL,
        "unit": "milliseconds, medians",
    }
    if options.json:
        options.json.write_text(json.dumps({"header": header, "rows": rows}, indent=1) + "\n")


def processor() -> str:
    """The processor's name as Linux tells it, else what Python knows."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
