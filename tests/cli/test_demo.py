"""`smartree demo` on the tiny model: the comparison, the identity line, the tree."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from smartree.cli.comparison import DemoPrompt, Difference, mixed_groups
from smartree.cli.demo import interest
from smartree.cli.prompts import parse_row
from smartree.engine.trace import NodeTrace, StepTrace
from tests.cli.conftest import Smartree, read_json

KINDS = ["chat", "code", "math", "rewrite"]
ROW = {
    "batch", "policy", "prompts", "tokens", "seconds", "tokens_per_second", "speedup", "tau",
    "verified_tokens_per_step", "identical_to_none", "differences", "speedup_by_kind",
}  # fmt: skip


def short_prompts(llm: Any) -> list[DemoPrompt]:
    """Twelve prompts that fit the tiny model's window and repeat themselves, so that something is drafted."""
    return [
        DemoPrompt(f"{kind}-{number}", kind, text, llm.encode(text))
        for kind in KINDS
        for number in range(3)
        if (text := f"{kind}{number} " * 4)
    ]


def test_built_in_prompts() -> None:
    lines = files("smartree.cli").joinpath("demo_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 12
    assert len({parse_row(line, "").id for line in lines}) == 12


def test_groups_mix_kinds() -> None:
    prompts = [DemoPrompt(f"{kind}-{number}", kind, "", []) for kind in KINDS for number in range(3)]
    assert [[prompt.kind for prompt in group] for group in mixed_groups(prompts, 4)] == [KINDS] * 3
    assert [prompt for group in mixed_groups(prompts, 1) for prompt in group] == prompts


@pytest.fixture
def short_demo(monkeypatch: pytest.MonkeyPatch, profile_file: Path) -> None:
    monkeypatch.setattr("smartree.cli.demo.demo_prompts", short_prompts)


@pytest.mark.usefixtures("short_demo")
def test_verb(smartree: Smartree, model: str, tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    common = ["--model", model, "--max-tokens", "16"]
    result = smartree("demo", *common, "--dtype", "float32", "--json", str(file))
    assert result.code == 0
    data = read_json(file)
    assert [(row["batch"], row["policy"]) for row in data["rows"]] == [
        (1, "none"), (1, "eagle2"), (1, "smart"), (4, "none"), (4, "eagle2"), (4, "smart"),
    ]  # fmt: skip
    for row in data["rows"]:
        assert set(row) == ROW
        assert (row["prompts"], row["identical_to_none"]) == (12, 12)
        assert row["speedup"] > 0
    assert set(data["rows"][1]["speedup_by_kind"]) == set(KINDS)
    assert data["rows"][0]["verified_tokens_per_step"] == 1
    assert data["header"]["identical_in_float32"] is None
    for batch in (1, 4):
        for policy in ("eagle2", "smart"):
            assert f"Batch {batch}, {policy}: tokens identical: 12 of 12 prompts" in result.stdout
    assert "1.5 times the plain step" in result.stdout
    assert "(last committed token)" in result.stdout
    assert "Done in" in result.stderr


@pytest.mark.usefixtures("short_demo")
def test_differences_are_told_honestly(smartree: Smartree, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def differing(llm: Any, prompts: Any, run: Any, plain: Any) -> list[Difference]:
        return [Difference("chat-0", 4, 0.125, True), Difference("code-1", 7, 3.0, False)]

    monkeypatch.setattr("smartree.cli.demo.differences", differing)
    monkeypatch.setattr("smartree.engine.measure._BUDGET_SECONDS", 0.1)
    result = smartree("demo", "--model", model, "--max-tokens", "4", "--dtype", "bfloat16")
    assert result.code == 0
    assert "Batch 1, smart: tokens identical: 10 of 12 prompts" in result.stdout
    assert "chat-0 at token 5 (0.125)" in " ".join(result.stdout.split())  # it may be wrapped
    assert "code-1 differs at token 8, logits 3 apart: a fault" in result.stdout
    assert "In float32, where rounding decides nothing: tokens identical: 12 of 12 prompts" in result.stdout


def test_interesting_steps_fork() -> None:
    def step(*nodes: tuple[int, bool]) -> StepTrace:
        traced = tuple(NodeTrace(0, parent, 0.5, 0.5, True, accepted) for parent, accepted in nodes)
        return StepTrace(0, 0, traced, (), None, 0.0)

    line = step((-1, True), (0, True), (1, True), (2, True))
    fork = step((-1, True), (-1, False), (0, True), (2, True))
    shallow_fork = step((-1, True), (-1, False))
    assert sorted([fork, line, shallow_fork], key=interest) == [shallow_fork, line, fork]


@pytest.mark.slow
@pytest.mark.demo
@pytest.mark.usefixtures("demo_wheel")
def test_real_demo(smartree: Smartree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SMARTREE_CACHE")
    file = tmp_path / "demo.json"
    result = smartree("demo", "--max-tokens", "24", "--json", str(file))
    assert result.code == 0
    assert "a fault" not in result.stdout
    assert read_json(file)["header"]["identical_in_float32"] in (None, 12)
