"""Every policy on every preset device, model and batch size; writes sweep.json, summary.md and the pictures.

Run: OMP_NUM_THREADS=1 .venv/bin/python benchmarks/simulate/run_sweep.py [--workers 2] [--steps 120] [--seconds S]

Rows are kept in sweep.partial.jsonl as they come, so that an interrupted sweep, or one that ran out of time, goes
on where it was; the file goes when the sweep is complete. It is only continued if the settings are the same; whether
the policies are, it cannot know: delete it after changing one.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

from matplotlib.figure import Figure
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from smartree.simulate.devices import DEVICES, Overheads
from smartree.simulate.models import MODELS
from smartree.simulate.plots import DOTS_PER_INCH, SIZE, draw_bend, draw_sizes, draw_speedups
from smartree.simulate.report import ratios, summary, sweep_header
from smartree.simulate.setups import RooflineSetup, setups_for
from smartree.simulate.sweep import Row, SweepOptions, count_rows, sweep

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PICTURES = (("rtx-pro-6000", "llava-1.5-7b"), ("l40s", "llava-1.5-7b"), ("rtx-pro-6000", "llama-3.1-8b"))
Key = tuple[str, str, int, str]


def simulate_cells(model: str, batch: int, steps: int, done: frozenset[Key]) -> list[Row]:
    """All devices of one model and batch size: they share what decides without costs."""
    options = SweepOptions(batches=(batch,), steps=steps)
    return list(sweep(setups_for(["all"], [MODELS[model]], Overheads()), options, done))


def kept_rows(path: Path, header: dict[str, Any]) -> list[Row]:
    """Rows of an interrupted sweep with the same settings."""
    if not path.exists():
        path.write_text(json.dumps(header) + "\n")
        return []
    first, *lines = path.read_text().splitlines()
    if json.loads(first) != json.loads(json.dumps(header)):
        raise SystemExit(f"{path} is of a sweep with other settings; finish that one or delete the file.")
    return [Row(**json.loads(line)) for line in lines if line.endswith("}")]


def all_rows(path: Path, header: dict[str, Any], total: int, wanted: argparse.Namespace) -> list[Row]:
    """Simulates what is missing, with a bar, for as long as it may."""
    rows = kept_rows(path, header)
    done = frozenset(row.key for row in rows)
    columns = ("Simulating", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    begin = monotonic()
    with ProcessPoolExecutor(wanted.workers) as pool, Progress(*columns) as bar, path.open("a") as file:
        task = bar.add_task("rows", total=total, completed=len(rows))
        # The largest batches take longest: first, so that no worker is left alone with one at the end.
        jobs = [pool.submit(simulate_cells, m, b, wanted.steps, done) for b, m in product(reversed(BATCHES), MODELS)]
        for job in as_completed(jobs):
            for row in [] if job.cancelled() else job.result():
                rows.append(row)
                file.write(json.dumps(row.to_json()) + "\n")
                bar.advance(task)
            file.flush()
            if wanted.seconds and monotonic() - begin > wanted.seconds:
                for other in jobs:
                    other.cancel()  # those that run already are waited for
    return rows


def write_summary(path: Path, rows: list[Row]) -> None:
    """How smart compares with every other policy: over all cells, by batch, and the cells where it misses an aim."""
    lines = ["# smart over the other policies, simulated", "", "Throughput ratios over all cells.", ""]
    lines += ["| other | smallest | geometric mean | largest |", "| --- | --- | --- | --- |"]
    for name, found in summary(rows).items():
        lines.append(f"| {name} | {found['smallest']:.3f} | {found['geometric_mean']:.3f} | {found['largest']:.3f} |")
    lines += ["", "Geometric means by batch.", "", "| other | " + " | ".join(f"{b}" for b in BATCHES) + " |"]
    lines.append("| --- " * (1 + len(BATCHES)) + "|")
    for name in summary(rows):
        means = []
        for batch in BATCHES:
            found = summary([row for row in rows if row.batch == batch])
            means.append(f"{found[name]['geometric_mean']:.3f}" if name in found else "")
        lines.append(f"| {name} | " + " | ".join(means) + " |")
    lines += ["", "Cells below 0.99 of the oracle or below plain decoding:", ""]
    misses = [
        f"- {device}, {model}, batch {batch}: smart/{other} {ratio:.3f}"
        for other, aim in (("oracle", 0.99), ("none", 1.0))
        for (device, model, batch), ratio in sorted(ratios(rows, "smart", other).items(), key=lambda item: item[1])
        if ratio < aim
    ]
    path.write_text("\n".join(lines + (misses or ["- none"])) + "\n")


def draw(folder: Path, rows: list[Row]) -> None:
    """The pictures of the README and docs."""

    def save(name: str, drawer: Any, *arguments: Any) -> None:
        figure = Figure(figsize=SIZE, layout="constrained")
        drawer(figure, *arguments)
        figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH)

    for device, model in PICTURES:
        chosen = [row for row in rows if (row.device, row.model) == (device, model)]
        save(f"speedup-{device}-{model}", draw_speedups, chosen)
        save(f"size-{device}-{model}", draw_sizes, chosen)
    shape = MODELS["llama-3.1-8b"]
    curves = {name: RooflineSetup(device, shape).bend() for name, device in DEVICES.items()}
    save("bend-llama-3.1-8b", draw_bend, curves, "llama-3.1-8b, one request: a pass by its roofline")


def main() -> None:
    """Simulates, writes, draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after about this long; 0: run to the end")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    setups = setups_for(["all"], list(MODELS.values()), Overheads())
    options = SweepOptions(batches=BATCHES, steps=arguments.steps)
    header = sweep_header(setups, options, Overheads())
    partial = arguments.out / "sweep.partial.jsonl"
    total = count_rows(setups, options)
    rows = all_rows(partial, header, total, arguments)
    if len(rows) < total:
        raise SystemExit(f"{len(rows)} of {total} rows are there; run again to go on.")
    order = {key: place for place, key in enumerate(product(DEVICES, MODELS, BATCHES, options.policies))}
    rows.sort(key=lambda row: order[row.key])
    text = ",\n ".join(json.dumps(row.to_json()) for row in rows)
    (arguments.out / "sweep.json").write_text(f'{{"header": {json.dumps(header)},\n"rows": [\n {text}\n]}}\n')
    write_summary(arguments.out / "summary.md", rows)
    draw(arguments.out, rows)
    partial.unlink()
    print((arguments.out / "summary.md").read_text())


if __name__ == "__main__":
    main()
