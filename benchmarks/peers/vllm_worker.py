"""vLLM for CPUs, in one process, without compilation unless asked for, plain or with its n-gram speculation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.full_batch import Progress, keep_full
from benchmarks.peers.worker_protocol import Reply, WorkerSettings, serve

_NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process: steps can be timed, and a stopped worker is all stopped
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class VllmEngine:
    """vLLM's own engine, step by step."""

    def __init__(self, settings: WorkerSettings) -> None:
        os.environ.update(_ENVIRONMENT)  # read when vllm is imported
        import torch
        import vllm

        self._vllm, self._torch, self._speculation = vllm, torch, settings.speculation
        self._compiled = settings.compiled
        self._engine = vllm.LLM(
            settings.model,
            dtype="bfloat16",
            enforce_eager=not self._compiled,
            distributed_executor_backend="uni",
            max_num_seqs=settings.max_batch,
            max_model_len=settings.window,
            enable_prefix_caching=False,  # prompts are decoded again and again
            speculative_config=dict(_NGRAM) if settings.speculation else None,
        ).llm_engine
        self._added = 0

    def about(self) -> dict[str, Any]:
        return {
            "engine": f"vllm {self._vllm.__version__}",
            "torch": self._torch.__version__,
            "dtype": str(self._engine.model_config.dtype).removeprefix("torch."),
            "compiled": self._compiled,
            "speculation": ", ".join(f"{k}={v}" for k, v in _NGRAM.items()) if self._speculation else "none",
            "threads": self._torch.get_num_threads(),
        }

    def run(self, prompts: Sequence[Sequence[int]], batch: int, max_tokens: int) -> Reply:
        return keep_full(self, prompts, batch, max_tokens)

    def add(self, number: int, prompt: Sequence[int], max_tokens: int) -> None:
        params = self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )
        self._added += 1  # names of requests must never come again
        self._engine.add_request(f"{self._added}:{number}", {"prompt_token_ids": list(prompt)}, params)

    def step(self) -> list[Progress]:
        # The engine appends something of its own to a request's name; the number stands between colon and hyphen.
        return [
            Progress(
                int(output.request_id.split(":")[1].split("-")[0]), list(output.outputs[0].token_ids), output.finished
            )
            for output in self._engine.step()
        ]


if __name__ == "__main__":
    serve(VllmEngine)
