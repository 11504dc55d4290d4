"""Time of a verify pass by its rows: how flat the target is, which is what every tree lives on.

    python benchmarks/flatness.py --json benchmarks/results/flatness.json

Passes behind 256 cached rows a request: of 1 to 32 rows at batch 1, of 1 to 4 rows a request at batch 4, 8 and 16.
All sizes take turns, round after round; medians are what counts.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from smartree import LLM
from smartree.cli.header import run_header
from smartree.cli.json_file import JsonFile
from smartree.models.rehearsal import rehearsal
from smartree.models.runner import ModelRunner

CONTEXT = 256
SIZES = [(1, rows) for rows in (1, 2, 4, 8, 16, 32)] + [(batch, rows) for batch in (4, 8, 16) for rows in (1, 2, 3, 4)]
Row = dict[str, Any]


def main() -> None:
    """Times all sizes and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", default=None, metavar="FILE")
    options = parser.parse_args()
    json_file = JsonFile(options.json)
    most = max(batch for batch, _ in SIZES)
    llm = LLM(options.model, dtype=options.dtype, drafter="none", policy="none", max_batch=most)
    runner = ModelRunner(llm.target, most, llm.window)
    passes = {(batch, rows): rehearsal(runner, (rows,) * batch, CONTEXT, False) for batch, rows in SIZES}
    rows = rows_of(alternate(passes, options.rounds))
    show(rows)
    header = run_header(llm, context=CONTEXT, rounds=options.rounds, date=datetime.date.today().isoformat())
    json_file.write({"header": header, "rows": rows})


def alternate(passes: dict[tuple[int, int], Callable[[], Any]], rounds: int) -> dict[tuple[int, int], list[float]]:
    """Seconds of each pass in each round, after one round that does not count."""
    times: dict[tuple[int, int], list[float]] = {size: [] for size in passes}
    for number in range(rounds + 1):
        for size, run in passes.items():
            begin = perf_counter()
            run()
            if number:
                times[size].append(perf_counter() - begin)
    return times


def rows_of(times: dict[tuple[int, int], list[float]]) -> list[Row]:
    """Medians, and the median over rounds of the ratio to one row a request at the same batch size."""
    return [
        {
            "batch": batch,
            "rows_per_request": rows,
            "rows": batch * rows,
            "ms": round(1e3 * median(own), 2),
            "over_one_row": round(median(a / b for a, b in zip(own, times[batch, 1], strict=True)), 3),
        }
        for (batch, rows), own in times.items()
    ]


def show(rows: list[Row]) -> None:
    """A table on stdout."""
    table = Table("batch", "rows a request", "rows", "ms", "over one row", title=f"Verify pass, context {CONTEXT}")
    for row in rows:
        table.add_row(*(str(row[name]) for name in ("batch", "rows_per_request", "rows", "ms", "over_one_row")))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
