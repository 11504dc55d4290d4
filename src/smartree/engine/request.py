"""One request on its way through the engine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from smartree.engine.stats import RequestStats
from smartree.engine.text import StopText
from smartree.sampling_params import SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """Tokens and state of a request.

    Attributes:
        id: unique as long as the engine lives.
        tokens: prompt and output so far.
        prompt_length: tokens of the prompt.
        params: how to sample and when to end.
        seed: of its noise; drawn if the parameters name none.
        stop_ids: tokens that end it.
        stop_text: watches for stop strings; None if there are none.
        finish_reason: "stop", "length" or "timeout" once it has ended.
        stats: what happened to it.
        deadline: reading of the engine's clock at which it ends as it is; None if it has none.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    stop_text: StopText | None = None
    finish_reason: str | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    deadline: float | None = None

    @staticmethod
    def seed_for(params: SamplingParams) -> int:
        """The seed that the parameters name, or a fresh one."""
        return params.seed if params.seed is not None else secrets.randbits(62)

    @property
    def temperature(self) -> float:
        """Sampling temperature, 0 for argmax."""
        return self.params.temperature

    @property
    def output(self) -> list[int]:
        """Generated tokens."""
        return self.tokens[self.prompt_length :]

    @property
    def remaining(self) -> int:
        """Tokens it may still generate."""
        return self.params.max_tokens - (len(self.tokens) - self.prompt_length)

    def accept(self, tokens: Sequence[int], window: int) -> int:
        """Appends verified tokens until one ends the request; returns how many were taken."""
        for count, token in enumerate(tokens, 1):
            self.tokens.append(token)
            if token in self.stop_ids or (self.stop_text is not None and self.stop_text.push(token)):
                self.finish_reason = "stop"
                return count
            if self.remaining == 0 or len(self.tokens) >= window:
                self.finish_reason = "length"
                return count
        return len(tokens)
