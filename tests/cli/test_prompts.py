"""Every way to give prompts, and every way to give them wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smartree.cli.prompts import gather_prompts, of_text, parse_row, read_prompts
from smartree.errors import InputError
from tests.cli.conftest import start


def row(**fields: Any) -> str:
    return json.dumps(fields)


class FakeLLM:
    """Texts as lists of character codes; a window of 40."""

    window = 40

    def __init__(self, template: str | None = "yes") -> None:
        self.target = SimpleNamespace(tokenizer=self)
        self.chat_template = template

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [0] * add_special_tokens + [ord(letter) for letter in text]}

    def encode(self, text: str) -> list[int]:
        return self(text)["input_ids"]

    def apply_chat_template(self, messages: Any) -> str:
        if self.chat_template is None:
            raise InputError("no chat template")
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)


def text(tokens: list[int]) -> str:
    return "".join(chr(token) for token in tokens)


@pytest.mark.parametrize(
    ("line", "prompt", "sent", "name"),
    [
        (row(prompt="Hi"), "Hi", "<user>Hi", None),
        (row(prompt=""), "", "<user>", None),
        (row(id="a", prompt="Hi"), "Hi", "<user>Hi", "a"),
        (row(question_id=81, turns=["One", "Two"]), "One", "<user>One", "81"),
        (row(question="1+1?", answer="2"), "1+1?", "<user>1+1?", None),
        (
            row(instruction="Sort.", instances=[{"input": "b a", "output": "a b"}]),
            "Sort.\n\nb a",
            "<user>Sort.\n\nb a",
            None,
        ),
        (row(instruction="Joke.", instances=[{"input": ""}]), "Joke.", "<user>Joke.", None),
        (row(messages=[{"role": "user", "content": "Hi"}]), "Hi", "<user>Hi", None),
        (
            row(messages=[{"role": "system", "content": "S"}, {"role": "user", "content": "U", "name": "x"}]),
            "U",
            "<system>S<user>U",
            None,
        ),
    ],
)
def test_rows(line: str, prompt: str, sent: str, name: str | None) -> None:
    parsed = parse_row(line, "f, line 1")
    assert (parsed.text, parsed.id) == (prompt, name)
    assert text(parsed.encode(FakeLLM())) == sent  # type: ignore[arg-type]


def test_humaneval_gets_an_instruction_as_chat_only() -> None:
    parsed = parse_row(row(task_id="HumanEval/0", prompt="def f():", entry_point="f"), "f, line 1")
    llm: Any = FakeLLM()
    llm.window = 100
    assert (parsed.text, parsed.id) == ("def f():", "HumanEval/0")
    assert text(parsed.encode(llm)) == "<user>Complete this Python function:\n\ndef f():"
    assert text(parsed.encode(llm, raw=True)) == "\0def f():"


def test_without_a_template_texts_go_as_they_are() -> None:
    llm: Any = FakeLLM(template=None)
    assert text(of_text("Hi", "prompt 1").encode(llm)) == "\0Hi"
    with pytest.raises(InputError, match="no chat template"):
        parse_row(row(messages=[{"role": "user", "content": "Hi"}]), "f, line 1").encode(llm)


def test_raw_conversation_is_refused() -> None:
    llm: Any = FakeLLM()
    with pytest.raises(InputError, match=r"f, line 3.*--raw"):
        parse_row(row(messages=[{"role": "user", "content": "Hi"}]), "f, line 3").encode(llm, raw=True)


def test_long_prompt_is_named() -> None:
    llm: Any = FakeLLM()
    with pytest.raises(InputError, match="f, line 7: the prompt has 46 tokens, but the window is 40"):
        parse_row(row(prompt="x" * 40), "f, line 7").encode(llm)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{bad", "not valid JSON"),
        ('{"prompt": "a"} x', "not valid JSON"),
        ("[1]", "not a JSON object but a list"),
        ('"text"', "not a JSON object but a string"),
        ("3", "not a JSON object but a number"),
        ("null", "not a JSON object but null"),
        ("{}", "none of the fields prompt, messages, turns, question or instruction"),
        (row(text="Hi"), "none of the fields"),
        (row(prompt=3), "prompt must be a string, not a number"),
        (row(prompt=["a"]), "prompt must be a string, not a list"),
        (row(question=None), "question must be a string, not null"),
        (row(instruction=3), "instruction and input must be strings"),
        (row(turns=[]), "turns must be a list of strings"),
        (row(turns="Hi"), "turns must be a list of strings"),
        (row(turns=[1]), "turns must be a list of strings"),
        (row(messages=[]), "messages must be a list"),
        (row(messages="Hi"), "messages must be a list"),
        (row(messages=["Hi"]), "every message needs role and content"),
        (row(messages=[{"role": "user"}]), "every message needs role and content"),
        (row(messages=[{"role": "user", "content": 1}]), "every message needs role and content"),
        ('{"prompt": "\\ud800"}', "not UTF-8"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_rows_name_file_and_line(line: str, message: str) -> None:
    with pytest.raises(InputError, match=f"prompts.jsonl, line 5: .*{message}") as caught:
        parse_row(line, "prompts.jsonl, line 5")
    assert "\n" not in str(caught.value)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    # A byte order mark, blank lines, a Windows line end, and a line separator inside a text.
    file.write_bytes('\ufeff{"prompt": "a"}\r\n\n  \n{"prompt": "b\u2028c"}\n'.encode())
    assert [prompt.text for prompt in read_prompts(str(file))] == ["a", "b\u2028c"]
    assert [prompt.where for prompt in read_prompts(str(file))] == [f"{file}, line 1", f"{file}, line 4"]
    assert len(gather_prompts([], str(file), limit=1)) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no prompts"),
        (b"\n \n", "holds no prompts"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', "line 2: not UTF-8"),
        (b'{"prompt": "a"}\n\n{"prompt": 1}\n', "line 3: prompt must be a string"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_prompts(str(file))
    assert str(file) in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nope\.jsonl cannot be read: No such file"):
        read_prompts(str(tmp_path / "nope.jsonl"))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_prompts(str(tmp_path))
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts("a\0b")


def test_arguments() -> None:
    given = gather_prompts(["One", "Two"], None)
    assert [(prompt.text, prompt.where) for prompt in given] == [("One", "prompt 1"), ("Two", "prompt 2")]
    with pytest.raises(InputError, match="prompt 2: not UTF-8"):
        gather_prompts(["One", "\udcff"], None)  # how Python shows a byte that is no text
    with pytest.raises(InputError, match="one or the other"):
        gather_prompts(["One"], "prompts.jsonl")
    with pytest.raises(InputError, match="limit is 0"):
        gather_prompts(["One"], None, limit=0)


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["generate"], b"", "There is no prompt"),
        (["generate"], b" \n", "There is no prompt"),
        (["generate"], b"\xff\n", "stdin, line 1: not UTF-8"),
        (["generate", "--prompts", "-"], b"", "stdin holds no prompts"),
        (["generate", "--prompts", "-"], b'{"prompt": "a"}\n{', "stdin, line 2: not valid JSON"),
        (["explain"], b"", "There is no prompt"),
    ],
)
def test_stdin_is_checked_before_a_model_is_loaded(
    arguments: list[str], stdin: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = start([*arguments, "--model", "/nowhere"], stdin, capsys)
    assert result.code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
