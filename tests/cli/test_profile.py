"""`smartree profile`: what is measured, printed and saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from smartree.cli.curves import bend, bend_sentence, measured_table
from smartree.cost.profile import Profile
from smartree.cost.table import CostPoint
from tests.cli.conftest import Smartree, read_json


def points(seconds: dict[int, float], batch: int = 1, context: int = 256) -> list[CostPoint]:
    return [CostPoint(batch, tokens, context, value) for tokens, value in seconds.items()]


def test_bend_lies_between_measured_sizes() -> None:
    assert bend(points({1: 1.0, 8: 1.0, 16: 2.0})) == 12
    assert bend(points({1: 1.0, 2: 1.6, 3: 1.2, 4: 3.0})) == pytest.approx(1 + 0.5 / 0.6)
    assert bend(points({1: 1.0, 8: 1.2})) is None


def test_sentence_names_every_batch() -> None:
    known = points({1: 1.0, 8: 1.0, 16: 2.0}) + points({2: 1.0, 16: 1.1}, batch=2) + points({1: 9.0}, context=1024)
    assert bend_sentence(Profile(None, tuple(known))) == (
        "A pass costs 1.5 times the plain step at 12 tokens for batch 1; beyond 16 tokens for batch 2."
    )


def test_table_has_every_plain_step_and_fits_the_page() -> None:
    known = [point for batch in range(1, 9) for point in points({batch * n: 0.02 for n in range(1, 65)}, batch)]
    table = measured_table(Profile(None, tuple(known)))
    headers = [str(column.header) for column in table.columns]
    assert headers[:9] == ["batch", *(str(batch) for batch in range(1, 9))]
    assert len(headers) <= 12
    assert table.row_count == 8


def test_verb(smartree: Smartree, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMARTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("smartree.engine.measure._BUDGET_SECONDS", 0.1)
    file = tmp_path / "profile.json"
    result = smartree("profile", "--model", model, "--batch", "2", "--json", str(file))
    assert result.code == 0
    data = read_json(file)
    assert {"key", "autoregressive", "verify", "draft", "fits"} <= set(data)
    assert {row["batch"] for row in data["autoregressive"]} == {1, 2}
    assert set(data["verify"][0]) == {"batch", "tokens", "context", "seconds"}
    assert data["key"]["dtype"] == "float32"
    [saved] = (tmp_path / "cache" / "profiles").glob("*.json")
    assert read_json(saved) == data
    assert "1.5 times the plain step" in result.stdout
    assert "residual" in result.stdout
    assert str(saved) in result.stderr
    assert max(len(line) for line in result.stdout.splitlines() if "at batch" not in line.lower()) <= 100
    assert smartree("generate", "Hi", "--model", model, "--profile", str(file), "--max-tokens", "2").code == 0


def test_measured_on_demand_and_said_so(
    smartree: Smartree, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMARTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("smartree.engine.measure._BUDGET_SECONDS", 0.1)
    command = ["generate", "Hi", "--model", model, "--batch", "1", "--max-tokens", "2"]
    assert smartree(*command).stderr.splitlines()[0] == "Measuring this machine once (about 12 s) ..."
    assert "Measuring" not in smartree(*command).stderr


def test_draft_model_has_levels(
    smartree: Smartree, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMARTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("smartree.engine.measure._BUDGET_SECONDS", 0.1)
    result = smartree("profile", "--model", model, "--drafter", model, "--batch", "1")
    assert result.code == 0
    assert "Draft levels" in result.stdout
