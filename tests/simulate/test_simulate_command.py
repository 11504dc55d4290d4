"""`smartree simulate` as a user types it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from smartree.cli.simulate import simulate
from smartree.errors import InputError

app = typer.Typer()
app.command()(simulate)
QUICK = ["--device", "l40s", "--model", "llava-1.5-7b", "--batch", "1,8", "--policies", "none,eagle2", "--steps", "5"]


def invoke(*arguments: str) -> str:
    """Runs the command; what it raises comes through."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_table_for_people() -> None:
    table = invoke(*QUICK)
    for word in ("llava-1.5-7b on l40s", "batch 1", "batch 8", "none", "eagle2"):
        assert word in " ".join(table.split())


def test_json_alone_on_stdout() -> None:
    data = json.loads(invoke(*QUICK, "--json", "-"))
    assert [(row["batch"], row["policy"]) for row in data["rows"]] == [
        (1, "none"),
        (1, "eagle2"),
        (8, "none"),
        (8, "eagle2"),
    ]
    assert data["header"]["overheads"]["tile_rows"] == 64


def test_pictures_small_enough_for_a_readme(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "new" / "plots"
    invoke(*QUICK, "--plot", str(folder), "--json", str(tmp_path / "rows.json"))
    pictures = sorted(path.name for path in folder.iterdir())
    assert pictures == ["bend-llava-1.5-7b.png", "size-l40s-llava-1.5-7b.png", "speedup-l40s-llava-1.5-7b.png"]
    for path in folder.iterdir():
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert 5_000 < len(content) < 200_000
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "Device 'tpu' is unknown; choose one of rtx-pro-6000"),
        (["--device", "nowhere.json"], "nowhere.json cannot be read"),
        (["--model", "gpt"], "Model 'gpt' is unknown; choose one of llama"),
        (["--policies", "none,best"], "Policy best: choose from none"),
        (["--policies", ","], "choose from none"),
        (["--batch", "0"], "whole numbers from 1"),
        (["--batch", "1,x"], "--batch 1,x is no list of whole numbers"),
        (["--batch", "1.5"], "is no list of whole numbers"),
        (["--steps", "0"], "steps of at least 1"),
        (["--seed", "-1", "--batch", "1"], "seed"),
        (["--acceptance", "magic"], "neither a preset"),
        (["--acceptance", "nowhere.jsonl"], "cannot be read"),
        (["--device", "l40s", "--model", "llama-3.3-70b-tp2"], "does not fit into memory"),
        (["--json", "/nowhere/rows.json"], "does not exist"),
    ],
)
def test_bad_input_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        invoke(*arguments)


def test_without_matplotlib_pictures_are_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install .*smartree\[plot\]"):
        invoke(*QUICK, "--plot", str(tmp_path))
