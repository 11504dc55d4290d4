"""llama.cpp's server on this machine, as many requests at a time as the batch holds, plain or with its n-gram lookup.

The worker is no more than a client; the server is its child, in the same process group.
"""

from __future__ import annotations

import atexit
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.peers.worker_protocol import Reply, WorkerSettings, serve

_HOST = "127.0.0.1"
_SPECULATION = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "5"]
_READY_SECONDS, _ANSWER_SECONDS = 120.0, 3600.0


class LlamaCppEngine:
    """The server, with a slot for every request of the largest batch."""

    def __init__(self, settings: WorkerSettings) -> None:
        if settings.program is None:
            raise ValueError("The llama.cpp worker needs `program`, the path of llama-server.")
        self._settings = settings
        self._port = _free_port()
        self._server = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=sys.stderr)
        atexit.register(self._close)
        self._wait_until_ready()

    def _command(self) -> list[str]:
        settings = self._settings
        assert settings.program is not None
        return [
            *(settings.program, "--model", settings.gguf("demo-bf16.gguf"), "--host", _HOST, "--port", str(self._port)),
            *("--threads", str(settings.threads), "--threads-batch", str(settings.threads)),
            *("--parallel", str(settings.max_batch), "--ctx-size", str(settings.max_batch * settings.window)),
            *("--cache-type-k", "f16", "--cache-type-v", "f16", "--cache-ram", "0", "--no-webui"),
            *(_SPECULATION if settings.speculation else ()),
        ]

    def _wait_until_ready(self) -> None:
        begin = time.monotonic()
        while time.monotonic() - begin < _READY_SECONDS:
            if self._server.poll() is not None:
                raise RuntimeError(f"llama-server ended with code {self._server.returncode}; its own words are above.")
            try:
                if self._ask("GET", "/health").get("status") == "ok":
                    return
            except OSError:  # not listening yet
                pass
            time.sleep(0.2)
        raise RuntimeError(f"llama-server was not ready after {_READY_SECONDS:.0f} s.")

    def about(self) -> dict[str, Any]:
        assert self._settings.program is not None
        told = subprocess.run([self._settings.program, "--version"], capture_output=True, text=True, check=True)
        found = re.search(r"version: (\S+)", told.stderr + told.stdout)
        return {
            "engine": f"llama.cpp {found.group(1) if found else ''}".strip(),
            "dtype": "bfloat16",
            "kv_cache_precision": "f16",
            "speculation": " ".join(_SPECULATION) if self._settings.speculation else "none",
            "threads": self._settings.threads,
        }

    def run(self, prompts: Sequence[Sequence[int]], batch: int, max_tokens: int) -> Reply:
        with ThreadPoolExecutor(batch) as clients:
            begin = perf_counter()
            answers = list(clients.map(lambda prompt: self._complete(prompt, max_tokens), prompts))
            seconds = perf_counter() - begin
        times = [_step(answer["timings"]) for answer in answers]
        return Reply(
            [answer["tokens"] for answer in answers],
            seconds,
            median(milliseconds for milliseconds, _ in times),
            sum(steps for _, steps in times),
        )

    def _complete(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        wanted = {
            "prompt": list(prompt),
            "n_predict": max_tokens,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
        }
        return self._ask("POST", "/completion", wanted)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        connection = HTTPConnection(_HOST, self._port, timeout=_ANSWER_SECONDS)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            found: dict[str, Any] = json.loads(answer.read())
        finally:
            connection.close()
        if body is not None and answer.status != 200:
            raise RuntimeError(f"llama-server answered {answer.status}: {found}")
        return found

    def _close(self) -> None:
        self._server.terminate()
        self._server.wait()


def _step(timings: dict[str, Any]) -> tuple[float, int]:
    """(milliseconds a step, steps) of one request after its prompt: drafted tokens that held came without a step.

    Steps that read another request's prompt are in this time.
    """
    steps = max(1, timings["predicted_n"] - 1 - timings.get("draft_n_accepted", 0))
    return timings["predicted_ms"] / steps, steps


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(LlamaCppEngine)
