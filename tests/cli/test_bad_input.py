"""Bad input ends in one sentence and exit code 2, whatever it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from smartree.errors import InputError
from tests.cli.conftest import WINDOW, read_json, save_model

Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--top-k", "-1"], "top_k is -1"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--seed", "-1"], "seed is -1"),
        (["--batch", "0"], "batch is 0"),
        (["--max-model-len", "1"], "max_model_len is 1"),
        (["--cache-tokens", "4"], "cache_tokens is 4; it must be at least 16"),
        (["--policy", "smrt"], "Policy 'smrt' is unknown; choose one of none, smart"),
        (["--dtype", "int8"], "dtype 'int8' is unknown"),
        (["--device", "tpu9"], "Device 'tpu9'"),
        (["--limit", "0"], "limit is 0"),
        (["--json", "no/such/folder/out.json"], "folder of --json"),
        (["--json", "."], "is a folder"),
        (["--profile", "no.json"], "no.json cannot be read"),
    ],
)
def test_values(refused: Refused, arguments: list[str], message: str) -> None:
    assert message in refused("generate", "Hi", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--promts", "x"], "--prompts"),
        (["generat"], "generat"),
        (["generate", "--temperature", "warm"], "--temperature"),
        (["generate", "--json"], "--json"),
        (["profile", "extra"], "extra"),
        (["--nope"], "--nope"),
        (["explain", "Hi", "--steps", "0"], "at least 1"),
        (["chat", "--temperature", "-1"], "temperature is -1.0"),
        (["demo", "--max-tokens", "0"], "max_tokens is 0"),
        (["profile", "--batch", "0"], "batch is 0"),
    ],
)
def test_usage(refused: Refused, arguments: list[str], message: str) -> None:
    assert message in refused(*arguments)


def test_folders_that_hold_no_model(refused: Refused, tmp_path: Path) -> None:
    assert "does not exist" in refused("generate", "Hi", "--model", str(tmp_path / "nowhere"))
    assert "holds no config.json" in refused("generate", "Hi", "--model", str(tmp_path))
    (tmp_path / "config.json").write_text("{bad", encoding="utf-8")
    assert str(tmp_path) in refused("generate", "Hi", "--model", str(tmp_path))


def test_unknown_model(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # no network, no waiting for one
    assert "neither a folder here nor reachable" in refused("generate", "Hi", "--model", "no-such-model")


def test_missing_tokenizer(refused: Refused, model: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("tokenizer*", "special*", "chat_template*"))
    command = ["--model", str(folder), "--policy", "none"]
    assert "has no tokenizer" in refused("generate", "Hi", *command)
    assert "has no tokenizer" in refused("explain", "Hi", *command)
    assert "has no chat template" in refused("chat", *command, stdin="Hi\n")


def test_drafter_with_another_vocabulary(refused: Refused, model: str, tmp_path: Path) -> None:
    drafter = save_model(tmp_path / "drafter", tokens_reversed=True)
    message = refused("generate", "Hi", "--model", model, "--drafter", str(drafter), "--policy", "none")
    assert "use a drafter with the target's tokenizer" in message
    assert "does not exist" in refused("generate", "Hi", "--model", model, "--drafter", str(tmp_path / "nowhere"))


@pytest.mark.usefixtures("profile_file")
def test_prompt_longer_than_the_window(refused: Refused, model: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n{{"prompt": "{"a" * WINDOW}"}}\n', encoding="utf-8")
    message = refused("generate", "--model", model, "--prompts", str(file))
    assert f"{file}, line 2: the prompt has {WINDOW + len('[user][assistant]')} tokens" in message
    assert f"the window is {WINDOW}" in message
    assert "the window is 20" in refused("generate", "a" * 30, "--model", model, "--max-model-len", "20")


def test_template_that_refuses(refused: Refused, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", template="{{ raise_exception('no system\nmessages') }}")
    message = refused("generate", "Hi", "--model", str(folder), "--policy", "none")
    assert "chat template refuses the conversation: no system messages" in message


def test_profiles_of_other_setups(refused: Refused, model: str, profile_file: Path, tmp_path: Path) -> None:
    data = read_json(profile_file)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(data | {"key": data["key"] | {"device": "Another CPU"}}), encoding="utf-8")
    message = refused("generate", "Hi", "--model", model, "--profile", str(other))
    assert "device (profile: Another CPU, here: " in message
    message = refused("generate", "Hi", "--model", model, "--profile", str(profile_file), "--dtype", "bfloat16")
    assert "dtype (profile: float32, here: bfloat16)" in message
    for text in ("{bad", "[]", '{"verify": []}', '{"verify": [1]}'):
        other.write_text(text, encoding="utf-8")
        assert "profile" in refused("generate", "Hi", "--model", model, "--profile", str(other))


def test_missing_engine(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(settings: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("smartree.cli.generate.load_llm", load)
    assert 'pip install "smartree[engine]"' in refused("generate", "Hi")


def test_message_of_many_lines_is_one_line(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(settings: object) -> None:
        raise InputError("one\ntwo\r\n  three")

    monkeypatch.setattr("smartree.cli.generate.load_llm", load)
    assert refused("generate", "Hi") == "smartree: one two three\n"
