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
    """`smart` with lookup drafting against plain decoding, per kind of prompt at batch 1 and over all at batch 4."""
    kinds = sorted({row["kind"] for row in prompts})
    groups = [(1, kind, [[row["text"]] for row in prompts if row["kind"] == kind]) for kind in kinds]
    texts = [row["text"] for row in prompts]
    groups += [(4, kind, [[row["text"] for row in prompts if row["kind"] == kind]]) for kind in kinds]
    groups.append((4, "mixed", [texts[start::3] for start in range(3)]))
    rows = []
    for batch, kind, calls in groups:
        rows.append({"comparison": "smart / none", "batch": batch, "kind": kind} | compare(llm, batch, calls, repeats))
        print(rows[-1], file=sys.stderr)
    return rows


def compare(llm: LLM, batch: int, calls: list[list[str]], repeats: int) -> dict[str, Any]:
    """One row of figures: `smart` against `none` on calls of `generate`, each with a list of prompts."""
    params = SamplingParams(max_tokens=MAX_TOKENS)
    engines = {policy: llm.make_engine(policy, max_batch=batch) for policy in ("none", "smart")}
    tokens: dict[str, list[list[int]]] = {}

    def decode(policy: str) -> int:
        outputs = [llm.generate(call, params, engine=engines[policy]) for call in calls]
        tokens[policy] = [output.token_ids for call in outputs for output in call]
        return sum(len(ids) for ids in tokens[policy])

    rates = alternate({policy: partial(decode, policy) for policy in engines}, repeats)
    smart = engines["smart"].stats
    return {
        "tokens_per_second": round(median(rates["smart"]), 1),
        "speedup": round(median(s / n for n, s in zip(rates["none"], rates["smart"], strict=True)), 3),
        "tau": round(smart.tau, 3),
        "verified_tokens_per_step": round(smart.verified_rows / max(smart.decode_steps, 1), 2),
        "bookkeeping_share": round(smart.bookkeeping_seconds / smart.seconds, 4),
        "draft_share": round(smart.draft_seconds / smart.seconds, 4),
        "predicted_over_measured": round(smart.predicted_seconds / max(smart.compared_seconds, 1e-9), 3),
        "identical_to_none": sum(a == b for a, b in zip(tokens["none"], tokens["smart"], strict=True)),
        "prompts": len(tokens["none"]),
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
