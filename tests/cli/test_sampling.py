"""`smartree generate` with penalties, several outputs, log-probabilities and guides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.byte_tokenizer import BYTES_VOCAB, END, byte_tokenizer
from tests.cli.conftest import Smartree
from tests.tiny import tiny_model

PLAIN = ["--policy", "none", "--drafter", "none", "--max-tokens", "12", "--json", "-"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose tokens are bytes, which guides can read."""
    made = tmp_path_factory.mktemp("bytes")
    tiny_model(vocab=BYTES_VOCAB, eos=END, dtype=torch.float32).save_pretrained(made)
    byte_tokenizer().save_pretrained(made)
    return str(made)


def decoded(smartree: Smartree, folder: str, *arguments: str) -> Any:
    result = smartree("generate", "Hello", "--model", folder, *PLAIN, *arguments)
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)


def test_several_outputs_are_rows_of_their_own(smartree: Smartree, folder: str) -> None:
    data = decoded(smartree, folder, "--n", "3", "--temperature", "1", "--seed", "4")
    assert [(row["prompt"], row["output"]) for row in data["rows"]] == [("Hello", number) for number in range(3)]
    assert len({tuple(row["token_ids"]) for row in data["rows"]}) == 3
    assert data["header"]["tokens"] == sum(len(row["token_ids"]) for row in data["rows"])
    (single,) = decoded(smartree, folder, "--temperature", "1", "--seed", "4")["rows"]
    assert single["token_ids"] == data["rows"][0]["token_ids"]
    assert "output" not in single


def test_logprobs_stand_in_the_rows_if_asked_for(smartree: Smartree, folder: str) -> None:
    (row,) = decoded(smartree, folder, "--logprobs", "2")["rows"]
    assert [one["token_id"] for one in row["logprobs"]] == row["token_ids"]
    for one in row["logprobs"]:
        assert set(one) == {"token_id", "text", "logprob", "top"}
        assert one["top"][0] == {name: one[name] for name in ("token_id", "text", "logprob")}  # the likeliest one
        assert len(one["top"]) == 2
    assert "logprobs" not in decoded(smartree, folder)["rows"][0]


def test_the_header_names_what_was_set(smartree: Smartree, folder: str) -> None:
    given = {
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "min_tokens": 3,
    }
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    sampling = decoded(smartree, folder, *options)["header"]["sampling"]
    assert {name: sampling[name] for name in given} == given
    usual = decoded(smartree, folder)["header"]["sampling"]
    assert set(usual) == {"max_tokens", "temperature", "top_k", "top_p", "seed"}


def test_guides(smartree: Smartree, folder: str, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"enum": [12, True]}), encoding="utf-8")
    for arguments, texts in (
        (["--choice", "yes", "--choice", "no"], {"yes", "no"}),
        (["--regex", "[ab]"], {"a", "b"}),
        (["--json-schema", str(schema)], {"12", "true"}),
    ):
        (row,) = decoded(smartree, folder, *arguments)["rows"]
        assert row["text"] in texts
        assert row["finish_reason"] == "stop"


def test_bad_guides_are_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    assert "cannot be read: No such file" in refused("generate", "x", "--json-schema", str(tmp_path / "none.json"))
    assert "is not JSON" in refused("generate", "x", "--json-schema", str(broken))
    assert "give exactly one" in refused("generate", "x", "--regex", "a", "--choice", "b")
    assert "min_p is 2.0" in refused("generate", "x", "--min-p", "2")
