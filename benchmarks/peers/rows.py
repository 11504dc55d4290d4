"""From records to the rows of the JSON and the table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.peers.lineup import ENGINES, MODES, PLAIN, SPECULATION
from benchmarks.peers.record import Record

Row = dict[str, Any]
_OURS = {"none_over_this": f"smartree/{PLAIN}", "smart_over_this": f"smartree/{SPECULATION}"}


def rows_of(records: Sequence[Record]) -> list[Row]:
    """One row for each engine, mode and batch: medians of its runs, and smartree against it.

    A ratio is the median over repeats of the ratio within a repeat, whose runs lie near each other in time.
    """
    rows = []
    for batch in sorted({record.batch for record in records}):
        rates = {(record.entry, record.repeat): record.tokens_per_second for record in records if record.batch == batch}
        for engine in ENGINES:
            for mode in MODES:
                entry = f"{engine.name}/{mode}"
                own = [record for record in records if (record.entry, record.batch) == (entry, batch)]
                if own:
                    rows.append(_row(engine.label(mode), engine.name, mode, own) | _ratios(entry, rates))
    return rows


def _row(label: str, engine: str, mode: str, own: Sequence[Record]) -> Row:
    rates = [record.tokens_per_second for record in own]
    steps = [record.step_ms for record in own if record.step_ms is not None]
    agreements = [record.agreement for record in own if record.agreement is not None]
    return {
        "engine": engine,
        "mode": mode,
        "label": label,
        "batch": own[0].batch,
        "repeats": len(own),
        "tokens": own[0].tokens,
        "seconds": round(median(record.seconds for record in own), 3),
        "tokens_per_second": round(median(rates), 1),
        "spread": round((max(rates) - min(rates)) / median(rates), 3),
        "step_ms": round(median(steps), 2) if steps else None,
        "agreement": round(median(agreements), 3) if agreements else None,
    }


def _ratios(entry: str, rates: dict[tuple[str, int], float]) -> Row:
    found: Row = {}
    for name, ours in _OURS.items():
        shared = [repeat for one, repeat in rates if one == entry and (ours, repeat) in rates]
        ratios = [rates[ours, repeat] / rates[entry, repeat] for repeat in shared]
        found[name] = round(median(ratios), 3) if ratios else None
    return found


def table_of(rows: Sequence[Row]) -> Table:
    """What stdout shows."""
    table = Table("batch", "engine", title="Tokens/s of all requests together, and smartree's against it")
    for name in ("tokens/s", "spread", "ms a step", "none / this", "smart / this", "same tokens"):
        table.add_column(name, justify="right")
    for place, row in enumerate(rows):
        if place and row["batch"] != rows[place - 1]["batch"]:
            table.add_section()
        table.add_row(
            str(row["batch"]),
            row["label"],
            f"{row['tokens_per_second']:.1f}",
            f"{row['spread']:.0%}",
            _shown(row["step_ms"], "{:.1f}"),
            _shown(row["none_over_this"], "{:.2f}"),
            _shown(row["smart_over_this"], "{:.2f}"),
            _shown(row["agreement"], "{:.0%}"),
        )
    return table


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
