"""Makes what changes requests' logits, for one model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from smartree.errors import InputError
from smartree.sampling_params import SamplingParams
from smartree.verify.grammar import GrammarCompiler
from smartree.verify.shaping import Shaping


class Shaper:
    """Knows the vocabulary and the tokenizer that a request's shaping needs."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        vocab_size: int,
        eos_ids: Collection[int],
        device: torch.device,
    ) -> None:
        """Args:
        tokenizer: the model's; guides need it.
        vocab_size: entries of its logits.
        eos_ids: its end-of-sequence tokens.
        device: where the logits are.
        """
        self._vocab_size, self._device = vocab_size, device
        self._grammars = GrammarCompiler(tokenizer, vocab_size, eos_ids)

    def shaping(self, params: SamplingParams, prompt: Sequence[int], stop_ids: Collection[int]) -> Shaping | None:
        """A request's shaping at the beginning of its output; None if its logits stay as they are.

        Raises:
            InputError: the parameters name tokens that the model does not have, or a guide that cannot be followed.
        """
        if not params.shapes_logits:
            return None
        foreign = next((token for token in params.biases if not 0 <= token < self._vocab_size), None)
        if foreign is not None:
            raise InputError(
                f"logit_bias names token {foreign}, which is not in the vocabulary of {self._vocab_size} tokens."
            )
        grammar = self._grammars.compile(params.guide) if params.guide is not None else None
        return Shaping(params, prompt, stop_ids, self._vocab_size, self._device, grammar)
