"""Whole benches on the tiny model: what rows say, and that an interruption changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from smartree import LLM
from smartree.bench.config import BenchConfig, Group, tree_name
from smartree.bench.partial import Partial
from smartree.bench.rows import all_rows
from smartree.bench.run import Bench, settings_of
from smartree.bench.suites import EncodedSuite
from smartree.errors import InputError
from smartree.policies.factory import POLICY_NAMES
from smartree.policies.fixed import ORACLE_GRID, TreeSize
from tests.tiny import flat_profile, tiny_model

GRID = (TreeSize(1, 1, 1), TreeSize(3, 2, 4))
LARGE_GRID = ORACLE_GRID[::14]  # more than are raced at once
Suites = dict[str, EncodedSuite]
ROW = {
    "suite", "batch", "temperature", "policy", "chosen", "prompts", "tokens", "seconds", "tokens_per_second", "speedup",
    "speedup_low", "speedup_high", "decoding_speedup", "tau", "beta", "verified_tokens_per_step",
    "draft_levels_per_step", "step_ms_measured", "step_ms_predicted", "step_error", "draft_ms_per_step",
    "policy_ms_per_step", "bookkeeping_ms_per_step", "identical_to_none", "identical_prompts", "repeats", "seed",
}  # fmt: skip


class Watch:
    """Interrupts after a number of calls; notes the finished groups."""

    def __init__(self, most: int = 10**9) -> None:
        self.most, self.work = most, 0.0
        self.groups: list[Group] = []

    def advance(self, what: str, work: float) -> None:
        self.work += work
        self.most -= 1
        if self.most < 0:
            raise KeyboardInterrupt

    def finished(self, group: Group) -> None:
        self.groups.append(group)


def rows_of(config: BenchConfig, done: Partial) -> list[dict[str, Any]]:
    return all_rows(config, done.cells, done.trees, dict.fromkeys(config.suites, 4))


def run(llm: LLM, config: BenchConfig, suites: Suites) -> list[dict[str, Any]]:
    done = Partial(None, {})
    Bench(llm, config, suites, done).run(Watch())
    return rows_of(config, done)


def names(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["suite"], row["temperature"], row["batch"], row["policy"]) for row in rows]


def test_every_policy_gives_the_tokens_of_plain_decoding(llm: LLM, suites: Suites) -> None:
    config = BenchConfig(
        ("one",), (1, 4), (0.0, 1.0), (*POLICY_NAMES, "oracle"), max_tokens=10, repeats=1, seed=5, oracle_grid=GRID
    )
    rows = run(llm, config, suites)
    assert names(rows) == [
        ("one", temperature, batch, policy)
        for temperature in (0.0, 1.0)
        for batch in (1, 4)
        for policy in (*POLICY_NAMES, "oracle")
    ]
    for row in rows:
        assert set(row) == ROW
        assert (row["prompts"], row["identical_prompts"], row["identical_to_none"]) == (4, 4, True)
        assert row["tau"] >= 1
        assert row["verified_tokens_per_step"] >= 1
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
        assert row["seed"] == 5
        if row["policy"] == "none":
            assert (row["speedup"], row["tau"], row["draft_levels_per_step"]) == (1.0, 1.0, 0.0)
        assert row["chosen"] in ((None,) if row["policy"] != "oracle" else ("none", "1/1/1", "3/2/4"))
        if row["batch"] == 1:
            assert row["tokens"] == 40


def test_a_draft_model_that_runs_level_by_level(suites: Suites) -> None:
    target, draft = (tiny_model("llama", seed=seed, dtype=torch.float32) for seed in (0, 1))
    llm = LLM(target, drafter=draft, policy="none", profile=flat_profile(levels=True), max_batch=2)
    config = BenchConfig(("one",), (2,), (1.0,), ("smart", "oracle"), max_tokens=6, repeats=1, oracle_grid=LARGE_GRID)
    rows = run(llm, config, suites)
    assert [row["identical_to_none"] for row in rows] == [True] * 3
    assert rows[2]["chosen"] in {"none", *(tree_name(size) for size in LARGE_GRID)}


def test_interrupted_and_resumed_has_every_row_once(llm: LLM, suites: Suites, tmp_path: Path) -> None:
    config = BenchConfig(
        ("one", "two"), (1, 2), (0.0,), ("eagle2", "oracle"), max_tokens=6, repeats=2, oracle_grid=GRID
    )
    file = tmp_path / "out.json.partial"
    settings = settings_of(config, suites, {"model": "tiny"})
    watch = Watch()
    attempts = 0
    for most in (3, 80, 120, 250, 10**9):
        done = Partial(file, settings)
        kept, watch = len(done.cells), Watch(most)
        assert len(Bench(llm, config, suites, done).jobs()) == 12 - kept - len(done.trees)
        attempts += 1
        try:
            Bench(llm, config, suites, done).run(watch)
            break
        except KeyboardInterrupt:
            assert file.is_file()
    assert attempts == 5
    done = Partial(file, settings)
    cells = [(cell.group, cell.repeat) for cell in done.cells]
    assert len(cells) == len(set(cells)) == 8
    assert Bench(llm, config, suites, done).jobs() == []
    rows = rows_of(config, done)
    assert names(rows) == [
        (suite, 0.0, batch, policy) for suite in ("one", "two") for batch in (1, 2)
        for policy in ("none", "eagle2", "oracle")
    ]  # fmt: skip
    assert all(row["repeats"] == 2 and row["identical_to_none"] for row in rows)
    assert [row["tokens"] for row in rows if row["batch"] == 1] == [48] * 6
    done.remove()
    assert not file.exists()


def test_the_oracle_never_sees_the_measured_prompts(llm: LLM, suites: Suites, monkeypatch: pytest.MonkeyPatch) -> None:
    from smartree.bench import run as run_module

    seen: list[list[int]] = []
    real = run_module.search_tree

    def search(model: LLM, wanted: Any, advance: Any) -> str:
        seen.extend(wanted.load.prompts)
        return real(model, wanted, advance)

    monkeypatch.setattr(run_module, "search_tree", search)
    config = BenchConfig(("one",), (2,), policies=("oracle",), max_tokens=4, repeats=1, oracle_grid=GRID)
    run(llm, config, suites)
    assert seen == list(suites["one"].search)
    assert not [prompt for prompt in seen if prompt in suites["one"].measured]


def test_progress_adds_up(llm: LLM, suites: Suites) -> None:
    config = BenchConfig(("one",), (1,), policies=("smart", "oracle"), max_tokens=4, repeats=2, oracle_grid=GRID)
    bench, watch = Bench(llm, config, suites, Partial(None, {})), Watch()
    expected = sum(job.seconds for job in bench.jobs())
    bench.run(watch)
    assert 0.9 * expected < watch.work <= expected * 1.0001
    assert watch.groups == [Group("one", 0.0, 1)]


def test_settings_tell_other_prompts(suites: Suites, tmp_path: Path) -> None:
    config = BenchConfig(("one",))
    here = settings_of(config, {"one": suites["one"]}, {"model": "tiny"})
    Partial(tmp_path / "p", here)
    Partial(tmp_path / "p", here)
    for other, message in (
        (settings_of(config, {"one": suites["two"]}, {"model": "tiny"}), r"prompts of one \("),
        (settings_of(config, {"one": suites["one"]}, {"model": "big"}), r"model \(tiny there, big here\)"),
        (
            settings_of(BenchConfig(("one",), (1, 8)), {"one": suites["one"]}, {"model": "tiny"}),
            r"\(1,4 there, 1,8 here\)",
        ),
    ):
        with pytest.raises(InputError, match=message):
            Partial(tmp_path / "p", other)
    Partial(tmp_path / "p", other, fresh=True)
    Partial(tmp_path / "p", other)
