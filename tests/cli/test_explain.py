"""`smartree explain`: the trees, drawn and as JSON."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from smartree.cli.tree_drawing import draw_step, runs_below, visible_nodes
from smartree.engine.trace import NodeTrace, StepTrace
from tests.cli.conftest import Smartree, read_json

NODE = {"token", "text", "parent", "probability", "path", "verified", "accepted"}


def node(token: int, parent: int, path: float, verified: bool = False, accepted: bool = False) -> NodeTrace:
    return NodeTrace(token, parent, 0.5, path, verified, accepted)


STEP = StepTrace(
    request_id=0,
    root=65,
    nodes=(
        node(66, -1, 0.9, True, True),
        node(67, -1, 0.3, True),
        node(68, 0, 0.8, True, True),
        node(69, 2, 0.5),
        node(70, 2, 0.6),
        node(71, 4, 0.1),
    ),
    tokens=(66, 68, 72),
    price=50.0,
    predicted_seconds=0.02,
)


def drawn(step: StepTrace, limit: int = 24) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(draw_step(step, 3, chr, limit))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_runs_break_where_the_tree_forks() -> None:
    first, second = runs_below(STEP.nodes, set(range(6)), -1)
    assert first.nodes == (0, 2)
    assert [run.nodes for run in first.children] == [(4, 5), (3,)]  # the likelier one first
    assert (second.nodes, second.children) == ((1,), ())


def test_drawing() -> None:
    lines = [line.rstrip() for line in drawn(STEP).splitlines()]
    assert lines == [
        "Step 3: drafted 6, verified 3, accepted 2; commits 'BDH'",
        "price 50.0 tokens/s, predicted 20.0 ms",
        "'A' (last committed token)",
        "├── ✓ 'B'  p 0.50  path 0.90",
        "│   ✓ 'D'  p 0.50  path 0.80",
        "│   ├── · 'F'  p 0.50  path 0.60",
        "│   │   · 'G'  p 0.50  path 0.10",
        "│   └── · 'E'  p 0.50  path 0.50",
        "└── ✗ 'C'  p 0.50  path 0.30",
        "",
    ]


def test_limit_keeps_what_was_verified() -> None:
    assert visible_nodes(STEP.nodes, 1) == {0, 1, 2}
    assert visible_nodes(STEP.nodes, 4) == {0, 1, 2, 4}
    assert "... and 2 more nodes, drafted only" in drawn(STEP, 4)


def test_texts_are_no_markup() -> None:
    step = StepTrace(0, 65, (node(0, -1, 0.5),), (0,), None, float("nan"))
    console = Console(file=io.StringIO(), width=80)
    console.print(draw_step(step, 1, lambda token: "[bold]\n:smile:", 8))
    assert isinstance(console.file, io.StringIO)
    assert "'[bold]\\n:smile:'" in console.file.getvalue()
    assert "price" not in console.file.getvalue()


@pytest.mark.usefixtures("profile_file")
def test_verb(smartree: Smartree, model: str, tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    result = smartree(
        "explain", "abcabcabc", "--model", model, "--drafter", model, "--policy", "eagle2", "--max-tokens", "40",
        "--steps", "2", "--nodes", "3", "--json", str(file),
    )  # fmt: skip
    assert (result.code, result.stderr) == (0, "")
    data = read_json(file)
    rows = data["rows"]
    assert data["header"]["prompt"] == "abcabcabc"
    assert set(rows[0]) == {"step", "root", "root_text", "nodes", "tokens", "text", "price", "predicted_ms"}
    nodes = [drafted for row in rows for drafted in row["nodes"]]
    assert nodes
    assert all(set(drafted) == NODE for drafted in nodes)
    stats = data["header"]["stats"]
    assert [row["step"] for row in rows] == list(range(1, stats["steps"] + 1))
    # Every token but the prompt's own first one comes from a step.
    assert sum(len(row["tokens"]) for row in rows) == stats["tokens"]
    assert sum(drafted["verified"] for drafted in nodes) == stats["verified"]
    assert result.stdout.count("(last committed token)") == min(2, sum(bool(row["nodes"]) for row in rows))
    assert "Legend" in result.stdout
    assert "nothing drafted" in result.stdout or rows[0]["nodes"]
    assert "Steps by number of verified nodes" in result.stdout


@pytest.mark.usefixtures("profile_file")
def test_nothing_to_draw(smartree: Smartree, model: str) -> None:
    result = smartree("explain", "Hello", "--model", model, "--policy", "none", "--max-tokens", "5")
    assert result.code == 0
    assert "nothing drafted" in result.stdout
    assert "(last committed token)" not in result.stdout
