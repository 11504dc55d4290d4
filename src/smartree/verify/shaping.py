"""What changes a request's logits before temperature and filters: bias, penalties, least length, grammar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from smartree.sampling_params import SamplingParams
from smartree.verify.grammar import Grammar
from smartree.verify.penalties import Penalties


class Shaping:
    """One request's logits processors and what they remember of its text.

    A walk asks only for rows whose path is accepted, so the texts that a request's rows come with only ever grow:
    nothing is rolled back, in trees as in plain decoding. Only a step that was cut short (Ctrl-C) begins anew.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        stop_ids: Iterable[int],
        vocab_size: int,
        device: torch.device,
        grammar: Grammar | None = None,
    ) -> None:
        """Args:
        params: the request's settings.
        prompt: its prompt.
        stop_ids: tokens that end it, suppressed until `min_tokens`.
        vocab_size: entries of a row.
        device: of the rows.
        grammar: what the output has to match, at its beginning.
        """
        self._params, self._prompt = params, tuple(prompt)
        self._grammar, self._penalties = grammar, self._fresh_penalties()
        self._biased = torch.tensor(list(params.biases), dtype=torch.int64, device=device)
        self._bias = list(params.biases.values())
        known = sorted(token for token in stop_ids if 0 <= token < vocab_size)
        self._stops = torch.tensor(known, dtype=torch.int64, device=device)
        self._read = 0  # tokens of the output that penalties and grammar know

    def apply(self, scores: torch.Tensor, output: Sequence[int]) -> None:
        """Changes a row of logits in place.

        Args:
            scores: [vocabulary] floats.
            output: the tokens generated before the one that this row is for: the committed ones and the path to it.
        """
        self._advance(output)
        if self._bias:
            scores[self._biased] += scores.new_tensor(self._bias)
        if self._penalties is not None:
            self._penalties.apply(scores)
        allowed = None if self._grammar is None else self._grammar.allowed(scores.device)
        if allowed is not None:
            scores.masked_fill_(~allowed, -torch.inf)
        if len(output) < self._params.min_tokens and not self._only_stops(allowed):
            scores[self._stops] = -torch.inf

    @property
    def failure(self) -> str | None:
        """Why the guide could not be followed up to the row that `apply` changed last; None if it could."""
        return None if self._grammar is None else self._grammar.failure

    def _advance(self, output: Sequence[int]) -> None:
        if len(output) < self._read:
            self._penalties, self._read = self._fresh_penalties(), 0
            if self._grammar is not None:
                self._grammar.restart()
        for token in output[self._read :]:
            if self._penalties is not None:
                self._penalties.push(token)
            if self._grammar is not None:
                self._grammar.push(token)
        self._read = len(output)

    def _fresh_penalties(self) -> Penalties | None:
        params = self._params
        wanted = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
        return Penalties(params, self._prompt) if wanted else None

    def _only_stops(self, allowed: torch.Tensor | None) -> bool:
        """True if a finished grammar allows nothing but the end, which then comes before `min_tokens`."""
        return allowed is not None and int(allowed.sum()) == int(allowed[self._stops].sum())
