"""What a user gets back."""

from __future__ import annotations

from dataclasses import dataclass

from smartree.engine.stats import RequestStats
from smartree.verify.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request.

    Attributes:
        prompt: as given; None if token ids were given.
        prompt_token_ids: tokens of the prompt.
        text: the output without special tokens, cut at a stop string; "" without a tokenizer.
        token_ids: generated tokens, the one that ended the output included.
        finish_reason: "stop", "length", "timeout" or "guide" (a guide that became too complex to be followed).
        seed: of the request's noise: give it again to get the same output.
        stats: steps, drafted, verified, accepted, tau, ...
        logprobs: one entry for each of token_ids; None if not asked for.
        others: the prompt's other outputs, if `n` asked for more than one.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: str
    seed: int
    stats: RequestStats
    logprobs: list[TokenLogprob] | None = None
    others: tuple[RequestOutput, ...] = ()

    @property
    def outputs(self) -> tuple[RequestOutput, ...]:
        """All n outputs of the prompt, this one first."""
        return (self, *self.others)
