"""The simulated engine: a policy's steps on given pools, and what they cost on a given device.

Deciding and pricing are apart: `run` records what every step drafted and verified, `price` adds up its modelled time. A
policy that knows no costs decides the same on every device, so its run can be priced many times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from smartree.cost import CostModel
from smartree.errors import InputError
from smartree.policies import Calibration, Policy, StepOutcome, StepState
from smartree.simulate.pools import Flags, Pools
from smartree.tree.forest import Forest, Ints

ROOMY = 1_000_000
"""A depth limit that never binds: simulated requests do not end."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What one step drafted, verified and is worth.

    Attributes:
        widths: rows of each draft level.
        rows: N, verified tokens.
        tokens: expected tokens, B + the true path probabilities of what was verified.
    """

    widths: tuple[int, ...]
    rows: int
    tokens: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy achieved, means per step.

    Attributes:
        speedup: tokens per second over those of plain decoding.
        expected_accepted_length: L, expected tokens committed per request, bonus token included.
        verified_tokens: N.
        draft_ms, verify_ms: draft levels, and the target pass, in milliseconds.
        draft_levels: levels drafted.
    """

    speedup: float
    expected_accepted_length: float
    verified_tokens: float
    draft_ms: float
    verify_ms: float
    draft_levels: float


@dataclass(frozen=True, slots=True)
class Drafted:
    """The trees of a step.

    Attributes:
        forest: every node drafted.
        selected: ids of the nodes to verify.
        widths: rows of each draft level.
    """

    forest: Forest
    selected: Ints
    widths: tuple[int, ...]


def run(
    policy: Policy, pools: Pools, cost: CostModel | None, *, context: int, steps: int, warm_up: int = 0
) -> list[SimulatedStep]:
    """Lets a policy decide and learn for `warm_up + steps` steps; returns the last `steps`. Requests never end, so that
    what each has generated keeps growing.

    Args:
        policy: fresh.
        pools: what there is to draft.
        cost: what steps take, for what the policy learns from the clock; None for policies that ask for no costs, which
            are told that steps take no time.
        context: cached tokens per request.
        steps: steps that count.
        warm_up: steps before.

    Raises:
        InputError: steps is below 1 or warm_up below 0.
    """
    if steps < 1 or warm_up < 0:
        raise InputError(f"A simulation needs steps >= 1 and warm_up >= 0; got {steps} and {warm_up}.")
    limits, generated = np.full(pools.batch, ROOMY, np.int64), np.zeros(pools.batch, np.int64)
    calibration, sampled = Calibration(), np.zeros(pools.batch, bool)
    done = []
    for step in range(warm_up + steps):
        state = StepState(pools.batch, context, limits, generated=generated)
        pools.begin(step)
        drafted = draft(policy, pools, None if pools.calibrated else calibration, state)
        forest, selected = drafted.forest, drafted.selected
        accepted = pools.accepted(forest)
        if not pools.calibrated and drafted.widths:
            nodes = observed(forest, selected, accepted)
            calibration.learn(forest, nodes, accepted[nodes], sampled)
        worth = pools.batch + float(pools.worth(forest)[selected].sum())
        result = SimulatedStep(drafted.widths, pools.batch + len(selected), worth)
        committed = 1 + np.bincount(forest.request[selected[accepted[selected]]], minlength=pools.batch)
        # No target_seconds: the table is the truth here, so there is nothing for a cost model to refine.
        seconds = sum(step_seconds(result, cost, state)) if cost else 0.0
        policy.observe(StepOutcome(state, forest, selected, int(committed.sum()), seconds))
        generated = generated + committed
        done.append(result)
    return done[warm_up:]


def draft(policy: Policy, pools: Pools, calibration: Calibration | None, state: StepState) -> Drafted:
    """One step's trees, as engine/drafting.py makes them."""
    forest = Forest(np.zeros(state.batch, np.int64))
    frontier = policy.begin(state, forest)
    sampled, widths = np.zeros(state.batch, bool), []
    while len(frontier) and policy.wants_level(forest, frontier):
        candidates = pools.expand(forest, frontier)
        widths.append(len(frontier))
        if len(candidates) == 0:
            break
        if calibration is not None:
            candidates = calibration(forest, candidates, sampled)
        frontier = policy.grow(forest, candidates)
    return Drafted(forest, policy.select(forest), tuple(widths))


def observed(forest: Forest, selected: Ints, accepted: Flags) -> Ints:
    """Drafted nodes whose fate the step shows: those whose parent is a root, or was verified and accepted."""
    known = np.zeros(len(forest), bool)
    known[: forest.batch] = True
    known[selected] = accepted[selected]
    nodes = np.arange(forest.batch, len(forest))
    return nodes[known[forest.parent[nodes]]]


def draft_seconds(widths: Sequence[int], batch: int, cost: CostModel) -> float:
    """Seconds of draft levels of these widths."""
    if not widths:
        return 0.0
    if cost.draft.by_level:
        return sum(cost.draft.level_seconds(batch, width) for width in widths)
    return cost.draft.seconds_per_step


def step_seconds(step: SimulatedStep, cost: CostModel, state: StepState) -> tuple[float, float, float]:
    """Seconds of drafting, of the target pass, and of the rest of a step."""
    verify = float(cost.verify(state.batch, step.rows, state.context))
    return draft_seconds(step.widths, state.batch, cost), verify, cost.overhead


def price(steps: Sequence[SimulatedStep], cost: CostModel, batch: int, context: int) -> Outcome:
    """What recorded steps take on a device, compared with plain decoding there."""
    state = StepState(batch, context, np.full(batch, ROOMY, np.int64))
    seconds = [step_seconds(step, cost, state) for step in steps]
    plain = sum(step_seconds(SimulatedStep((), batch, batch), cost, state))
    # fsum: plain decoding must come out as 1, not as 1 give or take rounding.
    tokens, total = fsum(step.tokens for step in steps), fsum(sum(parts) for parts in seconds)
    drafting, verifying, _ = np.mean(seconds, axis=0)
    return Outcome(
        speedup=tokens / batch * plain / total,
        expected_accepted_length=tokens / (batch * len(steps)),
        verified_tokens=sum(step.rows for step in steps) / len(steps),
        draft_ms=float(1e3 * drafting),
        verify_ms=float(1e3 * verifying),
        draft_levels=sum(len(step.widths) for step in steps) / len(steps),
    )
