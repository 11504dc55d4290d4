"""Whether every policy gives the tokens of plain decoding in float32, on the suites of docs/results.md.

Run: python benchmarks/identical.py DATA_DIR OUT.json [--tokens 16] [--prompts 12] [--batch 4]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from smartree import LLM, SamplingParams
from smartree.bench.suites import encode, load_suite
from smartree.policies import POLICY_NAMES

SUITES = ("mt_bench", "humaneval", "gsm8k")


def main() -> None:
    """Decodes every suite with every policy and writes how many outputs are those of plain decoding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    for name, default in (("tokens", 16), ("prompts", 12), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    wanted = parser.parse_args()
    llm = LLM("demo", drafter="head", dtype="float32", policy="smart", max_batch=wanted.batch)
    params = SamplingParams(max_tokens=wanted.tokens)
    rows: list[dict[str, Any]] = []
    for name in SUITES:
        prompts = encode(llm, load_suite(name, wanted.data, wanted.prompts, False), False).measured
        outputs = {}
        for policy in ("none", *(one for one in POLICY_NAMES if one != "none")):
            engine = llm.make_engine(policy, wanted.batch)
            found = llm.generate(list(prompts), params, engine=engine)
            outputs[policy] = [output.token_ids for output in found]
            same = sum(mine == plain for mine, plain in zip(outputs[policy], outputs["none"], strict=True))
            accepted = sum(output.stats.accepted for output in found)
            row = {"suite": name, "policy": policy, "prompts": len(prompts), "identical_prompts": same}
            rows.append(row | {"accepted": accepted})
            print(rows[-1], flush=True)
    header = {"tokens": wanted.tokens, "batch": wanted.batch, "dtype": "float32", "drafter": "head"}
    wanted.out.write_text(json.dumps({"header": header, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
