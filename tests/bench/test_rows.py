"""Rows from measures, and what people are told of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from smartree.bench.cell import Cell
from smartree.bench.config import BenchConfig, Group
from smartree.bench.report import headline, means, notes, tables
from smartree.bench.rows import all_rows
from tests.bench.made import MEASURES, timed

GROUPS = (Group("a", 0.0, 1), Group("b", 0.0, 1))
CONFIG = BenchConfig(("a", "b"), (1,), policies=("none", "smart", "oracle"), seed=9)
PLAIN_SECONDS, SMART_SECONDS = (2.0, 4.0, 2.0), (1.0, 1.0, 4.0)  # 2, 4 and 0.5 times as fast


def cells() -> list[Cell]:
    return [
        Cell(
            group,
            repeat,
            {
                "none": timed(PLAIN_SECONDS[repeat]),
                "smart": timed(SMART_SECONDS[repeat], (repeat, 2) if group.suite == "a" else ()),
                "oracle": timed(PLAIN_SECONDS[repeat]),
            },
        )
        for group in GROUPS
        for repeat in (2, 0, 1)  # in whatever order they were finished
    ]


def rows() -> list[dict[str, object]]:
    return all_rows(CONFIG, cells(), {GROUPS[0]: "2/1/2", GROUPS[1]: "none"}, {"a": 5, "b": 7})


def test_medians_and_spread() -> None:
    found = rows()
    assert [(row["suite"], row["policy"], row["chosen"]) for row in found] == [
        ("a", "none", None), ("a", "smart", None), ("a", "oracle", "2/1/2"),
        ("b", "none", None), ("b", "smart", None), ("b", "oracle", "none"),
    ]  # fmt: skip
    smart = found[1]
    assert (smart["speedup"], smart["speedup_low"], smart["speedup_high"]) == (2.0, 0.5, 4.0)
    assert (smart["tokens"], smart["seconds"], smart["tokens_per_second"]) == (300, 6.0, 100.0)
    assert (smart["prompts"], smart["repeats"], smart["seed"]) == (5, 3, 9)
    assert found[0]["speedup"] == 1.0


def test_identity_is_over_all_repeats() -> None:
    found = rows()
    assert (found[1]["identical_to_none"], found[1]["identical_prompts"]) == (False, 2)
    assert (found[4]["identical_to_none"], found[4]["identical_prompts"]) == (True, 7)


def test_steps() -> None:
    row = rows()[1]
    assert row["tau"] == 1.5  # 90 tokens of decoding in 60 steps of requests
    assert row["beta"] == 0.2  # 30 of them beyond the first, 150 levels drafted
    assert row["verified_tokens_per_step"] == 6.0
    assert row["draft_levels_per_step"] == 2.0
    assert (row["step_ms_measured"], row["step_ms_predicted"], row["step_error"]) == (25.0, 20.0, 0.1)
    assert (row["draft_ms_per_step"], row["policy_ms_per_step"], row["bookkeeping_ms_per_step"]) == (5.0, 1.0, 2.0)


def test_nothing_to_divide_by() -> None:
    empty = replace(MEASURES, steps=0, requests=0, path_levels=0, compared_steps=0, decoding_seconds=0.0)
    config = BenchConfig(("a",), (1,), policies=("none",))
    [row] = all_rows(config, [Cell(GROUPS[0], 0, {"none": empty})], {}, {"a": 5})
    assert row["tau"] != row["tau"]
    assert row["speedup"] == 1.0


def test_tables_and_notes() -> None:
    found = rows()
    console = Console(width=100, record=True)
    for table in tables(found):
        console.print(table)
    text = console.export_text()
    assert "a, T=0" in text
    assert "all suites, T=0" in text
    assert "2.00  1.50   6.0" in text
    assert "2/1/2" in text
    told = " ".join(notes(found, rounds=True))
    assert "median of 3 repeats" in told
    assert "differ by 10.0% in the median" in told
    assert "Tokens identical to plain decoding: 21 of 24 outputs (rounding" in told
    assert "rounding" not in " ".join(notes(found, rounds=False))
    assert headline(found[:3]) == "smart 2.00, oracle 1.00"


def test_mean_of_suites_is_geometric() -> None:
    found = [{"batch": 1, "policy": "smart", "speedup": s, "tau": t, "verified_tokens_per_step": 1.0}
             for s, t in ((0.5, 1.0), (2.0, 3.0))]  # fmt: skip
    [mean] = means(found)
    assert mean["speedup"] == pytest.approx(1.0)
    assert mean["tau"] == 2.0


def test_one_policy_alone_has_little_to_tell() -> None:
    config = BenchConfig(("a",), (1,), policies=("none",))
    found = all_rows(config, [Cell(GROUPS[0], 0, {"none": MEASURES})], {}, {"a": 5})
    assert len(notes(found, rounds=True)) == 1
    assert headline(found) == ""
