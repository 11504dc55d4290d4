"""Peak memory over the weights when the batch is full of long texts, against the size of the cache itself.

    python benchmarks/memory.py --json benchmarks/results/memory.json

16 requests grow to 1,024 tokens each, prompt included. The resident memory of the process is read when weights, drafter
and libraries are loaded; its peak from there on comes from Linux, which is told to forget the peak of the loading
itself. Each policy has a process of its own, so that none finds memory which another one left.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from smartree import LLM, SamplingParams
from smartree.cli.header import run_header
from smartree.cli.json_file import JsonFile

OUTPUT_TOKENS = 64
MIB = 2**20
Result = dict[str, Any]


def main() -> None:
    """Measures each policy and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="none,smart")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--json", default=None, metavar="FILE")
    parser.add_argument("--only", default=None, help=argparse.SUPPRESS)  # the process of one policy
    options = parser.parse_args()
    if options.only is not None:
        print(json.dumps(measure(options.only, options.batch, options.tokens)))
        return
    json_file = JsonFile(options.json)
    results = [_in_own_process(policy, options) for policy in options.policies.split(",")]
    rows = [result["row"] for result in results]
    show(rows)
    json_file.write({"header": results[0]["header"], "rows": rows})


def _in_own_process(policy: str, options: argparse.Namespace) -> Result:
    sizes = ["--batch", str(options.batch), "--tokens", str(options.tokens)]
    run = subprocess.run([sys.executable, __file__, "--only", policy, *sizes], stdout=subprocess.PIPE, check=True)
    result: Result = json.loads(run.stdout.splitlines()[-1])
    return result


def measure(policy: str, batch: int, tokens: int) -> Result:
    """Header and row of one policy."""
    drafter = "none" if policy == "none" else "auto"
    llm = LLM("demo", policy=policy, drafter=drafter, max_batch=batch)
    prompts = [[1 + (7 * place + number) % 1000 for place in range(tokens - OUTPUT_TOKENS)] for number in range(batch)]
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what loading left behind would hide what decoding takes
    loaded = _mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    llm.generate(prompts, SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True))
    grown = _mib("VmHWM") - loaded
    cache = llm.engine.runner.cache
    allocated = sum(tensor.numel() * tensor.element_size() for tensor in (cache.keys, cache.values)) / MIB
    shape, size = llm.target.cache_shape, cache.keys.element_size()
    needed = batch * tokens * 2 * shape.layers * shape.kv_heads * shape.head_dim * size / MIB
    row = {
        "policy": policy,
        "batch": batch,
        "tokens": tokens,
        "loaded_mib": round(loaded, 1),
        "peak_over_loaded_mib": round(grown, 1),
        "cache_needed_mib": round(needed, 1),
        "cache_allocated_mib": round(allocated, 1),
        "peak_over_needed": round(grown / needed, 2),
    }
    return {"header": run_header(llm, date=datetime.date.today().isoformat()), "row": row}


def _mib(name: str) -> float:
    """A line of the process's status, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def show(rows: list[Result]) -> None:
    """A table on stdout."""
    table = Table(*(name.replace("_", " ") for name in rows[0]), title="Memory, MiB")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
