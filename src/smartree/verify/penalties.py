"""Penalties on tokens that a text holds already, as OpenAI and vLLM define them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from smartree.sampling_params import SamplingParams

_ROOM = 64  # distinct tokens to begin with


class Penalties:
    """Counts the distinct tokens of one text as it grows; only these are touched in a row of logits.

    The repetition penalty reads prompt and output; presence and frequency read the output alone.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int]) -> None:
        self._params = params
        self._places: dict[int, int] = {}
        self._tokens, self._counts = np.empty(_ROOM, np.int64), np.zeros(_ROOM, np.float64)
        for token in prompt:
            self._place(token)

    def push(self, token: int) -> None:
        """The output grows by a token."""
        place = self._place(token)  # first, as it may move the counts
        self._counts[place] += 1

    def apply(self, scores: torch.Tensor) -> None:
        """Changes a row of logits [vocabulary] in place."""
        used = len(self._places)
        tokens = torch.from_numpy(self._tokens[:used]).to(scores.device)
        counts = torch.from_numpy(self._counts[:used]).to(scores)
        mine = scores[tokens]
        strength = self._params.repetition_penalty
        mine = torch.where(mine > 0, mine / strength, mine * strength)
        mine -= self._params.frequency_penalty * counts + self._params.presence_penalty * counts.sign()
        scores[tokens] = mine

    def _place(self, token: int) -> int:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            self._tokens, self._counts = (
                np.concatenate([buffer, np.zeros_like(buffer)]) for buffer in (self._tokens, self._counts)
            )
        self._tokens[place] = token
        return place
