"""`smartree plan`: the example of the documentation, every kind of bad input, and no torch."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smartree.cli.app import run
from smartree.policies import POLICY_NAMES
from smartree.tree import Candidates, Forest, PackedTrees
from smartree.tree.forest import Ints

DOCUMENT = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
POOLS: dict[str, Any] = {"requests": [{"parents": [-1, -1, 0], "probabilities": [0.8, 0.1, 0.7]}]}
FLAT: dict[str, Any] = {"verify": [{"batch": 1, "tokens": n, "seconds": 0.01} for n in (1, 2, 4, 8)]}

Plan = Callable[..., int]


def blocks(language: str) -> list[str]:
    """The fenced blocks of the documentation in one language."""
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Runs the verb in an empty folder on two files, given as data or as text; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def call(candidates: Any = POOLS, profile: Any = FLAT, *arguments: str) -> int:
        for name, content in (("candidates.json", candidates), ("profile.json", profile)):
            text = content if isinstance(content, str) else json.dumps(content)
            Path(name).write_text(text, encoding="utf-8")
        return run(["plan", "--candidates", "candidates.json", "--cost", "profile.json", *arguments])

    return call


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr; nothing went to stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("smartree: ")
    assert line.endswith(".")
    return line.removeprefix("smartree: ")


# --- what it says ------------------------------------------------------------------------------------------------


def test_the_documented_example_gives_the_documented_answer(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    candidates, profile, answer = blocks("json")
    assert plan(candidates, profile, "--json", "plan.json") == 0
    written, documented = json.loads(Path("plan.json").read_text()), json.loads(answer)
    assert written.pop("selected") == documented.pop("selected")
    assert written == pytest.approx(documented)
    printed = capsys.readouterr().out.split()
    shown = "".join(blocks("console")).split("plan.json", 1)[1].split()
    assert [word for word in printed if "─" not in word] == [word for word in shown if "─" not in word]


def test_the_table_says_what_was_chosen_of_every_request(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan() == 0
    out, err = capsys.readouterr()
    assert "3 of 3" in out
    assert "2.46" in out  # 1 + 0.8 + 0.1 + 0.8 * 0.7
    assert "speedup 2.46" in out
    assert err == ""


def test_json_to_stdout_is_the_contract_s_object_and_nothing_else(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(POOLS, FLAT, "--json", "-") == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert set(data) == {"selected", "expected_tokens", "step_seconds", "speedup"}
    assert data["selected"] == [[0, 1, 2]]
    assert (data["expected_tokens"], data["step_seconds"]) == pytest.approx((2.46, 0.01))
    assert err == ""


def test_candidates_may_come_from_stdin(
    plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(POOLS)))
    assert plan("not used", FLAT, "--candidates", "-", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["selected"] == [[0, 1, 2]]


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_can_be_asked(plan: Plan, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(POOLS, FLAT, "--policy", policy, "--json", "-") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["speedup"] >= 1  # rows are free here
    assert (data["selected"] == [[]]) == (policy == "none")


def test_a_price_changes_the_tree(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    rising = {"verify": [{"batch": 1, "tokens": n, "seconds": 0.01 + 0.002 * n} for n in (1, 4)]}
    sizes = []
    for price in ("1", "200", "600"):
        assert plan(POOLS, rising, "--price", price, "--json", "-") == 0
        sizes.append(len(json.loads(capsys.readouterr().out)["selected"][0]))
    assert sizes == [3, 2, 0]  # a row costs 0.002, 0.4 and 1.2 tokens


def test_a_price_that_the_policy_ignores_is_a_note(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(POOLS, FLAT, "--policy", "chain", "--price", "5") == 0
    assert "chain does not look at it" in capsys.readouterr().err


def test_a_longer_context_is_asked_for(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"batch": 1, "tokens": n, "context": context, "seconds": 0.01 * (1 + context * n / 1000)}
        for n in (1, 4)
        for context in (32, 1056)
    ]
    sizes = []
    for context in ("0", "1024"):
        assert plan(POOLS, {"verify": rows}, "--context", context, "--json", "-") == 0
        sizes.append(len(json.loads(capsys.readouterr().out)["selected"][0]))
    assert sizes[0] > sizes[1]


def test_plain_decoding_is_said_to_be_plain(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    steep = {"verify": [{"batch": 1, "tokens": n, "seconds": 0.01 * n} for n in (1, 4)]}
    assert plan(POOLS, steep) == 0
    out = capsys.readouterr().out
    assert "0 of 3" in out
    assert "speedup 1.00" in out
    assert "plain decoding" in out


def test_a_batch_between_measured_ones_is_a_note(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"batch": b, "tokens": b * n, "seconds": 0.01 * b} for b in (1, 4) for n in (1, 4)]
    assert plan({"requests": POOLS["requests"] * 2}, {"verify": rows}) == 0
    out, err = capsys.readouterr()
    assert "6 of 6" in out
    assert "no batch 2: interpolated between its batches 1, 4" in err


def test_a_measured_profile_of_another_machine_is_welcome(plan: Plan) -> None:
    key = dict.fromkeys(("device", "model", "drafter", "dtype", "attention", "torch", "transformers", "smartree"), "x")
    assert plan(POOLS, FLAT | {"key": key | {"threads": 99}, "fits": {}, "seconds": 9.0}) == 0


# --- what it refuses ---------------------------------------------------------------------------------------------


def pool(parents: list[Any], probabilities: list[Any]) -> dict[str, Any]:
    return {"requests": [{"parents": parents, "probabilities": probabilities}]}


@pytest.mark.parametrize(
    ("candidates", "reason"),
    [
        ("", "line 1"),
        ("{", "line 1"),
        ('{"requests":\n[}', "line 2"),
        ("[" * 100_000, "nested too deeply"),
        ('{"requests": ' + "9" * 5000 + "}", "too many digits"),
        ('{"requests": [{"parents": [-1], "probabilities": [NaN]}]}', "NaN"),
        ('{"requests": [{"parents": [-1], "probabilities": [Infinity]}]}', "Infinity"),
        ('{"requests": [{"parents": [-1], "probabilities": [1e999]}]}', "(0, 1]"),
        ("null", '"requests"'),
        ([], '"requests"'),
        ({}, '"requests"'),
        ({"requests": []}, "at least one request"),
        (pool([], []), "nothing to choose"),
        (pool([0], [0.5]), "before its child"),
        (pool([1, 0], [0.5, 0.5]), "before its child"),
        (pool([2, -1, 1], [0.5, 0.5, 0.5]), "before its child"),
        (pool([-1], [0]), "(0, 1]"),
        (pool([-1], [-0.1]), "(0, 1]"),
        (pool([-1], [1.1]), "(0, 1]"),
        (pool([-1], ["a"]), "number"),
        (pool([-1, 0], [0.5]), "Request 0"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_candidates_that_are_none_are_refused(
    plan: Plan, capsys: pytest.CaptureFixture[str], candidates: Any, reason: str
) -> None:
    assert plan(candidates) == 2
    assert reason in refusal(capsys)


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ("{", "--cost profile.json is not JSON (line 1"),
        ({}, '"verify"'),
        ({"verify": []}, "no verify rows"),
        ({"verify": [{"batch": 1, "tokens": 1}]}, "seconds"),
        ({"verify": [{"batch": 1, "tokens": 1, "seconds": 0}]}, "impossible row"),
        ('{"verify": [{"batch": 1, "tokens": 1, "seconds": NaN}]}', "NaN"),
        ('{"verify": [{"batch": 1, "tokens": 1, "seconds": 1}], "seconds": -Infinity}', "-Infinity"),
        (FLAT | {"draft": {"seconds_per_step": -1}}, "seconds_per_step"),
        ({"verify": [{"batch": b, "tokens": b, "seconds": 1} for b in (4, 8)]}, "covers batches 4, 8, and 1 requests"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_profiles_that_are_none_are_refused(
    plan: Plan, capsys: pytest.CaptureFixture[str], profile: Any, reason: str
) -> None:
    assert plan(POOLS, profile) == 2
    assert reason in refusal(capsys)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--policy", "smartest"], "'smartest' is unknown; choose one of none, smart"),
        (["--policy", ""], "unknown"),
        (["--price", "0"], "price"),
        (["--price", "-3"], "price"),
        (["--price", "nan"], "price"),
        (["--price", "inf"], "price"),
        (["--price", "much"], "price"),
        (["--context", "-1"], "--context is -1"),
        (["--candidates", "nowhere.json"], "--candidates nowhere.json cannot be read: No such file"),
        (["--cost", "nowhere.json"], "--cost nowhere.json cannot be read: No such file"),
        (["--candidates", "."], "--candidates . cannot be read"),
        (["--json", "no/such/folder/plan.json"], "--json no/such/folder/plan.json"),
        (["--policy", "paper", "--cost", "small.json"], "4 or more measured sizes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_cannot_be_used_are_refused(
    plan: Plan, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    Path("small.json").write_text(json.dumps({"verify": FLAT["verify"][:3]}))
    assert plan(POOLS, FLAT, *arguments) == 2
    assert reason in refusal(capsys)


def test_a_file_that_is_no_text_is_refused(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    Path("binary").write_bytes(b"\xff\xfe\x00")
    assert plan(POOLS, FLAT, "--candidates", "binary") == 2
    assert "not UTF-8 text" in refusal(capsys)


def test_both_files_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--cost", "profile.json"]) == 2
    assert "--candidates" in refusal(capsys)


# --- in another engine -------------------------------------------------------------------------------------------


def without_torch(code: str, folder: Path) -> str:
    """What a fresh interpreter prints; fails if it loads torch."""
    code += "\nimport sys\nassert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_planning_and_embedding_load_no_torch(plan: Plan, tmp_path: Path) -> None:
    assert plan() == 0  # writes the files
    arguments = ["plan", "--candidates", "candidates.json", "--cost", "profile.json"]
    out = without_torch(f"from smartree.cli.app import run\nassert run({arguments}) == 0", tmp_path)
    assert "speedup 2.46" in out
    (example,) = blocks("python")
    without_torch(example, tmp_path)


class HostEngine:
    """An engine that knows nothing of smartree but Candidates and packed rows: every node has one child of 0.9."""

    def __init__(self) -> None:
        self.passes: list[PackedTrees] = []

    def propose(self, forest: Forest, frontier: Ints) -> Candidates:
        nothing = np.zeros(len(frontier), np.int64)
        return Candidates(
            frontier, nothing + 7, np.full(len(frontier), 0.9), nothing, nothing - 1, np.zeros(len(frontier))
        )

    def verify(self, rows: PackedTrees) -> int:
        self.passes.append(rows)
        return len(rows.tokens)  # all accepted, and a bonus token in place of each root


def test_the_documented_embedding_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"batch": 2, "tokens": n, "seconds": 0.01} for n in (2, 4, 8, 64)]
    Path("profile.json").write_text(json.dumps({"verify": rows}))
    (example,) = blocks("python")
    space: dict[str, Any] = {}
    exec(compile(example, "docs/plan.md", "exec"), space)
    host = HostEngine()
    for _ in range(3):
        committed = space["step"](host, last_tokens=[1, 2], context=100, tokens_left=[50, 3])
        assert committed == len(host.passes[-1].tokens)
    assert host.passes[-1].sizes.tolist() == [17, 3]  # smart's deepest chain; what the second request can still use
    assert host.passes[-1].tokens[:2].tolist() == [1, 7]
