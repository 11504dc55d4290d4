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

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], keep: bool = False) -> None:
        """Args:
        tokenizer: the model's.
        stops: the strings.
        keep: True cuts behind the string, False before it.
        """
        self._stream = TextStream(tokenizer)
        self._stops, self._keep = tuple(stops), keep
        self.cut: str | None = None

    def push(self, token: int, wanted: bool = True) -> bool:
        """Adds a token; True once it completes a stop string, `cut` being the text up to there.

        Args:
            token: the output's next token.
            wanted: False passes over strings that this token completes.
        """
        piece = self._stream.push(token)
        if not piece or not wanted:
            return False
        text = self._stream.text
        known = len(text) - len(piece)  # what ended before was not wanted
        found = [(text.find(stop, max(0, known - len(stop) + 1)), len(stop)) for stop in self._stops]
        places = [(place, length) for place, length in found if place >= 0]
        if not places:
            return False
        place, length = min(places)
        self.cut = text[: place + length if self._keep else place]
        return True
