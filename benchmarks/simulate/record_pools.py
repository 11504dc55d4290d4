"""Records what a drafter proposed and what the target then said, for `smartree simulate --pools`.

    python benchmarks/simulate/record_pools.py --data DIR --out benchmarks/simulate/pools.jsonl

Every step of every request becomes one line: all candidates of an EAGLE-2 beam with the drafter's own probabilities,
and which of them lie on the path that the target went. The prompts are spread evenly over the suites in DIR.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from smartree.cli.prompts import read_prompts
from smartree.engine.engine import Engine
from smartree.engine.llm import LLM
from smartree.engine.trace import NodeTrace, StepTrace
from smartree.policies.calibration import Calibration
from smartree.policies.eagle2 import Eagle2Policy
from smartree.sampling_params import SamplingParams
from smartree.simulate.recorded import RecordedPool, write_pools

SUITES = ("mt_bench", "humaneval", "gsm8k_test")
UNCALIBRATED = 1e12  # a prior so strong that the drafter's own word stays as it is


def record(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, top_k: int, depth: int
) -> list[RecordedPool]:
    """The pools of all steps; few nodes are verified, the rest is judged by what was decoded later."""
    engine = Engine(
        llm.target,
        llm.drafter.fresh() if llm.drafter is not None else None,
        Eagle2Policy(total=16, depth=depth - 1, top_k=top_k),
        max_batch=4,
        window=llm.window,
        calibration=Calibration(strength=UNCALIBRATED),
    )
    engine.traces = []
    requests = [engine.add(prompt, params) for prompt in prompts]
    while engine.unfinished:
        engine.step()
    steps: dict[int, list[StepTrace]] = defaultdict(list)
    for trace in engine.traces:
        steps[trace.request_id].append(trace)
    pools = []
    for number, request in enumerate(requests):
        done = 1  # the first token comes from the prompt's own pass
        for step, trace in enumerate(steps[request.id]):
            pool = judged(trace.nodes, request.output[done:], number, step)
            if pool is not None:
                pools.append(pool)
            done += len(trace.tokens)
    return pools


def judged(nodes: Sequence[NodeTrace], truth: Sequence[int], request: int, step: int) -> RecordedPool | None:
    """A step's candidates with their fate; None where the text ends before the deepest of them could be judged."""
    depths: list[int] = []
    accepted: list[bool] = []
    ranks: list[int] = []
    children: dict[int, int] = defaultdict(int)
    for node in nodes:
        depth = 1 + (depths[node.parent] if node.parent >= 0 else 0)
        if depth > len(truth):
            return None
        above = node.parent < 0 or accepted[node.parent]
        depths.append(depth)
        accepted.append(above and node.token == truth[depth - 1])
        ranks.append(children[node.parent])
        children[node.parent] += 1
    if not nodes:
        return None
    return RecordedPool(
        step,
        request,
        np.array([node.parent for node in nodes]),
        np.array([node.probability for node in nodes]),
        np.array(ranks),
        np.array(accepted),
    )


def spread(folder: Path, llm: LLM, count: int) -> Iterator[list[int]]:
    """`count` prompts of every suite, evenly over its file."""
    for suite in SUITES:
        prompts = read_prompts(str(folder / f"{suite}.jsonl"))
        for place in np.linspace(0, len(prompts) - 1, count).round().astype(int).tolist():
            yield prompts[place].encode(llm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the suites' JSONL files")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("pools.jsonl"))
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--prompts", type=int, default=4, help="of each suite")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=6)
    parser.add_argument("--depth", type=int, default=5)
    arguments = parser.parse_args()
    llm = LLM("demo", drafter=arguments.drafter, policy="none", max_batch=4)
    params = SamplingParams(max_tokens=arguments.max_tokens, temperature=arguments.temperature, seed=0)
    prompts = list(spread(arguments.data, llm, arguments.prompts))
    pools = record(llm, prompts, params, arguments.top_k, arguments.depth)
    write_pools(arguments.out, pools)
    print(f"{len(pools)} pools of {len(prompts)} requests in {arguments.out.name}")


if __name__ == "__main__":
    main()
