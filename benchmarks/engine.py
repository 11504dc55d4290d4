"""Figures of the engine on the demo model: plain decoding against transformers, and `smart` against plain decoding.

    python benchmarks/engine.py --json benchmarks/results/engine.json

Everything is decoded in one process, in alternating runs, 96 new tokens a prompt, prompt pass included; medians and
ratios are what counts, as these machines are shared. The prompts are the built-in ones of `smartree demo`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from smartree import LLM, SamplingParams
from smartree.engine.measure import device_name
from smartree.models.demo import demo_folder
from smartree.models.load import library_versions

MAX_TOKENS = 96
BATCHES = (1, 4, 16)


def main() -> None:
    """Runs both comparisons and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-transformers", action="store_true")
    options = parser.parse_args()
    llm = LLM("demo", max_batch=16)
    prompts = built_in_prompts(llm)
    rows = [] if options.skip_transformers else against_transformers(llm, prompts, options.repeats)
    rows += against_plain(llm, prompts, options.repeats)
    torch_version, transformers_version = library_versions()
    header = {
        "command": "python benchmarks/engine.py --json benchmarks/results/engine.json",
        "date": datetime.date.today().isoformat(),
        "device": device_name(llm.target.device),
        "threads": torch.get_num_threads(),
        "model": "demo (SmolLM2-135M-Instruct)",
        "dtype": "bfloat16",
        "torch": torch_version,
        "transformers": transformers_version,
        "max_tokens": MAX_TOKENS,
        "repeats": options.repeats,
        "profile_seconds": round(llm.measure().seconds, 1),
    }
    text = json.dumps({"header": header, "rows": rows}, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)


def built_in_prompts(llm: LLM) -> list[dict[str, str]]:
    """Kind and text of the built-in prompts."""
    lines = files("smartree.cli").joinpath("demo_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        {"kind": row["kind"], "text": llm.apply_chat_template([{"role": "user", "content": row["prompt"]}])}
        for row in rows
    ]


def against_transformers(llm: LLM, prompts: list[dict[str, str]], repeats: int) -> list[dict[str, Any]]:
    """Plain decoding against `generate`, every request decoding exactly MAX_TOKENS tokens."""
    model = AutoModelForCausalLM.from_pretrained(demo_folder(), dtype=torch.bfloat16).eval()
    tokenizer = llm.target.tokenizer
    assert tokenizer is not None
    tokenizer.padding_side = "left"
    plain = llm.make_engine("none")
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    rows = []
    for batch in BATCHES:
        texts = [prompts[index % len(prompts)]["text"] for index in range(batch)]

        def ours(texts: list[str] = texts) -> int:
            return sum(len(output.token_ids) for output in llm.generate(texts, params, engine=plain))

        def theirs(texts: list[str] = texts) -> int:
            inputs = tokenizer(texts, return_tensors="pt", padding=True)
            settings = {"max_new_tokens": MAX_TOKENS, "min_new_tokens": MAX_TOKENS, "do_sample": False}
            with torch.inference_mode():
                outputs = model.generate(**inputs, **settings, pad_token_id=tokenizer.pad_token_id)
            return int(outputs.shape[0] * (outputs.shape[1] - inputs["input_ids"].shape[1]))

        rates = alternate({"smartree": ours, "transformers": theirs}, repeats)
        rows.append(
            {
                "comparison": "none / transformers generate",
                "batch": batch,
                "tokens_per_second": round(median(rates["smartree"]), 1),
                "transformers_tokens_per_second": round(median(rates["transformers"]), 1),
                "ratio": round(median(o / t for t, o in zip(rates["transformers"], rates["smartree"], strict=True)), 3),
            }
        )
        print(rows[-1], file=sys.stderr)
    return rows


def against_plain(llm: LLM, prompts: list[dict[str, str]], repeats: int) -> list[dict[str, Any]]:
    """`smart` with lookup drafting against plain decoding, per kind of prompt and over all, at batch 1 and 4."""
    kinds = sorted({row["kind"] for row in prompts})
    groups = {kind: [row["text"] for row in prompts if row["kind"] == kind] for kind in kinds}
    rows = []
    for batch in (1, 4):
        for kind, texts in {**groups, "all": [row["text"] for row in prompts]}.items():
            queue = texts * (1 if batch == 1 else max(1, 12 // len(texts)))
            figures = compare(llm, batch, queue, repeats)
            rows.append({"comparison": "smart / none", "batch": batch, "kind": kind} | figures)
            print(rows[-1], file=sys.stderr)
    return rows


def compare(llm: LLM, batch: int, queue: list[str], repeats: int) -> dict[str, Any]:
    """One row of figures: `smart` against `none` on a queue of prompts.

    Time is counted while the batch is full: when the queue has run dry, requests that speculate well leave early and
    the last one decodes alone, which says nothing about a server that always has more to do.
    """
    params = SamplingParams(max_tokens=MAX_TOKENS)
    engines = {policy: llm.make_engine(policy, max_batch=batch) for policy in ("none", "smart")}
    texts: dict[str, list[list[int] | None]] = {}

    def decode(policy: str) -> int:
        engine = engines[policy]
        requests = [engine.add(llm.encode(prompt), params) for prompt in queue]
        while engine.unfinished >= batch:
            engine.step()
        tokens = sum(len(request.output) for request in requests)
        texts[policy] = [request.output if request.finish_reason else None for request in requests]
        for request in requests:
            if request.finish_reason is None:
                engine.abort(request)
        return tokens

    rates = alternate({policy: partial(decode, policy) for policy in engines}, repeats)
    smart = engines["smart"].stats
    pairs = [(one, other) for one, other in zip(texts["none"], texts["smart"], strict=True) if one and other]
    return {
        "tokens_per_second": round(median(rates["smart"]), 1),
        "speedup": round(median(s / n for n, s in zip(rates["none"], rates["smart"], strict=True)), 3),
        "tau": round(smart.tau, 3),
        "verified_tokens_per_step": round(smart.verified_rows / max(smart.decode_steps, 1), 2),
        "bookkeeping_share": round(smart.bookkeeping_seconds / smart.seconds, 4),
        "draft_share": round(smart.draft_seconds / smart.seconds, 4),
        "predicted_over_measured": round(smart.predicted_seconds / max(smart.compared_seconds, 1e-9), 3),
        "identical_to_none": sum(one == other for one, other in pairs),
        "compared_texts": len(pairs),
    }


def alternate(runs: dict[str, Callable[[], int]], repeats: int) -> dict[str, list[float]]:
    """Tokens per second of each run, one warm-up, then in turn; a run returns the tokens it decoded.

    Rounding in bfloat16 can end a text earlier under another policy, so seconds alone would compare different work.
    """
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            begin = perf_counter()
            tokens = run()
            if repeat:
                rates[name].append(tokens / (perf_counter() - begin))
    return rates


if __name__ == "__main__":
    main()
