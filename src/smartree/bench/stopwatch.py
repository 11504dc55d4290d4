"""A policy under a stopwatch: the engine's own counts do not tell deciding from other bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from smartree.policies.base import Policy, StepOutcome, StepState
from smartree.tree.forest import Candidates, Forest, Ints


class TimedPolicy:
    """Decides as the policy inside does, and adds up the seconds that this takes."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = policy.name
        self.inspects_tokens, self.speculates = policy.inspects_tokens, policy.speculates
        self.predicted_seconds = policy.predicted_seconds
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        """What some policies have and others do not, such as a price."""
        return getattr(self.policy, name)

    def least_planted(self, state: StepState) -> float | None:
        """As the policy does."""
        return self.policy.least_planted(state)

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """As the policy does."""
        start = perf_counter()
        roots = self.policy.begin(state, forest)
        self.seconds += perf_counter() - start
        return roots

    def wants_level(self, forest: Forest, frontier: Ints) -> bool:
        """As the policy does."""
        start = perf_counter()
        wanted = self.policy.wants_level(forest, frontier)
        self.seconds += perf_counter() - start
        return wanted

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """As the policy does."""
        start = perf_counter()
        frontier = self.policy.grow(forest, candidates)
        self.seconds += perf_counter() - start
        return frontier

    def select(self, forest: Forest) -> Ints:
        """As the policy does; what it predicts of the pass is known from here on."""
        start = perf_counter()
        selected = self.policy.select(forest)
        self.seconds += perf_counter() - start
        self.predicted_seconds = self.policy.predicted_seconds
        return selected

    def observe(self, outcome: StepOutcome) -> None:
        """As the policy does."""
        start = perf_counter()
        self.policy.observe(outcome)
        self.seconds += perf_counter() - start

    def learned(self) -> Mapping[str, Any]:
        """As the policy does."""
        return self.policy.learned()

    def resume(self, learned: Mapping[str, Any]) -> None:
        """As the policy does."""
        self.policy.resume(learned)
