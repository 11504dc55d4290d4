"""`smartree generate`: outputs, JSON, and where each goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smartree.cli.loading import load_llm
from smartree.config import EngineConfig
from smartree.engine.llm import LLM
from tests.cli.conftest import Smartree, read_json

pytestmark = pytest.mark.usefixtures("profile_file")
ROW = {"prompt", "token_ids", "text", "finish_reason", "stats", "seed", "prompt_token_ids"}


def test_json_and_output(smartree: Smartree, model: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = smartree("generate", "abcabc", "Hello", "--model", model, "--max-tokens", "12", "--json", str(file))
    assert result.code == 0
    data = read_json(file)
    assert list(data) == ["header", "rows"]
    header, rows = data["header"], data["rows"]
    assert header["model"] == model
    assert (header["drafter"], header["policy"], header["dtype"], header["device"]) == (
        "ngram",
        "smart",
        "float32",
        "cpu",
    )
    assert set(header["versions"]) == {"smartree", "python", "torch", "transformers"}
    assert header["tokens"] == sum(len(row["token_ids"]) for row in rows)
    assert header["tokens_per_second"] == pytest.approx(header["tokens"] / header["seconds"])
    assert header["chat_template"] is True
    assert [row["prompt"] for row in rows] == ["abcabc", "Hello"]
    for row in rows:
        assert set(row) == ROW
        assert row["finish_reason"] in ("stop", "length")
        assert row["stats"]["tokens"] == len(row["token_ids"]) - 1
        assert row["text"].strip() in result.stdout
    assert "> abcabc" in result.stdout
    assert "tokens/s, tau" in result.stderr
    assert result.stderr.count("\n") == 1


def test_json_to_stdout_and_nothing_else(smartree: Smartree, model: str) -> None:
    result = smartree("generate", "Hello", "--model", model, "--max-tokens", "4", "--json", "-")
    assert len(json.loads(result.stdout)["rows"]) == 1


@pytest.mark.parametrize(
    ("flags", "cache_tokens", "prefix_reuse"),
    [([], None, True), (["--cache-tokens", "64", "--no-prefix-reuse"], 64, False)],
)
def test_the_cache_can_be_bounded(
    smartree: Smartree,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    cache_tokens: int | None,
    prefix_reuse: bool,
) -> None:
    seen: list[LLM] = []

    def load(settings: EngineConfig) -> LLM:
        seen.append(load_llm(settings))
        return seen[-1]

    monkeypatch.setattr("smartree.cli.generate.load_llm", load)
    result = smartree("generate", "Hello", "--model", model, "--max-tokens", "4", *flags)
    assert result.code == 0
    (llm,) = seen
    assert llm.config.prefix_reuse == prefix_reuse
    assert (llm.engine.budget.rows == 64) == (cache_tokens == 64)


def test_policies_agree_and_seeds_repeat(smartree: Smartree, model: str) -> None:
    outputs = []
    for policy in ("none", "smart", "smart"):
        sampling = ["--temperature", "1", "--top-k", "20", "--top-p", "0.95", "--seed", "3"]
        result = smartree(
            "generate", "Hello", "--model", model, "--policy", policy, "--max-tokens", "24", "--json", "-", *sampling
        )
        outputs.append(json.loads(result.stdout)["rows"][0]["token_ids"])
    assert outputs[0] == outputs[1] == outputs[2]


def test_batch_and_raw_prompts(smartree: Smartree, model: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": "abc"},
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]},
        {"question_id": 7, "turns": ["first", "second"]},
        {"question": "why", "answer": "so"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    command = ["generate", "--model", model, "--prompts", str(file), "--max-tokens", "3", "--json", "-"]
    together = json.loads(smartree(*command).stdout)["rows"]
    assert [row["prompt"] for row in together] == ["abc", "U", "first", "why"]
    assert together[2]["id"] == "7"
    alone = json.loads(smartree(*command, "--batch", "1", "--limit", "2").stdout)["rows"]
    assert [row["token_ids"] for row in alone] == [row["token_ids"] for row in together[:2]]
    # The template writes everything itself, while a raw text gets what the tokenizer adds.
    assert len(together[0]["prompt_token_ids"]) == len("[user]abc[assistant]")
    raw = json.loads(smartree(*command, "--raw", "--limit", "1").stdout)
    assert raw["header"]["chat_template"] is False
    assert len(raw["rows"][0]["prompt_token_ids"]) == 3


def test_stdin_is_one_prompt(smartree: Smartree, model: str) -> None:
    result = smartree("generate", "--model", model, "--max-tokens", "2", "--json", "-", stdin="two lines\nof text\n")
    assert [row["prompt"] for row in json.loads(result.stdout)["rows"]] == ["two lines\nof text"]


def test_json_is_replaced_in_one_go(smartree: Smartree, model: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    file.write_text("old")
    file.chmod(0o640)
    smartree("generate", "Hello", "--model", model, "--max-tokens", "2", "--json", str(file))
    assert len(read_json(file)["rows"]) == 1
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    assert smartree("generate", "Hello", "--model", model, "--max-tokens", "2", "--json", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()
