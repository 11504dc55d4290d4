"""Where policies and drafters meet: one step's trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from smartree.drafters.base import Drafter, DraftRequest
from smartree.errors import InputError
from smartree.policies.base import Policy, StepState
from smartree.policies.calibration import Calibration
from smartree.tree.forest import Forest, Ints, Proposal


@dataclass(frozen=True, slots=True)
class Draft:
    """The trees of a step.

    Attributes:
        forest: every node drafted.
        selected: ids of the nodes to verify.
        levels: levels drafted.
        seconds: spent inside the drafter.
        level_seconds: of these, what each level took, the last one too if it brought nothing new.
    """

    forest: Forest
    selected: Ints
    levels: int
    seconds: float
    level_seconds: tuple[float, ...] = ()


def draft_trees(
    policy: Policy,
    drafter: Drafter | None,
    calibration: Calibration,
    state: StepState,
    requests: Sequence[DraftRequest],
) -> Draft:
    """Drafts level by level while the policy wants another, then lets it select."""
    roots = np.array([request.tokens[-1] for request in requests], np.int64)
    forest = Forest(roots, drafter.proposal if drafter else Proposal.POINT_MASS)
    seconds, levels = 0.0, list[float]()
    least = policy.least_planted(state) if drafter is not None else None
    if drafter is not None and least is not None:
        begin = perf_counter()
        drafter.plant(requests, forest, state.depth_limits, least)
        seconds += perf_counter() - begin
    frontier = policy.begin(state, forest)
    if drafter is None or len(frontier) == 0:
        return Draft(forest, policy.select(forest), 0, seconds)
    sampled = np.array([request.temperature > 0 for request in requests])
    begin = perf_counter()
    drafter.begin(requests, forest)
    starting, grown = perf_counter() - begin, 0
    while grown < drafter.max_depth and policy.wants_level(forest, frontier):
        begin = perf_counter()
        candidates = drafter.expand(forest, frontier)
        levels.append(perf_counter() - begin + (0.0 if levels else starting))
        if len(candidates) == 0:
            break
        if not drafter.calibrated:
            candidates = calibration(forest, candidates, sampled)
        frontier = policy.grow(forest, candidates)
        grown += 1
    seconds += sum(levels) if levels else starting
    return Draft(forest, policy.select(forest), grown, seconds, tuple(levels))


def require_lossless(policy: Policy, drafter: Drafter | None) -> None:
    """Raises:
    InputError: the policy prunes by looking at tokens that were sampled, which would bias the output (design 4).
    """
    if drafter is not None and drafter.proposal is Proposal.SAMPLED and policy.inspects_tokens:
        raise InputError(
            f"Policy {policy.name!r} looks at the drafted tokens, which biases the output of the sampling drafter "
            f"{drafter.name!r}; use a drafter with deterministic proposals or policy none."
        )
