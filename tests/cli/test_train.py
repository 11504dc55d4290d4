"""`smartree train` on the tiny model: a head comes out, an interruption goes on, bad input gets a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Smartree, read_json

SETTINGS = [
    "--tokens", "120", "--max-tokens", "12", "--batch", "4", "--epochs", "2", "--warm-epochs", "1", "--unrolled", "2",
    "--batch-tokens", "128", "--draft-vocab", "40", "--dtype", "float32",
]  # fmt: skip


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = [json.dumps({"question": f"q{number} " * 3}) for number in range(8)]
    (tmp_path / "questions.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path / "questions.jsonl"


def test_verb(smartree: Smartree, model: str, prompts: Path, tmp_path: Path) -> None:
    head, file = tmp_path / "head", tmp_path / "out.json"
    command = ["train", str(head), "--model", model, "--prompts", str(prompts), *SETTINGS]
    result = smartree(*command, "--json", str(file))
    assert result.code == 0, result.stderr
    assert "tau on held-out prompts" in result.stdout
    data = read_json(file)
    assert data["header"]["answer_tokens"] >= 100
    assert data["header"]["tau"] >= 1
    assert len(data["rows"][-1]["accuracy"]) == 2
    config = read_json(head / "config.json")
    assert config["training"]["tau"] == data["header"]["tau"]
    assert config["borrowed"] == ["embed_tokens", "lm_head"]
    assert {path.name for path in head.iterdir()} == {"calibration.json", "config.json", "model.safetensors"}
    used = smartree(
        "generate", "q1 q1", "--model", model, "--drafter", str(head), "--policy", "eagle2", "--dtype", "float32",
        "--max-tokens", "8",
    )  # fmt: skip
    plain = smartree(
        "generate", "q1 q1", "--model", model, "--policy", "none", "--dtype", "float32", "--max-tokens", "8"
    )
    assert used.code == 0, used.stderr
    assert used.stdout.splitlines()[1] == plain.stdout.splitlines()[1]


def test_the_same_command_goes_on_where_it_was(
    smartree: Smartree, model: str, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", str(tmp_path / "head"), "--model", model, "--prompts", str(prompts), *SETTINGS]

    def interrupted(*arguments: object) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("smartree.train.run.held_out_tau", interrupted)
        assert smartree(*command).code == 130
    texts = (tmp_path / "head.work" / "corpus.jsonl").read_text(encoding="utf-8")
    weights = (tmp_path / "head" / "model.safetensors").read_bytes()
    assert smartree(*command).code == 0
    assert (tmp_path / "head.work" / "corpus.jsonl").read_text(encoding="utf-8") == texts
    assert (tmp_path / "head" / "model.safetensors").read_bytes() == weights


def test_other_settings_need_another_folder(smartree: Smartree, model: str, prompts: Path, tmp_path: Path) -> None:
    command = ["train", str(tmp_path / "head"), "--model", model, "--prompts", str(prompts), *SETTINGS]
    assert smartree(*command).code == 0
    other = smartree(*command, "--learning-rate", "0.5")
    assert other.code == 2
    assert "learning_rate" in other.stderr.splitlines()[-1]
    assert "Traceback" not in other.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--no-own-prompts"], "no prompts"),
        (["--tokens", "0"], "tokens is 0"),
        (["--temperatures", "0,hot"], "temperatures is '0,hot'"),
        (["--temperatures", "-1"], "none may be negative"),
        (["--epochs", "0"], "epochs is 0"),
        (["--learning-rate", "0"], "learning_rate is 0"),
        (["--cache-gb", "-1"], "cache-gb is -1"),
        (["--prompts", "missing.jsonl"], "missing.jsonl cannot be read"),
        (["--drafter", "x"], "--drafter"),
    ],
)
def test_bad_input(refused: Callable[..., str], model: str, tmp_path: Path, arguments: list[str], part: str) -> None:
    assert part in refused("train", str(tmp_path / "head"), "--model", model, *arguments)
