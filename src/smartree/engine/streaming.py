"""The text of a running request, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from smartree.engine.output import RequestOutput
from smartree.engine.request import Request
from smartree.engine.stats import RequestStats
from smartree.engine.text import TextStream


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """What a step added to an output.

    Attributes:
        text: that became certain; it may lag behind the tokens, and is "" without a tokenizer.
        token_ids: new tokens.
        stats: of the request so far; it goes on counting.
        output: the whole output, with the last piece; None before.
    """

    text: str
    token_ids: list[int]
    stats: RequestStats
    output: RequestOutput | None = None


class OutputStream:
    """Follows one request and says what is new."""

    def __init__(self, request: Request, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Args:
        request: the one to follow.
        tokenizer: None gives tokens without text.
        """
        self.request = request
        self._text = TextStream(tokenizer) if tokenizer is not None else None
        # A stop string may still be growing in the last characters.
        self._held = max((len(stop) for stop in request.params.stop), default=1) - 1
        self._pushed = self._shown = 0

    def more(self) -> StreamPiece | None:
        """What came since the last time, of a request that has not ended; None if that is nothing."""
        tokens = self._new_tokens()
        piece = ""
        if self._text is not None:
            for token in tokens:
                self._text.push(token)
            ready = len(self._text.text) - self._held
            if ready > self._shown:
                piece = self._text.text[self._shown : ready]
                self._shown = ready
        return StreamPiece(piece, tokens, self.request.stats) if tokens else None

    def last(self, output: RequestOutput) -> StreamPiece:
        """The rest of a request that has ended."""
        return StreamPiece(output.text[self._shown :], self._new_tokens(), self.request.stats, output)

    def _new_tokens(self) -> list[int]:
        tokens = self.request.output[self._pushed :]
        self._pushed += len(tokens)
        return tokens
