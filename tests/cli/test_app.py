"""The program itself: help without torch, version, interruptions, pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from smartree import __version__
from smartree.cli.app import run
from tests.cli.conftest import Smartree

VERBS = ["demo", "profile", "generate", "chat", "explain", "plan", "simulate", "bench", "train"]
PROGRAM = [sys.executable, "-c", "from smartree.cli.app import main; main()"]


@pytest.mark.parametrize("arguments", [[], ["--help"], *([verb, "--help"] for verb in VERBS)])
def test_help(smartree: Smartree, arguments: list[str]) -> None:
    result = smartree(*arguments)
    assert (result.code, result.stderr) == (0, "")
    assert "Usage: smartree" in result.stdout


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom smartree.cli.app import run\n"
        f"assert all(run([verb, '--help']) == 0 for verb in {VERBS!r})\nassert run([]) == 0\n"
        "print([name for name in ('torch', 'transformers', 'scipy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_version(smartree: Smartree) -> None:
    assert smartree("--version").stdout == f"smartree {__version__}\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EOFError()])
def test_interruption(error: BaseException, smartree: Smartree, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(settings: object) -> None:
        raise error

    monkeypatch.setattr("smartree.cli.generate.load_llm", load)
    result = smartree("generate", "Hi")
    assert (result.code, result.stderr.strip()) == (130, "smartree: interrupted")


def test_full_disk_is_one_sentence(smartree: Smartree, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(settings: object) -> None:
        raise OSError(28, "No space left on device", "out.json")

    monkeypatch.setattr("smartree.cli.generate.load_llm", load)
    result = smartree("generate", "Hi")
    assert (result.code, result.stderr) == (1, "smartree: out.json: No space left on device.\n")


def test_own_faults_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(settings: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("smartree.cli.generate.load_llm", load)
    with pytest.raises(ZeroDivisionError):
        run(["generate", "Hi"])


def test_broken_pipe_is_silent() -> None:
    program = subprocess.Popen([*PROGRAM, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.close()  # before anything is written
    _, stderr = program.communicate(timeout=30)
    assert stderr == b""


@pytest.mark.usefixtures("profile_file")
def test_ctrl_c_of_a_running_program(model: str) -> None:
    arguments = ["chat", "--model", model, "--policy", "none"]
    program = subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # threads that wait for each other are slow on a busy machine
        # A test run in the background of a shell ignores Ctrl-C, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert program.stderr is not None
    assert any("/quit" in line for line in iter(program.stderr.readline, ""))  # loaded, and waiting for a message
    time.sleep(0.1)
    program.send_signal(signal.SIGINT)
    _, stderr = program.communicate(timeout=30)
    assert (program.returncode, stderr) == (130, "smartree: interrupted\n")
