"""Results as rows: medians over the repeats, in the names of the design."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from smartree.bench.cell import Cell
from smartree.bench.config import ORACLE, PLAIN, BenchConfig, Group
from smartree.bench.measures import Measures, ratio, total

Row = dict[str, Any]
_DIGITS = 6


def all_rows(
    config: BenchConfig, cells: Sequence[Cell], trees: Mapping[Group, str], prompts: Mapping[str, int]
) -> list[Row]:
    """One row for each group and policy, in the order of the settings.

    Args:
        config: the bench.
        cells: all of them.
        trees: what the oracle chose.
        prompts: measured prompts of each suite.
    """
    rows = []
    for group in config.groups():
        own = sorted((cell for cell in cells if cell.group == group), key=lambda cell: cell.repeat)
        rows += group_rows(config, group, own, trees.get(group), prompts[group.suite])
    return rows


def group_rows(config: BenchConfig, group: Group, cells: Sequence[Cell], tree: str | None, prompts: int) -> list[Row]:
    """The rows of one group, from its repeats."""
    plain = [cell.measures[PLAIN] for cell in cells]
    rows = []
    for policy in config.policies:
        measured = [cell.measures[policy] for cell in cells]
        differing = {place for one in measured for place in one.differing}
        row = {
            "suite": group.suite,
            "batch": group.batch,
            "temperature": group.temperature,
            "policy": policy,
            "chosen": tree if policy == ORACLE else None,
            "prompts": prompts,
            **_speeds(measured, plain),
            **_steps(measured),
            "identical_to_none": not differing,
            "identical_prompts": prompts - len(differing),
            "repeats": len(cells),
            "seed": config.seed,
        }
        rows.append({name: _rounded(value) for name, value in row.items()})
    return rows


def _speeds(measured: Sequence[Measures], plain: Sequence[Measures]) -> Row:
    """Ratios are taken repeat by repeat: both sides of each were measured in turns."""
    ratios = [one.rate / other.rate for one, other in zip(measured, plain, strict=True)]
    decoding = [ratio(one.decoding_rate, other.decoding_rate) for one, other in zip(measured, plain, strict=True)]
    return {
        "tokens": int(total(measured, "tokens")),
        "seconds": total(measured, "seconds"),
        "tokens_per_second": median(one.rate for one in measured),
        "speedup": median(ratios),
        "speedup_low": min(ratios),
        "speedup_high": max(ratios),
        "decoding_speedup": median(decoding),
    }


def _steps(measured: Sequence[Measures]) -> Row:
    steps, requests = total(measured, "steps"), total(measured, "requests")
    committed = total(measured, "tokens") - total(measured, "first_tokens")
    compared = total(measured, "compared_steps")
    return {
        "tau": ratio(committed, requests),
        "beta": ratio(committed - requests, total(measured, "path_levels")),
        "verified_tokens_per_step": ratio(total(measured, "rows"), steps),
        "draft_levels_per_step": ratio(total(measured, "levels"), steps),
        "step_ms_measured": 1e3 * ratio(total(measured, "compared_seconds"), compared),
        "step_ms_predicted": 1e3 * ratio(total(measured, "predicted_seconds"), compared),
        "step_error": median(one.prediction_error for one in measured),
        "draft_ms_per_step": 1e3 * ratio(total(measured, "draft_seconds"), steps),
        "policy_ms_per_step": 1e3 * ratio(total(measured, "policy_seconds"), steps),
        "bookkeeping_ms_per_step": 1e3 * ratio(total(measured, "bookkeeping_seconds"), steps),
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
