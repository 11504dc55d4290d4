"""transformers: `generate`, plain, or with prompt lookup, which it has for one prompt at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from benchmarks.peers.worker_protocol import Reply, WorkerSettings, serve

_LOOKUP_TOKENS = 6


class _Clock(StoppingCriteria):
    """Never stops anything: notes when each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class TransformersEngine:
    """The model as `from_pretrained` gives it."""

    def __init__(self, settings: WorkerSettings) -> None:
        torch.set_num_threads(settings.threads)
        self._model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.bfloat16).eval()
        self._model.generation_config.eos_token_id = None  # every output has all its tokens
        self._speculation = settings.speculation

    def about(self) -> dict[str, Any]:
        return {
            "engine": f"transformers {transformers.__version__}",
            "torch": torch.__version__,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "attention": self._model.config._attn_implementation,
            "speculation": f"prompt_lookup_num_tokens={_LOOKUP_TOKENS}" if self._speculation else "none",
            "threads": torch.get_num_threads(),
        }

    def run(self, prompts: Sequence[Sequence[int]], batch: int, max_tokens: int) -> Reply:
        tokens: list[list[int]] = []
        gaps: list[float] = []
        begin = perf_counter()
        for first in range(0, len(prompts), batch):
            clock = _Clock()
            tokens += self._generate(prompts[first : first + batch], max_tokens, clock)
            gaps += [late - early for early, late in pairwise(clock.times)]
        seconds = perf_counter() - begin
        return Reply(tokens, seconds, 1e3 * median(gaps) if gaps else None, len(gaps))

    def _generate(self, prompts: Sequence[Sequence[int]], max_tokens: int, clock: _Clock) -> list[list[int]]:
        """Tokens of a group; shorter prompts are padded at the left."""
        width = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        lookup = {"prompt_lookup_num_tokens": _LOOKUP_TOKENS} if self._speculation else {}
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([clock]),
                **lookup,
            )
        return [row[:max_tokens] for row in output[:, width:].tolist()]


if __name__ == "__main__":
    serve(TransformersEngine)
