"""A depth schedule over long generations, around any policy (from the summaries of the SMART paper)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smartree.errors import InputError
from smartree.policies.base import Policy, StepOutcome, StepState
from smartree.tree.forest import Candidates, Forest, Ints


@dataclass(frozen=True, slots=True)
class DepthSchedule:
    """Depth limits within each cycle of generated tokens.

    Attributes:
        cycle: tokens after which the full tree comes back.
        full: tokens of a cycle without a limit.
        middle: tokens of a cycle up to which `first_depth` holds; `second_depth` after that.
        first_depth: levels allowed first.
        second_depth: levels allowed then.
    """

    cycle: int = 100
    full: int = 10
    middle: int = 50
    first_depth: int = 5
    second_depth: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.full <= self.middle <= self.cycle or self.cycle < 1:
            raise InputError("A depth schedule needs 0 <= full <= middle <= cycle and a cycle of at least 1 token.")
        if min(self.first_depth, self.second_depth) < 0:
            raise InputError("A depth schedule needs depths of 0 or more.")

    def limits(self, generated: Ints) -> Ints:
        """[B] most levels for requests that have generated that many tokens."""
        place = generated % self.cycle
        limited = np.where(place < self.middle, self.first_depth, self.second_depth)
        return np.where(place < self.full, np.iinfo(np.int64).max, limited)


class ScheduledPolicy:
    """Any policy under a depth schedule."""

    def __init__(self, policy: Policy, schedule: DepthSchedule | None = None) -> None:
        self.policy, self.schedule = policy, schedule or DepthSchedule()
        self.name = f"{policy.name}+schedule"
        self.inspects_tokens, self.speculates = policy.inspects_tokens, policy.speculates

    @property
    def predicted_seconds(self) -> float:
        """What the inner policy's cost model said of the last selection."""
        return self.policy.predicted_seconds

    def least_planted(self, state: StepState) -> float | None:
        """As the inner policy."""
        return self.policy.least_planted(state)

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """Starts a step with the depth limits of the schedule."""
        if len(state.generated) == state.batch:
            limits = np.minimum(state.depth_limits, self.schedule.limits(state.generated))
            state = replace(state, depth_limits=limits)
        return self.policy.begin(state, forest)

    def wants_level(self, forest: Forest, frontier: Ints) -> bool:
        """As the inner policy."""
        return self.policy.wants_level(forest, frontier)

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """As the inner policy."""
        return self.policy.grow(forest, candidates)

    def select(self, forest: Forest) -> Ints:
        """As the inner policy."""
        return self.policy.select(forest)

    def observe(self, outcome: StepOutcome) -> None:
        """As the inner policy."""
        self.policy.observe(outcome)

    def learned(self) -> Mapping[str, Any]:
        """As the inner policy."""
        return self.policy.learned()

    def resume(self, learned: Mapping[str, Any]) -> None:
        """As the inner policy."""
        self.policy.resume(learned)
