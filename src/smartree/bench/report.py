"""Results for people: tables of speedups, and what else a reader must know of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from smartree.bench.config import ORACLE, PLAIN

Row = dict[str, Any]
MEAN = "all suites"
_HEADING = "SR   tau     N"


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table for each suite and temperature, and, where there are several suites, their means."""
    found = []
    suites = list(dict.fromkeys(row["suite"] for row in rows))
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        own = [row for row in rows if row["temperature"] == temperature]
        found += [_table(suite, temperature, [row for row in own if row["suite"] == suite]) for suite in suites]
        if len(suites) > 1:
            found.append(_table(MEAN, temperature, means(own)))
    return found


def means(rows: Sequence[Row]) -> list[Row]:
    """Rows over all suites: the geometric mean of the speedups, the mean of tau and of verified tokens."""
    found = []
    for batch, policy in dict.fromkeys((row["batch"], row["policy"]) for row in rows):
        own = [row for row in rows if (row["batch"], row["policy"]) == (batch, policy)]
        found.append(
            {
                "batch": batch,
                "policy": policy,
                "chosen": None,
                "speedup": math.exp(sum(math.log(row["speedup"]) for row in own) / len(own)),
                "tau": sum(row["tau"] for row in own) / len(own),
                "verified_tokens_per_step": sum(row["verified_tokens_per_step"] for row in own) / len(own),
            }
        )
    return found


def _table(suite: str, temperature: float, rows: Sequence[Row]) -> Table:
    table = Table(
        title=f"{suite}, T={temperature:g}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("policy")
    batches = sorted({row["batch"] for row in rows})
    for batch in batches:
        table.add_column(f"batch {batch}\n{_HEADING}", justify="right")
    for policy in dict.fromkeys(row["policy"] for row in rows):
        cells = {row["batch"]: row for row in rows if row["policy"] == policy}
        table.add_row(Text(policy), *(_cell(cells[batch]) for batch in batches))
        if policy == ORACLE and suite != MEAN:
            chosen = (Text(cells[batch]["chosen"] or "", style="dim") for batch in batches)
            table.add_row(Text("  its tree", style="dim"), *chosen)
    return table


def _cell(row: Row) -> Text:
    slow = row["speedup"] < 1 and row["policy"] != PLAIN
    cell = Text().append(f"{row['speedup']:.2f}", style="red" if slow else "bold")
    return cell.append(f" {row['tau']:5.2f} {row['verified_tokens_per_step']:5.1f}", style="dim")


def notes(rows: Sequence[Row], rounds: bool) -> list[str]:
    """Sentences below the tables.

    Args:
        rows: the results.
        rounds: True if the element type is so coarse that rounding may change tokens.
    """
    told = [
        "SR: tokens/s over those of none (red: slower); tau: tokens a request gets per step; N: verified tokens of a "
        "step, all requests together."
    ]
    others = [row for row in rows if row["policy"] != PLAIN]
    if not others:
        return told
    if others[0]["repeats"] > 1:
        spreads = [max(row["speedup_high"] / row["speedup"], row["speedup"] / row["speedup_low"]) - 1 for row in others]
        told.append(
            f"SR is the median of {others[0]['repeats']} repeats; the furthest repeat is {median(spreads):.1%} off in "
            f"the median row, {max(spreads):.1%} in the worst."
        )
    errors = [row["step_error"] for row in rows if row["step_error"] == row["step_error"]]
    if errors:
        told.append(
            f"Predicted and measured time of a pass differ by {median(errors):.1%} in the median, {max(errors):.1%} in "
            "the worst row."
        )
    same, outputs = sum(row["identical_prompts"] for row in others), sum(row["prompts"] for row in others)
    why = " (rounding decides between near-equal logits; --dtype float32 shows whether that is all)"
    told.append(
        f"Tokens identical to plain decoding: {same} of {outputs} outputs{why if rounds and same < outputs else ''}."
    )
    return told


def headline(rows: Sequence[Row]) -> str:
    """The speedups of one group in a line."""
    return ", ".join(f"{row['policy']} {row['speedup']:.2f}" for row in rows if row["policy"] != PLAIN)
