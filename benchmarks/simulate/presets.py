"""Solves the `mean` of every acceptance preset so that EAGLE's default tree has a stated accepted length.

Run: .venv/bin/python benchmarks/simulate/presets.py
"""

from __future__ import annotations

from dataclasses import replace

from scipy.optimize import brentq

from smartree.policies import Eagle2Policy
from smartree.simulate.acceptance import PRESETS, AcceptanceLaw, ParametricPools
from smartree.simulate.loop import run

BATCH, STEPS, WARM_UP, SEED = 16, 60, 20, 7

# (accepted length, draft passes after the first) of a tree of 60 with top 10. Where each comes from: docs/simulate.md.
TARGETS = {
    "eagle3-8b": (6.37, 7),
    "eagle3-70b": (6.10, 7),
    "eagle3-r1": (6.30, 7),
    "msd-llava": (2.62, 5),
    "msd-qwen": (2.53, 5),
}


def accepted_length(law: AcceptanceLaw, depth: int) -> float:
    """Expected accepted length of EAGLE-2's tree of 60 nodes."""
    pools = ParametricPools(law, BATCH, STEPS + WARM_UP, SEED)
    steps = run(Eagle2Policy(depth=depth), pools, None, context=512, steps=STEPS, warm_up=WARM_UP)
    return sum(step.tokens for step in steps) / (BATCH * len(steps))


def solve(law: AcceptanceLaw, length: float, depth: int) -> float:
    """The `mean` that gives a length; common random numbers make the function smooth."""

    def excess(mean: float) -> float:
        return accepted_length(replace(law, mean=mean), depth) - length

    return float(brentq(excess, -3.0, 6.0, xtol=0.01))


if __name__ == "__main__":
    for name, (length, depth) in TARGETS.items():
        mean = solve(PRESETS[name], length, depth)
        chain = run(
            Eagle2Policy(total=8, depth=6, top_k=1),
            ParametricPools(replace(PRESETS[name], mean=mean), BATCH, STEPS, SEED),
            None,
            context=512,
            steps=STEPS,
        )
        print(f"{name}: mean {mean:.2f} (a chain of 7: {sum(s.tokens for s in chain) / (BATCH * STEPS):.2f})")
