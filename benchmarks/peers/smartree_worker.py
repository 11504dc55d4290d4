"""smartree: plain decoding, or the policy `smart` with the drafter that comes with the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

import smartree
from benchmarks.peers.full_batch import Progress, keep_full
from benchmarks.peers.worker_protocol import Reply, WorkerSettings, serve
from smartree import LLM, SamplingParams
from smartree.engine.engine import Engine
from smartree.engine.request import Request


class _Steps:
    """One engine; what it learns stays from run to run, as in a server."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._numbers: dict[int, tuple[int, int]] = {}

    def add(self, number: int, prompt: Sequence[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        self._numbers[self.engine.add(prompt, params).id] = (number, 0)

    def step(self) -> list[Progress]:
        return [self._progress(request) for request in self.engine.step()]

    def _progress(self, request: Request) -> Progress:
        number, seen = self._numbers[request.id]
        output = request.output
        self._numbers[request.id] = (number, len(output))
        return Progress(number, output[seen:], request.finish_reason is not None)


class SmartreeEngine:
    """The embedded engine, as `LLM(model)` sets it up."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._policy = "smart" if settings.speculation else "none"
        drafter = "auto" if settings.speculation else "none"
        self._llm = LLM("demo", max_batch=settings.max_batch, policy=self._policy, drafter=drafter)
        self._steps: dict[int, _Steps] = {}

    def about(self) -> dict[str, Any]:
        return {
            "engine": f"smartree {smartree.__version__}",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "dtype": str(self._llm.target.dtype).removeprefix("torch."),
            "drafter": getattr(self._llm.drafter, "name", "none"),
            "threads": torch.get_num_threads(),
        }

    def run(self, prompts: Sequence[Sequence[int]], batch: int, max_tokens: int) -> Reply:
        if batch not in self._steps:
            for steps in self._steps.values():
                self._llm.learn_from(steps.engine)
            self._steps[batch] = _Steps(self._llm.make_engine(self._policy, batch))
        return keep_full(self._steps[batch], prompts, batch, max_tokens)


if __name__ == "__main__":
    serve(SmartreeEngine)
