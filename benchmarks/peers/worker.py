"""A worker process as the driver sees it: started once, stopped while others have their turn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from benchmarks.peers.lineup import Entry
from benchmarks.peers.worker_protocol import Reply, WorkerSettings

_ROOT = Path(__file__).resolve().parents[2]
_END_SECONDS = 30


class WorkerError(Exception):
    """An engine could not do what it was asked."""


class Worker:
    """One engine in one mode. All its processes stand still (SIGSTOP) except while it is asked something."""

    def __init__(self, entry: Entry, settings: WorkerSettings, log: TextIO) -> None:
        """Args:
            entry: the engine and where it is.
            settings: how to set it up.
            log: takes what the engine prints.

        Raises:
            WorkerError: it does not come up.
        """
        self.entry = entry
        threads = {"OMP_NUM_THREADS": str(settings.threads), "PYTHONUNBUFFERED": "1"}
        # A group of its own, so that children are stopped with it; of this session, so that the system lets a stopped
        # group go when the driver is killed.
        self._process = subprocess.Popen(
            [entry.python, "-m", entry.engine.module, json.dumps(asdict(settings))],
            cwd=_ROOT,
            env=os.environ | threads,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,
        )
        try:
            self.about: dict[str, Any] = self._answer()["ready"]
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise

    def run(self, prompts: Sequence[Sequence[int]], batch: int, max_tokens: int) -> Reply:
        """Decodes prompts.

        Raises:
            WorkerError: it fails, or gives another number of tokens than asked for.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "batch": batch, "max_tokens": max_tokens}) + "\n")
            self._process.stdin.flush()
            reply = Reply(**self._answer())
        except BrokenPipeError as error:
            raise WorkerError(f"{self.entry.name} has ended.") from error
        self._signal(signal.SIGSTOP)
        counts = {len(tokens) for tokens in reply.tokens}
        if len(reply.tokens) != len(prompts) or counts != {max_tokens}:
            told = f"{len(reply.tokens)} outputs of {sorted(counts)} tokens"
            raise WorkerError(f"{self.entry.name} gave {told} for {len(prompts)} prompts of {max_tokens}.")
        return reply

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"{self.entry.name} has ended without a word; --log has what it printed.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.entry.name}: {answer['error']}")
        return answer

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Lets it end, and ends it if it does not."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
