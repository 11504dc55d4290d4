"""What a worker and the driver say to each other: JSON lines, the worker's own output kept apart from them.

    driver: starts `python -m benchmarks.peers.NAME_worker SETTINGS`
    worker: {"ready": {"engine": ..., versions and settings}}
    driver: {"prompts": [[token ids]], "batch": 4, "max_tokens": 96}
    worker: {"tokens": [[token ids]], "seconds": 1.5, "step_ms": 12.1, "steps": 96}     or {"error": "one sentence"}
    driver: closes the pipe, and the worker ends

Workers run in the environments of the engines, so this file needs Python and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How an engine is to be set up.

    Attributes:
        speculation: the engine's own speculation, else plain decoding.
        model: folder of the model as bfloat16 safetensors.
        gguf_folder: folder of its GGUF files (`make_gguf.py`); None where nothing needs them.
        program: of an engine that is no Python package; None of all others.
        threads: to compute with.
        window: longest prompt plus output.
        max_batch: most prompts decoded together.
        compiled: compile the model first, where the engine can.
    """

    speculation: bool
    model: str
    gguf_folder: str | None
    program: str | None
    threads: int
    window: int
    max_batch: int
    compiled: bool = False

    def __post_init__(self) -> None:
        if min(self.threads, self.window, self.max_batch) < 1:
            raise ValueError(f"threads, window and max_batch must be at least 1, not {self}.")

    def gguf(self, name: str) -> str:
        """Path of one of the GGUF files.

        Raises:
            ValueError: there is none.
        """
        file = Path(self.gguf_folder or "") / name
        if not file.is_file():
            raise ValueError(f"{file} is not there; `python -m benchmarks.peers.make_gguf FOLDER` writes it.")
        return str(file)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a run gave.

    Attributes:
        tokens: of each prompt, in their order.
        seconds: of the whole run, prompts included.
        step_ms: milliseconds of a typical step with a full batch and no prompt in it; None if the engine does not tell.
        steps: steps that such times were seen of; None if the engine does not tell.
    """

    tokens: list[list[int]]
    seconds: float
    step_ms: float | None
    steps: int | None


class PeerEngine(Protocol):
    """An engine that a worker drives."""

    def about(self) -> dict[str, Any]:
        """Versions, number format and the settings that matter."""
        ...

    def run(self, prompts: Sequence[Sequence[int]], batch: int, max_tokens: int) -> Reply:
        """Decodes greedily, `batch` prompts at a time, exactly `max_tokens` tokens of each."""
        ...


def serve(make: Callable[[WorkerSettings], PeerEngine]) -> None:
    """Runs a worker: sets the engine up and answers until the driver closes the pipe."""
    answers = _own_stdout()
    settings = WorkerSettings(**json.loads(sys.argv[1]))
    try:
        engine = make(settings)
        _say(answers, {"ready": engine.about()})
        for line in sys.stdin:
            _say(answers, asdict(engine.run(**json.loads(line))))
    except Exception as error:  # whatever an engine raises ends this worker only, and the driver says why
        traceback.print_exc()
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        _say(answers, {"error": f"{type(error).__name__}: {first}"})


def _own_stdout() -> TextIO:
    """The real stdout; what libraries print goes to stderr from here on, also what they print from C."""
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
