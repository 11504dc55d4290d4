"""One request on its way through the engine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from smartree.engine.stats import RequestStats
from smartree.engine.text import StopText
from smartree.sampling_params import SamplingParams
from smartree.verify.logprobs import TokenLogprob
from smartree.verify.noise import derived_seed
from smartree.verify.sampler import Draw
from smartree.verify.shaping import Shaping


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
        shaping: what changes its logits; None if nothing does.
        finish_reason: "stop", "length", "timeout" or "guide" once it has ended.
        stats: what happened to it.
        logprobs: of its output, if asked for.
        deadline: reading of the engine's clock at which it ends as it is; None if it has none.
        guided: tokens of its output for which its guide could be followed; None while it can.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    stop_text: StopText | None = None
    shaping: Shaping | None = None
    finish_reason: str | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    deadline: float | None = None
    guided: int | None = None

    @staticmethod
    def seed_for(params: SamplingParams) -> int:
        """The seed that the parameters name, or a fresh one."""
        return params.seed if params.seed is not None else secrets.randbits(62)

    @staticmethod
    def spread(params: SamplingParams) -> list[SamplingParams]:
        """The parameters of each of the n outputs of a prompt; the first keeps the seed."""
        if params.n == 1:
            return [params]
        seed = Request.seed_for(params)
        return [replace(params, n=1, seed=derived_seed(seed, number)) for number in range(params.n)]

    @property
    def temperature(self) -> float:
        """Sampling temperature, 0 for argmax."""
        return self.params.temperature

    @property
    def takes_best(self) -> bool:
        """True if its next token is the one with the largest logit as the model gives it."""
        return self.params.greedy and self.shaping is None

    @property
    def output(self) -> list[int]:
        """Generated tokens."""
        return self.tokens[self.prompt_length :]

    @property
    def remaining(self) -> int:
        """Tokens it may still generate."""
        return self.params.max_tokens - (len(self.tokens) - self.prompt_length)

    def draw(self, row: int, path: Sequence[int]) -> Draw:
        """What draws the token at a row of the logits, behind the committed tokens and `path`."""
        output = [*self.tokens[self.prompt_length :], *path] if self.shaping is not None else ()
        return Draw(row, len(self.tokens) + len(path), self.params, self.seed, self.shaping, output)

    def note_guide(self, path: Sequence[int]) -> None:
        """Its next token behind `path` was drawn: remembers it if the guide could not be followed up to there."""
        if self.guided is None and self.shaping is not None and self.shaping.failure is not None:
            self.guided = len(self.tokens) - self.prompt_length + len(path)

    def accept(self, tokens: Sequence[int], window: int) -> int:
        """Appends verified tokens until one ends the request; returns how many were taken."""
        for count, token in enumerate(tokens, 1):
            if self.guided is not None and len(self.tokens) - self.prompt_length >= self.guided:
                self.finish_reason = "guide"
                return count - 1
            self.tokens.append(token)
            enough = len(self.tokens) - self.prompt_length > self.params.min_tokens
            if token in self.stop_ids or (self.stop_text is not None and self.stop_text.push(token, enough)):
                self.finish_reason = "stop"
                return count
            if self.remaining == 0 or len(self.tokens) >= window:
                self.finish_reason = "length"
                return count
        return len(tokens)
