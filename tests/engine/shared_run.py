"""A program for torchrun: decodes with a shared model and writes what came out. Only rank 0 gets past `LLM(...)`.

torchrun --nproc-per-node 2 tests/engine/shared_run.py FOLDER_OF_MODELS OUT.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from smartree import LLM, SamplingParams
from smartree.engine.output import RequestOutput
from smartree.engine.request import Request
from tests.tiny import flat_profile, random_prompts

PROMPTS = random_prompts([1, 3, 8, 21, 30, 13])
TOKENS = 12
PARAMS = {
    "greedy": SamplingParams(max_tokens=TOKENS),
    "sampled": SamplingParams(max_tokens=TOKENS, seed=7, temperature=1.0, top_p=0.9),
}
POLICIES = ("none", "static", "smart")
OTHERS = ("qwen2", "qwen3", "gemma2")  # biases, norms of heads, scaled embeddings and tied output layers
Outputs = Iterator[tuple[str, list[RequestOutput]]]


def decode(folder: Path) -> Outputs:
    """Every policy with lookup, greedy and sampled, three requests at a time; then a draft model, other architectures,
    and a fresh seed.
    """
    model, draft_model = str(folder / "llama"), str(folder / "draft")
    llm = LLM(model, drafter="ngram", policy="none", dtype="float64", profile=flat_profile(), max_batch=3)
    for policy in POLICIES:
        for kind, params in PARAMS.items():
            yield f"{policy} {kind}", llm.generate(PROMPTS, params, engine=llm.make_engine(policy))
    assert llm.target.cache_shape.kv_heads * llm.target.shards == 2
    drafting = LLM(model, drafter=draft_model, policy="smart", dtype="float64", profile=flat_profile(True), max_batch=3)
    yield "draft model", drafting.generate(PROMPTS, PARAMS["greedy"])
    for other in OTHERS:
        llm = LLM(str(folder / other), drafter="ngram", policy="static", dtype="float64", max_batch=3)
        yield other, llm.generate(PROMPTS, PARAMS["greedy"])
    yield "fresh seed", llm.generate(PROMPTS[:2], SamplingParams(max_tokens=TOKENS, temperature=1.0))


def rows(outputs: Outputs) -> dict[str, list[dict[str, object]]]:
    """What a comparison needs of each output."""
    return {
        name: [{"token_ids": one.token_ids, "seed": one.seed, "verified": one.stats.verified} for one in each]
        for name, each in outputs
    }


def main() -> None:
    """Writes the outputs as JSON."""
    torch.set_num_threads(1)
    folder, out = map(Path, sys.argv[1:])
    out.write_text(json.dumps(rows(decode(folder))))
    print("rank 0 was here")


if __name__ == "__main__":
    # Each process draws its own seeds; were the others to draw one, they would part.
    Request.seed_for(SamplingParams())
    main()
