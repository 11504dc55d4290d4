"""Guides as grammars over tokens, by llguidance: which tokens may follow, given the output so far."""

from __future__ import annotations

import json
from collections.abc import Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from smartree.errors import InputError
from smartree.guide import Guide

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Between two parts of a JSON text. Unbounded, as the library has it, a model may write spaces until its tokens end.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,20}"
_KEPT = 16  # compiled guides


class Grammar:
    """A guide's state at the end of one output.

    Attributes:
        failure: why the guide cannot be followed any further: its grammar became too complex; None while it can.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._beginning, self._matcher, self._vocab_size = matcher, matcher.deep_copy(), vocab_size
        self._ended = False
        self.failure: str | None = None

    def push(self, token: int) -> None:
        """The output grows by a token that was allowed; what follows its end is ignored, as nobody keeps it."""
        if self._ended or self.failure is not None:
            return
        taken = self._matcher.try_consume_tokens([token])
        self._note_health()
        # A finished grammar takes the end of sequence, and stop tokens of the user's own behind it are not text.
        self._ended = taken == 0

    def restart(self) -> None:
        """The output is empty again."""
        self._matcher = self._beginning.deep_copy()  # `reset` would leave a failed one failed
        self._ended, self.failure = False, None

    def allowed(self, device: torch.device) -> torch.Tensor:
        """[vocabulary] True for tokens that may follow; end-of-sequence tokens where the output may end.

        All of them behind a failure: nobody keeps what is drawn there.
        """
        bits = b"" if self._ended or self.failure is not None else self._matcher.compute_bitmask()
        self._note_health()
        if not bits or self.failure is not None:
            return torch.ones(self._vocab_size, dtype=torch.bool, device=device)
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)
        return torch.from_numpy(mask).to(device)

    def _note_health(self) -> None:
        if self.failure is None and self._matcher.is_error():
            self.failure = _first_line(self._matcher.get_error())


class GrammarCompiler:
    """Makes grammars for one tokenizer; the latest guides are kept compiled."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos_ids: Collection[int]) -> None:
        """Args:
        tokenizer: the model's.
        vocab_size: entries of its logits.
        eos_ids: tokens that may follow a complete output.
        """
        self._source, self._vocab_size = tokenizer, vocab_size
        self._eos_ids = sorted(token for token in eos_ids if 0 <= token < vocab_size)
        self._tokenizer: LLTokenizer | None = None
        self._compiled: dict[Guide, LLMatcher] = {}

    def compile(self, guide: Guide) -> Grammar:
        """The grammar of a guide, at the beginning of an output.

        Raises:
            InputError: llguidance is not installed, the tokenizer does not do, or the guide holds what llguidance does
                not know.
        """
        if self._tokenizer is None:
            self._tokenizer = self._read_tokenizer()
        matcher = self._compiled.pop(guide, None)
        if matcher is None:
            matcher = _compile(guide, self._tokenizer)
        self._compiled[guide] = matcher  # the latest one last
        if len(self._compiled) > _KEPT:
            del self._compiled[next(iter(self._compiled))]
        return Grammar(matcher, self._vocab_size)

    def _read_tokenizer(self) -> LLTokenizer:
        if find_spec("llguidance") is None:
            raise InputError('Guided decoding needs llguidance; `pip install "smartree[guided]"` brings it.')
        if self._source is None or not self._eos_ids:
            lacking = "tokenizer" if self._source is None else "end-of-sequence token"
            raise InputError(f"Guided decoding needs a model with a {lacking}, and this one has none; leave guide out.")
        from llguidance.hf import from_tokenizer

        try:
            return from_tokenizer(self._source, n_vocab=self._vocab_size, eos_token=self._eos_ids)  # type: ignore[arg-type]
        except ValueError as error:
            message = f"Guided decoding cannot use this model's tokenizer: {_first_line(str(error))}"
            raise InputError(message) from None


def _compile(guide: Guide, tokenizer: LLTokenizer) -> LLMatcher:
    from llguidance import LLMatcher

    if guide.json_schema is not None:
        what, options = "JSON schema", {"whitespace_pattern": _WHITESPACE}
        source = LLMatcher.grammar_from_json_schema(guide.json_schema, overrides=options)  # type: ignore[arg-type]
    elif guide.regex is not None:
        what, source = f"regex {guide.regex!r}", LLMatcher.grammar_from_regex(guide.regex)
    else:
        what = "choice"
        texts = (json.dumps(text, ensure_ascii=False) for text in guide.choice or ())
        source = LLMatcher.grammar_from_lark(f"start: {' | '.join(texts)}")
    matcher = LLMatcher(tokenizer, source, log_level=0)
    if matcher.is_error():
        raise InputError(f"The guide's {what} cannot be used: {_first_line(matcher.get_error())}")
    return matcher


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return (lines[0] if lines else "no reason given")[:300]
