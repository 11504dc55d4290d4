"""One look at a device, in under 8 minutes: is the output right, and where does the time go?

    python benchmarks/device_check.py --json out.json            # a GPU: LLaMA-3.1-8B shapes, random weights, bfloat16
    python benchmarks/device_check.py --tiny --json out.json     # any machine: does the script itself work?

Nothing is downloaded: all models are random. Parts: `lossless` (tiny models: speculation against plain decoding),
`cost` (seconds of passes by batch and tokens), `bandwidth` (plain decoding against reading the weights once),
`policies` (tokens per second over plain decoding, with a drafter whose acceptance is assumed and whose levels take the
time of a layer of the target), and on CUDA `graphs` (passes as CUDA graphs against eager ones). A part that fails is
reported and the next one runs; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import torch
from device import parts
from device.setup import LARGE, SMALL, Row, Setup
from device.timing import Deadline
from rich.console import Console
from rich.table import Table

from smartree import __version__
from smartree.engine.measure import device_name
from smartree.models.load import library_versions, pick_device
from smartree.simulate.acceptance import PRESETS, law_named

# Seconds of each part; making the large model and its checks at load come on top, about a minute.
BUDGETS = {"lossless": 60.0, "cost": 110.0, "bandwidth": 20.0, "policies": 150.0, "graphs": 40.0}
Part = Callable[[Setup, Deadline], Iterator[Row]]


def main() -> int:
    """Runs the parts; prints one table; writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model instead of LLaMA-3.1-8B shapes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cuda-graphs", action="store_true", help="in the parts cost, bandwidth and policies too")
    parser.add_argument("--parts", default=",".join(BUDGETS), help="with commas between")
    parser.add_argument("--acceptance", default="eagle3-8b", choices=sorted(PRESETS))
    parser.add_argument("--scale", type=float, default=1.0, help="of all time budgets")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    setup = Setup(pick_device(options.device), SMALL if options.tiny else LARGE, options.cuda_graphs)
    law = law_named(options.acceptance)
    every: dict[str, Part] = {
        "lossless": parts.lossless,
        "cost": parts.cost_curves,
        "bandwidth": parts.bandwidth,
        "policies": lambda own, deadline: parts.policies(own, deadline, law),
        "graphs": parts.graphs,
    }
    chosen = [name for name in options.parts.split(",") if name in every]
    rows: list[Row] = []
    begin = perf_counter()
    for name in chosen:
        rows += run_part(name, every[name], setup, options.scale * BUDGETS[name])
    header = describe(setup, options, perf_counter() - begin)
    show(rows)
    if options.json:
        options.json.write_text(json.dumps({"header": header, "rows": rows}, indent=1) + "\n")
    return int(any(row.get("ok") is False for row in rows))


def run_part(name: str, part: Part, setup: Setup, seconds: float) -> list[Row]:
    """A part's rows; what it had before it failed is kept, and the failure is a row too."""
    rows: list[Row] = []
    begin = perf_counter()
    try:
        for row in part(setup, Deadline(seconds)):
            rows.append({"part": name} | row)
            print(rows[-1], file=sys.stderr)
    except Exception as error:  # whatever happens to a part, the others are still worth their time
        traceback.print_exc()
        rows.append({"part": name, "what": f"failed: {error}".splitlines()[0], "ok": False})
    print(f"{name}: {perf_counter() - begin:.1f} s", file=sys.stderr)
    return rows


def describe(setup: Setup, options: argparse.Namespace, seconds: float) -> Row:
    """What was run on what."""
    torch_version, transformers_version = library_versions()
    return {
        "command": " ".join(["python benchmarks/device_check.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "device": device_name(setup.device),
        "threads": torch.get_num_threads(),
        "model": "tiny random LLaMA" if options.tiny else "LLaMA-3.1-8B shapes, random weights",
        "acceptance": options.acceptance,
        "cuda_graphs": options.cuda_graphs,
        "dtype": str(setup.dtype).removeprefix("torch."),
        "smartree": __version__,
        "torch": torch_version,
        "transformers": transformers_version,
        "cuda": torch.version.cuda,
        "seconds": round(seconds, 1),
    }


def show(rows: list[Row]) -> None:
    """One table on stdout."""
    table = Table("part", "what", "value", "unit", "ok", "more")
    told = ("part", "what", "value", "unit", "ok", "batch", "tokens", "context", "policy")
    for row in rows:
        more = ", ".join(f"{name} {value}" for name, value in row.items() if name not in told)
        ok = {True: "yes", False: "NO", None: ""}[row.get("ok")]
        table.add_row(row["part"], row["what"], str(row.get("value", "")), row.get("unit", ""), ok, more)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


if __name__ == "__main__":
    sys.exit(main())
