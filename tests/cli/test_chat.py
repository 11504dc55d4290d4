"""`smartree chat` with piped messages, and the conversation it keeps."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from smartree.cli.chat import Conversation
from smartree.errors import InputError
from smartree.sampling_params import SamplingParams
from tests.cli.conftest import WINDOW, Smartree

pytestmark = pytest.mark.usefixtures("profile_file")


@pytest.fixture
def llm(model: str) -> Any:
    from smartree.engine.llm import LLM

    return LLM(model, policy="none", max_batch=1)


def test_answers_are_what_generate_gives(smartree: Smartree, model: str) -> None:
    common = ["--model", model, "--max-tokens", "6"]
    result = smartree("chat", *common, stdin="Hello\n\n/reset\nHello\n/quit\nnever\n")
    assert result.code == 0
    expected = json.loads(smartree("generate", "Hello", *common, "--json", "-").stdout)["rows"][0]["text"]
    assert result.stdout == f"{expected}\n{expected}\n"
    assert result.stderr.count("tokens/s") == 2
    assert "starts anew" in result.stderr


def test_unknown_command_is_no_message(smartree: Smartree, model: str) -> None:
    result = smartree("chat", "--model", model, stdin="/exit now\n")
    assert (result.code, result.stdout) == (0, "")
    assert "/exit is unknown" in result.stderr


def test_system_message_comes_first(llm: Any) -> None:
    conversation = Conversation(llm, SamplingParams(max_tokens=4), "Be kind")
    assert llm.target.tokenizer.decode(conversation.ask("Hi")) == "[system]Be kind[user]Hi[assistant]"


def test_oldest_turns_are_dropped(llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(llm, SamplingParams(max_tokens=40), None)
    for _ in range(6):
        tokens = conversation.ask("a" * 30)
        assert len(tokens) + 40 <= WINDOW
        "".join(conversation.answer(tokens))
        assert conversation.turns[0]["role"] == "user"
    assert "oldest turn was dropped" in capsys.readouterr().err
    with pytest.raises(InputError, match="the window is 160; shorten it"):
        conversation.ask("a" * WINDOW)
    assert conversation.turns[-1]["role"] == "assistant"  # the long message is forgotten


def test_too_long_message_from_a_pipe(smartree: Smartree, model: str) -> None:
    result = smartree("chat", "--model", model, stdin="a" * WINDOW + "\n")
    assert result.code == 2
    assert result.stderr.splitlines()[-1].startswith("smartree: The message makes a prompt of")


def test_message_that_is_no_text(smartree: Smartree, model: str) -> None:
    result = smartree("chat", "--model", model, "--max-tokens", "2", stdin=b"Hi\n\xff\n")
    assert result.code == 2
    assert result.stderr.splitlines()[-1] == "smartree: stdin, line 2: not UTF-8 text."


def test_ctrl_c_stops_the_answer_only(smartree: Smartree, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from smartree.engine.llm import LLM

    stream = LLM.stream

    def interrupted(self: LLM, *arguments: Any) -> Any:
        for number, piece in enumerate(stream(self, *arguments)):
            if number == 2:
                os.kill(os.getpid(), signal.SIGINT)
            yield piece

    monkeypatch.setattr(LLM, "stream", interrupted)
    # A test run in the background of a shell ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = smartree("chat", "--model", model, "--max-tokens", "30", "--policy", "none", stdin="Hello\nAgain\n")
    finally:
        after = signal.signal(signal.SIGINT, before)
    assert result.code == 0
    answers = result.stdout.splitlines()
    assert [len(answer) for answer in answers] == [3, 3]
    assert result.stderr.count("stopped") == 2
    assert after is signal.default_int_handler
