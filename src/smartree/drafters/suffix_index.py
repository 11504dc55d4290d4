"""Where in a request's own text its latest tokens have occurred before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smartree.errors import InputError

_LONGEST_HASHED = 3
_LONGEST_MATCH = 16
_MOST_CHECKED = 12


@dataclass(frozen=True, slots=True)
class Match:
    """An earlier place where the text's end occurs.

    Attributes:
        position: index of the token that followed.
        length: tokens that agree, counted backwards.
    """

    position: int
    length: int


class SuffixIndex:
    """Positions of every n-gram of up to 3 tokens; longer matches are found by comparing backwards."""

    def __init__(self, shortest: int = 1) -> None:
        """Args:
        shortest: tokens that a match must have, 1 to 3; shorter n-grams are not kept.

        Raises:
            InputError: it is not that.
        """
        if not 1 <= shortest <= _LONGEST_HASHED:
            raise InputError(f"The shortest match is {shortest}; it must be 1 to {_LONGEST_HASHED} tokens.")
        self._shortest = shortest
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the text."""
        text, places = self._tokens, self._places
        for token in tokens:
            text.append(token)
            end = len(text)
            for size in range(self._shortest, min(_LONGEST_HASHED, end) + 1):
                places.setdefault(tuple(text[end - size :]), []).append(end)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Sequence[int]:
        """The text."""
        return self._tokens

    def matches(self, most: int) -> list[Match]:
        """Up to `most` earlier places, longest match first, then the most recent."""
        text = self._tokens
        end = len(text)
        found: dict[int, int] = {}
        for size in range(min(_LONGEST_HASHED, end), self._shortest - 1, -1):
            places = self._places[tuple(text[end - size :])]
            for position in reversed(places[-1 - _MOST_CHECKED : -1]):  # the last place is the end itself
                if position not in found:
                    found[position] = self._length(position, size)
            if len(found) >= most:
                break
        ranked = sorted(found.items(), key=lambda item: (-item[1], -item[0]))
        return [Match(position, length) for position, length in ranked[:most]]

    def _length(self, position: int, known: int) -> int:
        text, end = self._tokens, len(self._tokens)
        length = known
        while length < _LONGEST_MATCH and length < position and text[position - 1 - length] == text[end - 1 - length]:
            length += 1
        return length
