"""How one request is to be sampled and when it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from smartree.errors import InputError


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

    def __post_init__(self) -> None:
        for name, kinds in (
            ("max_tokens", int),
            ("top_k", int),
            ("temperature", (int, float)),
            ("top_p", (int, float)),
        ):
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

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.temperature == 0


def _whole(kinds: object) -> str:
    return " without a fraction" if kinds is int else ""
