"""OpenVINO GenAI: continuous batching over a paged cache, plain or with its prompt lookup.

It reads the F16 GGUF file by itself and computes in bfloat16, cache included (it would store the cache in 8 bits by
default, which no other engine here does).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.full_batch import Progress, keep_full
from benchmarks.peers.worker_protocol import Reply, WorkerSettings, serve

_LOOKUP_TOKENS, _LOOKUP_NGRAM = 5, 3
_CACHE_GIB = 1
_PROPERTIES = {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"}


class OpenvinoEngine:
    """The continuous-batching pipeline, step by step."""

    def __init__(self, settings: WorkerSettings) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GIB
        scheduler.max_num_seqs = settings.max_batch
        scheduler.enable_prefix_caching = False  # prompts are decoded again and again
        self._properties: dict[str, Any] = _PROPERTIES | {"INFERENCE_NUM_THREADS": settings.threads}
        self._speculation = settings.speculation
        lookup = {"prompt_lookup": True} if settings.speculation else {}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings.gguf("demo-f16.gguf"), scheduler, "CPU", self._properties | lookup
        )
        self._added = 0
        self._handles: dict[int, tuple[Any, int]] = {}

    def about(self) -> dict[str, Any]:
        told = {name.lower(): value for name, value in self._properties.items()}
        lookup = f"prompt lookup {_LOOKUP_TOKENS}, n-gram {_LOOKUP_NGRAM}"
        return {
            "engine": f"openvino-genai {openvino_genai.__version__}",
            "openvino": openvino.__version__,
            "dtype": "bfloat16",
            "speculation": lookup if self._speculation else "none",
            "threads": told.pop("inference_num_threads"),
        } | told

    def run(self, prompts: Sequence[Sequence[int]], batch: int, max_tokens: int) -> Reply:
        return keep_full(self, prompts, batch, max_tokens)

    def add(self, number: int, prompt: Sequence[int], max_tokens: int) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        if self._speculation:
            config.num_assistant_tokens, config.max_ngram_size = _LOOKUP_TOKENS, _LOOKUP_NGRAM
        self._added += 1  # names of requests must never come again
        ids = openvino.Tensor(np.array([prompt], np.int64))
        self._handles[number] = (self._pipeline.add_request(self._added, ids, config), max_tokens)

    def step(self) -> list[Progress]:
        self._pipeline.step()
        progress = []
        for number, (handle, left) in list(self._handles.items()):
            tokens = self._read(handle)
            done = left <= len(tokens)
            if done:
                del self._handles[number]
            else:
                self._handles[number] = (handle, left - len(tokens))
            if tokens:
                progress.append(Progress(number, tokens, done))
        return progress

    @staticmethod
    def _read(handle: Any) -> list[int]:
        tokens: list[int] = []
        while handle.can_read():
            for output in handle.read().values():
                tokens += output.generated_ids
        return tokens


if __name__ == "__main__":
    serve(OpenvinoEngine)
