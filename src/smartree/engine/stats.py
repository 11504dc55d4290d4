"""Counts and times that users ask for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class RequestStats:
    """What speculation did for one request.

    Attributes:
        steps: decoding steps it took part in.
        tokens: tokens these steps committed.
        drafted: nodes drafted.
        verified: nodes verified.
        accepted: nodes accepted.
        observed_by_depth: steps that put a node at depth d + 1 to the test: verified, all its ancestors accepted.
        accepted_by_depth: steps that accepted one there; over the former it is the conditional acceptance rate.
        sizes: steps by number of verified nodes.
        reused: tokens of its text whose cache rows were another request's.
        preemptions: times it gave up its cache rows and read its text again.
    """

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    observed_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    reused: int = 0
    preemptions: int = 0

    @property
    def tau(self) -> float:
        """Mean accepted length: tokens committed per step."""
        return self.tokens / self.steps if self.steps else 0.0

    def add_step(self, drafted: int, verified_depth: int, verified: int, accepted: int, tokens: int) -> None:
        """Counts one step.

        Args:
            drafted: nodes drafted for the request.
            verified_depth: deepest depth at which a child of the accepted path was verified.
            verified: nodes verified.
            accepted: nodes accepted.
            tokens: tokens committed.
        """
        self.steps += 1
        self.tokens += tokens
        self.drafted += drafted
        self.verified += verified
        self.accepted += accepted
        self.sizes[verified] = self.sizes.get(verified, 0) + 1
        while len(self.observed_by_depth) < verified_depth:
            self.observed_by_depth.append(0)
            self.accepted_by_depth.append(0)
        for depth in range(verified_depth):
            self.observed_by_depth[depth] += 1
            self.accepted_by_depth[depth] += depth < accepted

    def to_json(self) -> dict[str, Any]:
        """The counts as a JSON object."""
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "drafted": self.drafted,
            "verified": self.verified,
            "accepted": self.accepted,
            "tau": round(self.tau, 4),
            "observed_by_depth": self.observed_by_depth,
            "accepted_by_depth": self.accepted_by_depth,
            "sizes": {str(size): count for size, count in sorted(self.sizes.items())},
            "reused": self.reused,
            "preemptions": self.preemptions,
        }


@dataclass(slots=True)
class EngineStats:
    """What the engine's steps did and where their time went.

    Attributes:
        steps: passes of the target.
        decode_steps: passes that carried at least one decoding request.
        requests_decoded: sum over these of the requests decoding.
        tokens: tokens generated, first ones included.
        first_tokens: tokens that came from a prompt's own pass; reading a preempted request's text again gives one too.
        read_tokens: tokens of prompts, and of preempted requests' texts, that passes read.
        reused_tokens: tokens that needed no reading, because another request's rows were copied.
        preemptions: requests that gave up their cache rows.
        verified_rows: N, summed over decode steps.
        draft_levels: levels drafted.
        seconds: wall time of all steps.
        target_seconds: of target passes and drawing tokens.
        draft_seconds: inside the drafter.
        compared_steps: steps whose pass the cost model predicted: no prompt tokens in them, no tree cut.
        compared_seconds: measured seconds of their passes.
        predicted_seconds: predicted seconds of their passes.
    """

    steps: int = 0
    decode_steps: int = 0
    requests_decoded: int = 0
    tokens: int = 0
    first_tokens: int = 0
    read_tokens: int = 0
    reused_tokens: int = 0
    preemptions: int = 0
    verified_rows: int = 0
    draft_levels: int = 0
    seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    compared_steps: int = 0
    compared_seconds: float = 0.0
    predicted_seconds: float = 0.0

    @property
    def bookkeeping_seconds(self) -> float:
        """Time outside the models: scheduling, policy, packing, committing, learning."""
        return self.seconds - self.target_seconds - self.draft_seconds

    @property
    def tau(self) -> float:
        """Tokens committed per request and decoding step."""
        return (self.tokens - self.first_tokens) / self.requests_decoded if self.requests_decoded else 0.0

    def add_step(
        self,
        *,
        requests: int,
        rows: int,
        levels: int,
        seconds: float,
        target_seconds: float,
        draft_seconds: float,
        predicted_seconds: float,
    ) -> None:
        """Counts one step; a `predicted_seconds` of nan is left out of the comparison."""
        self.steps += 1
        self.seconds += seconds
        self.target_seconds += target_seconds
        self.draft_seconds += draft_seconds
        if requests == 0:
            return
        self.decode_steps += 1
        self.requests_decoded += requests
        self.verified_rows += rows
        self.draft_levels += levels
        if predicted_seconds == predicted_seconds:
            self.compared_steps += 1
            self.compared_seconds += target_seconds
            self.predicted_seconds += predicted_seconds

    def to_json(self) -> dict[str, float]:
        """Counts and seconds as a JSON object."""
        return asdict(self) | {"tau": self.tau, "bookkeeping_seconds": self.bookkeeping_seconds}
