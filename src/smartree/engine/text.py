"""Text from tokens, piece by piece, and the stop strings in it."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_INCOMPLETE = "\ufffd"  # what a tokenizer decodes an unfinished character to


class TextStream:
    """Decodes tokens as they come; a character split over tokens appears once it is whole."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = 0  # tokens from here on are decoded again, because joining depends on neighbours
        self._shown = 0  # tokens whose text is out
        self.text = ""

    def push(self, token: int) -> str:
        """Adds a token; returns the text that became certain."""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._start : self._shown])
        after = self._decode(self._tokens[self._start :])
        if after.endswith(_INCOMPLETE) or len(after) <= len(before):
            return ""
        piece = after[len(before) :]
        self._start, self._shown = self._shown, len(self._tokens)
        self.text += piece
        return piece

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


class StopText:
    """Finds the first stop string in a growing text, also across tokens and steps."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self._stream = TextStream(tokenizer)
        self._stops = tuple(stops)
        self._longest = max(len(stop) for stop in stops)
        self.cut: str | None = None

    def push(self, token: int) -> bool:
        """Adds a token; True once a stop string has appeared, `cut` being the text before it."""
        piece = self._stream.push(token)
        if not piece:
            return False
        text = self._stream.text
        start = max(0, len(text) - len(piece) - self._longest + 1)
        places = [place for place in (text.find(stop, start) for stop in self._stops) if place >= 0]
        if not places:
            return False
        self.cut = text[: min(places)]
        return True
