"""Drafting steps without drafter and engine: what design section 6 says they do, on made-up acceptance laws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smartree.cost import CostModel, CostPoint, CostTable, DraftCost
from smartree.policies import Policy, StepOutcome, StepState
from smartree.tree import Candidates, Forest
from smartree.tree.forest import Floats, Ints

Propose = Callable[[Forest, Ints], Candidates]
ROOMY = 1000
"""A depth limit that never binds."""


def state_of(batch: int, *, depth: int = ROOMY, context: int = 0, extra_tokens: int = 0) -> StepState:
    return StepState(batch, context, np.full(batch, depth, np.int64), extra_tokens)


def cost_of(
    batch: int, seconds: Sequence[float] | Floats, draft: DraftCost | None = None, overhead: float = 0.0
) -> CostModel:
    """A cost model measured at one batch size: seconds[i] of a pass that verifies i nodes."""
    points = [CostPoint(batch, batch + nodes, 0, float(value)) for nodes, value in enumerate(seconds)]
    return CostModel(CostTable(points), draft or DraftCost(), overhead)


def same_children(*probabilities: float) -> Propose:
    """Every node gets children that are accepted with these probabilities."""

    def propose(forest: Forest, frontier: Ints) -> Candidates:
        ranks = np.tile(np.arange(len(probabilities)), len(frontier))
        return Candidates(
            np.repeat(frontier, len(probabilities)),
            ranks,
            np.tile(np.asarray(probabilities, np.float64), len(frontier)),
            ranks,
            np.full(len(ranks), -1, np.int64),
            np.zeros(len(ranks)),
        )

    return propose


def nothing_found(forest: Forest, frontier: Ints) -> Candidates:
    """A drafter without an idea, as an n-gram lookup on new text."""
    return Candidates.empty()


@dataclass(frozen=True)
class Step:
    """One step: what was drafted and chosen, and what the cost model says it took."""

    state: StepState
    forest: Forest
    selected: Ints
    levels: int
    draft_seconds: float
    seconds: float

    @property
    def expected_tokens(self) -> float:
        return self.state.batch + float(self.forest.path[self.selected].sum())


def draft(policy: Policy, cost: CostModel, state: StepState, propose: Propose) -> Step:
    """Drafts and selects as the engine does, and adds up the modelled time without asking the policy."""
    forest = Forest(np.zeros(state.batch, np.int64))
    frontier = policy.begin(state, forest)
    levels, draft_seconds = 0, 0.0
    while policy.wants_level(forest, frontier):
        if cost.draft.by_level:
            draft_seconds += cost.draft.level_seconds(state.batch, len(frontier))
        elif levels == 0:
            draft_seconds += cost.draft.seconds_per_step
        levels += 1
        frontier = policy.grow(forest, propose(forest, frontier))
    selected = policy.select(forest)
    assert forest.is_closed(selected)
    verify = float(cost.verify(state.batch, state.batch + len(selected) + state.extra_tokens, state.context))
    widest = 1 + int(np.bincount(forest.request[selected], minlength=1).max())
    verify += float(cost.unevenness(state.batch, state.batch + len(selected), widest, state.context))
    return Step(state, forest, selected, levels, draft_seconds, cost.overhead + draft_seconds + verify)


def committed_tokens(step: Step, random: np.random.Generator) -> int:
    """Tokens a step commits if each node is accepted with its probability, and at most one child of a node is."""
    chosen = set(step.selected.tolist())
    tokens = 0
    for root in range(step.state.batch):
        node: int | None = root
        while node is not None:
            tokens += 1
            children = [int(child) for child in np.flatnonzero(step.forest.parent == node) if int(child) in chosen]
            draw = random.random() - np.cumsum(step.forest.probability[children])
            node = next((child for child, rest in zip(children, draw, strict=True) if rest < 0), None)
    return tokens


def run(policy: Policy, cost: CostModel, state: StepState, propose: Propose, steps: int, seed: int = 0) -> list[Step]:
    """Lets the policy draft and learn for some steps."""
    random, done = np.random.default_rng(seed), []
    for _ in range(steps):
        step = draft(policy, cost, state, propose)
        tokens = committed_tokens(step, random)
        policy.observe(StepOutcome(state, step.forest, step.selected, tokens, step.seconds))
        done.append(step)
    return done


def throughput(steps: Sequence[Step]) -> float:
    """Expected tokens over modelled seconds."""
    return sum(step.expected_tokens for step in steps) / sum(step.seconds for step in steps)
