"""What a long prompt that joins does to requests that are decoding already.

    python benchmarks/stall.py --json benchmarks/results/stall.json

Four requests decode; in every second run a prompt of 1,024 tokens joins them when each has some tokens. Reported are
milliseconds of a step before it joins, while it is read, and after; the longest gap between two tokens of a decoding
request, in steps of the time before; and the mean step with it against the mean step without, over the same requests.
"""

from __future__ import annotations

import argparse
import datetime
import json
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import mean, median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from smartree import LLM, SamplingParams
from smartree.cli.header import run_header
from smartree.cli.json_file import JsonFile
from smartree.engine.engine import Engine
from smartree.engine.request import Request

DECODING, TOKENS, JOINS_AFTER = 4, 96, 24
PHASES = ("before", "during", "after")
Row = dict[str, Any]


@dataclass(slots=True)
class Trial:
    """Milliseconds of the steps of one run by phase, and the longest wait of a decoding request for its next token."""

    steps: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    longest_gap: float = 0.0

    @property
    def mean_step(self) -> float:
        """Over all steps."""
        return mean(time for times in self.steps.values() for time in times)


def main() -> None:
    """Runs all policies and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="none,smart")
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", default=None, metavar="FILE")
    options = parser.parse_args()
    json_file = JsonFile(options.json)
    llm = LLM("demo", max_batch=DECODING + 1)
    prompts, joining = prompts_of(llm, options.prompt_tokens)
    rows = []
    for policy in options.policies.split(","):
        engine = llm.make_engine(policy)
        trial(engine, prompts, joining)  # kernels are chosen, prices are learned
        pairs = [(trial(engine, prompts, joining), trial(engine, prompts, None)) for _ in range(options.repeats)]
        rows.append(row_of(policy, options.prompt_tokens, pairs))
    show(rows)
    header = run_header(llm, repeats=options.repeats, tokens=TOKENS, date=datetime.date.today().isoformat())
    json_file.write({"header": header, "rows": rows})


def prompts_of(llm: LLM, length: int) -> tuple[list[list[int]], list[int]]:
    """Tokens of the prompts that decode, and of a long one made of all built-in prompts."""
    lines = files("smartree.cli").joinpath("demo_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["prompt"] for line in lines]
    chats = [llm.encode_chat([{"role": "user", "content": text}]) for text in texts]
    everything = [token for chat in chats for token in chat]
    return chats[:DECODING], (everything * (1 + length // len(everything)))[:length]


def trial(engine: Engine, prompts: list[list[int]], joining: list[int] | None) -> Trial:
    """Decodes the prompts to their end; the long one is added on the way and given up then."""
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True, seed=0)
    requests = [engine.add(prompt, params) for prompt in prompts]
    while not all(request.output for request in requests):
        engine.step()
    result, late, last = Trial(), None, dict.fromkeys(requests, perf_counter())
    while all(request.finish_reason is None for request in requests):
        if joining is not None and late is None and min(len(one.output) for one in requests) >= JOINS_AFTER:
            late = engine.add(joining, params)
        # Without a long prompt, steps are the same ones as before it.
        phase = "before" if late is None else "after" if late.output else "during"
        counts = {request: len(request.output) for request in requests}
        begin = perf_counter()
        engine.step()
        now = perf_counter()
        result.steps[phase].append(1e3 * (now - begin))
        note_gaps(result, counts, last, now)
    for request in (*requests, *((late,) if late is not None else ())):
        engine.abort(request)
    return result


def note_gaps(result: Trial, counts: dict[Request, int], last: dict[Request, float], now: float) -> None:
    """Updates the longest gap with the requests that got tokens in a step."""
    for request, before in counts.items():
        if len(request.output) > before:
            result.longest_gap = max(result.longest_gap, 1e3 * (now - last[request]))
            last[request] = now


def row_of(policy: str, prompt_tokens: int, pairs: list[tuple[Trial, Trial]]) -> Row:
    """Medians over the repeats; a ratio is taken within a repeat."""
    with_it, without = ([pair[place] for pair in pairs] for place in (0, 1))
    row: Row = {"policy": policy, "decoding": DECODING, "prompt_tokens": prompt_tokens}
    for phase in PHASES:
        times = [time for one in with_it for time in one.steps[phase]]
        row[f"{phase}_ms"] = round(median(times), 2) if times else None
    gaps = [one.longest_gap / median(one.steps["before"]) for one in with_it]
    plain_gaps = [one.longest_gap / median(one.steps["before"]) for one in without]
    return row | {
        "during_steps": median(len(one.steps["during"]) for one in with_it),
        "longest_gap_ms": round(median(one.longest_gap for one in with_it), 2),
        "longest_gap_in_steps": round(median(gaps), 2),
        "longest_gap_in_steps_without": round(median(plain_gaps), 2),
        "mean_step_over_without": round(median(one.mean_step / other.mean_step for one, other in pairs), 3),
    }


def show(rows: list[Row]) -> None:
    """A table on stdout."""
    names = ("policy", "before_ms", "during_ms", "during_steps", "after_ms", "longest_gap_ms", "longest_gap_in_steps")
    names += ("longest_gap_in_steps_without", "mean_step_over_without")
    table = Table(*(name.replace("_", " ") for name in names), title=f"A long prompt joins {DECODING} requests")
    for row in rows:
        table.add_row(*(str(row[name]) for name in names))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
