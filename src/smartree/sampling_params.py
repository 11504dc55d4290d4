"""How one request is to be sampled and when it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from smartree.errors import InputError
from smartree.guide import Guide

_NUMBER = (int, float)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "max_tokens": int,
    "top_k": int,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "repetition_penalty": _NUMBER,
    "min_tokens": int,
    "n": int,
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request.

    Attributes:
        max_tokens: most tokens to generate, at least 1; the end-of-sequence token counts.
        temperature: 0 means argmax; otherwise logits are divided by it.
        top_k: keep the k largest logits (ties of the k-th included); 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches top_p; 1 keeps all.
        seed: the request's own noise; the same seed gives the same tokens alone or in a batch, with or
            without speculation. None draws a fresh seed.
        stop: strings that end the output; the text is cut before the string.
        stop_token_ids: token ids that end the output, besides the model's own end-of-sequence tokens.
        ignore_eos: go on past end-of-sequence tokens.
        min_p: keep tokens at least this share as likely as the likeliest one; 0 keeps all.
        presence_penalty: taken off the logit of every token that the output holds already, -2 to 2.
        frequency_penalty: taken off once for each time that the output holds it, -2 to 2.
        repetition_penalty: logits of tokens in prompt or output are divided by it if positive, else multiplied.
        logit_bias: added to the logits of these tokens; given as {token id: bias}, kept as pairs.
        min_tokens: no end by a token or stop string before this many tokens.
        logprobs: log-probabilities of the output's tokens and of the k best ones beside each; None gives none.
        n: outputs of the prompt; the first is the one that n=1 gives.
        include_stop_str_in_output: cut the text behind the stop string, not before it.
        guide: what the whole output has to match.

    Raises:
        InputError: a value is out of range.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    n: int = 1
    include_stop_str_in_output: bool = False
    guide: Guide | None = None

    def __post_init__(self) -> None:
        for name, kinds in _KINDS.items():
            if not isinstance(getattr(self, name), kinds):
                raise InputError(f"{name} is {getattr(self, name)!r}; it must be a number{_whole(kinds)}.")
        if self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; it must be at least 1.")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature is {self.temperature}; it must be 0 (argmax) or a positive number.")
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k}; it must be 0 (off) or a positive number.")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (off).")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; it must be between 0 and 2**63 - 1.")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if any(not text for text in stop):
            raise InputError("stop holds an empty string; remove it.")
        object.__setattr__(self, "stop", stop)
        tokens = (self.stop_token_ids,) if isinstance(self.stop_token_ids, int) else self.stop_token_ids
        object.__setattr__(self, "stop_token_ids", tuple(int(token) for token in tokens))
        object.__setattr__(self, "logit_bias", _pairs(self.logit_bias))
        self._check_shaping()

    def _check_shaping(self) -> None:
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min_p is {self.min_p}; it must be at least 0 (off) and at most 1.")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise InputError(f"{name} is {getattr(self, name)}; it must be between -2 and 2.")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise InputError(f"repetition_penalty is {self.repetition_penalty}; it must be above 0; 1 is off.")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise InputError(
                f"min_tokens is {self.min_tokens}; it must be between 0 and max_tokens, {self.max_tokens}."
            )
        if self.logprobs is not None and (not isinstance(self.logprobs, int) or self.logprobs < 0):
            raise InputError(f"logprobs is {self.logprobs}; it must be a count of tokens, or None for no logprobs.")
        if self.n < 1:
            raise InputError(f"n is {self.n}; it must be at least 1.")
        if self.guide is not None and self.ignore_eos:
            raise InputError("ignore_eos and guide contradict each other: a guided output ends; leave one out.")

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.temperature == 0

    @property
    def biases(self) -> dict[int, float]:
        """What is added to the logits of each token."""
        return dict(self.logit_bias)

    @property
    def shapes_logits(self) -> bool:
        """True if logits change before temperature and filters: what the drafter sees is not what is decoded then."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
            or self.logit_bias
            or self.min_tokens
            or self.guide is not None
        )


def _whole(kinds: object) -> str:
    return " without a fraction" if kinds is int else ""


def _pairs(bias: Mapping[int, float] | tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """The biases as pairs by token, so that settings can be compared and hashed."""
    try:
        entries = dict(bias)
        pairs = tuple(sorted((int(token), float(value)) for token, value in entries.items()))
    except (TypeError, ValueError):
        raise InputError(f"logit_bias is {bias!r}; it must be a dictionary of token ids and numbers.") from None
    for token, value in pairs:
        if not math.isfinite(value):
            raise InputError(f"logit_bias of token {token} is {value}; it must be finite (-100 all but forbids it).")
    return pairs
