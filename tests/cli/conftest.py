"""A tiny random model with a tokenizer and a chat template in a folder, a profile of it, and the program in process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from smartree.cli.app import run

WINDOW = 160
TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """On a new machine the kernels are compiled, and say so, when a bfloat16 model is first loaded: not in a test."""
    from smartree.models.native.library import why_not

    why_not()


@dataclass(frozen=True)
class Finished:
    """What a command printed and how it ended."""

    code: int
    stdout: str
    stderr: str


Smartree = Callable[..., Finished]


def start(arguments: Sequence[str], stdin: bytes | str | None, capture: pytest.CaptureFixture[str]) -> Finished:
    """Runs the program in this process, as its entry point does."""
    content = stdin.encode() if isinstance(stdin, str) else stdin or b""
    old = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="surrogateescape")
    capture.readouterr()
    try:
        code = run([str(argument) for argument in arguments])
    finally:
        sys.stdin = old
    printed = capture.readouterr()
    return Finished(code, printed.out, printed.err)


@pytest.fixture
def smartree(capsys: pytest.CaptureFixture[str]) -> Smartree:
    """Runs the program in this process: `smartree("generate", "Hi", stdin=b"")`."""
    return lambda *arguments, stdin=None: start(arguments, stdin, capsys)


@pytest.fixture
def refused(smartree: Smartree) -> Callable[..., str]:
    """Runs the program, checks that it ends with code 2 and one line on stderr, and returns that line."""

    def check(*arguments: str, stdin: bytes | str | None = None) -> str:
        result = smartree(*arguments, stdin=stdin)
        assert result.code == 2, result
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.startswith("smartree: ")
        assert "Traceback" not in result.stderr
        return result.stderr

    return check


def save_model(folder: Path, *, seed: int = 0, tokens_reversed: bool = False, template: str | None = TEMPLATE) -> Path:
    """A tiny random LLaMA and a tokenizer of one token per character, as a folder."""
    import torch

    from tests.tiny import CHARACTERS, character_tokenizer, tiny_model

    model = tiny_model("llama", seed=seed, window=WINDOW, eos=1, dtype=torch.float32)
    tokenizer = character_tokenizer(order=CHARACTERS[::-1] if tokens_reversed else CHARACTERS)
    tokenizer.chat_template = template
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="session")
def model(session_folder: Path) -> str:
    """The folder of the model."""
    return str(save_model(session_folder / "model"))


@pytest.fixture(scope="session")
def profile_file(session_folder: Path, model: str) -> Path:
    """The profile of the model on this machine, measured by the program once and left in the session's cache too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMARTREE_CACHE", str(session_folder / "cache"))
        patch.setattr("smartree.engine.measure._BUDGET_SECONDS", 0.5)
        one_thread()
        file = session_folder / "profile.json"
        assert run(["profile", "--model", model, "--json", str(file)]) == 0
    return file


def one_thread() -> None:
    """The number of threads is part of a profile's key; tests run with one (see the fixture of all tests)."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _cache(session_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's cache folder in place of the user's; one thread, as when the profile was measured."""
    monkeypatch.setenv("SMARTREE_CACHE", str(session_folder / "cache"))
    if "torch" in sys.modules:
        one_thread()


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
