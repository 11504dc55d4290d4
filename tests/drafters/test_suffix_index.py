"""Lookup in a text against a search that compares every place."""

from __future__ import annotations

import random

import pytest

from smartree.drafters.suffix_index import Match, SuffixIndex

LONGEST = 16  # a match is not followed further back


def naive(text: list[int]) -> list[Match]:
    """Every earlier place that agrees with the end of the text, longest first, then the most recent."""
    found = []
    for position in range(1, len(text)):
        length = 0
        while length < min(position, LONGEST) and text[position - 1 - length] == text[-1 - length]:
            length += 1
        if length:
            found.append(Match(position, length))
    return sorted(found, key=lambda match: (-match.length, -match.position))


def indexed(text: list[int]) -> SuffixIndex:
    index = SuffixIndex()
    index.extend(text)
    return index


@pytest.mark.parametrize("alphabet", [3, 4, 6, 30])
def test_short_texts_are_searched_completely(alphabet: int) -> None:
    draw = random.Random(alphabet)
    for _ in range(300):
        # Few enough places that none is left out.
        text = [draw.randrange(alphabet) for _ in range(draw.randint(1, 12))] * draw.randint(1, 2)
        text = text[: min(len(text), 12)] if alphabet < 4 else text
        for most in (1, 2, 4, 8):
            assert indexed(text).matches(most) == naive(text)[:most]


@pytest.mark.parametrize("alphabet", [1, 2, 5, 40])
def test_matches_in_long_texts_are_real_ordered_and_as_long_as_they_can_be(alphabet: int) -> None:
    draw = random.Random(alphabet)
    for _ in range(60):
        text = [draw.randrange(alphabet) for _ in range(draw.randint(50, 400))]
        matches = indexed(text).matches(4)
        every = naive(text)
        assert set(matches) <= set(every)
        assert matches == sorted(matches, key=lambda match: (-match.length, -match.position))
        assert len(matches) == min(4, len(every))


def test_the_latest_places_are_looked_at_first() -> None:
    text = [7, 1] * 100 + [9, 7]
    matches = indexed(text).matches(3)
    assert [match.position for match in matches] == [199, 197, 195]


def test_growing_piece_by_piece_is_the_same_as_at_once() -> None:
    draw = random.Random(0)
    text = [draw.randrange(4) for _ in range(200)]
    pieces = SuffixIndex()
    start = 0
    while start < len(text):
        step = draw.randint(1, 7)
        pieces.extend(text[start : start + step])
        start += step
        assert len(pieces) == min(start, len(text))
        assert pieces.matches(4) == indexed(text[:start]).matches(4)
    assert list(pieces.tokens) == text


@pytest.mark.parametrize("text", [[], [5], [1, 2, 3, 4]])
def test_nothing_to_find(text: list[int]) -> None:
    assert indexed(text).matches(4) == []


def test_a_text_may_repeat_into_its_own_end() -> None:
    # aaaa: the end occurs at every place before, the latest with all tokens in front of it.
    assert indexed([3, 3, 3, 3]).matches(4) == [Match(3, 3), Match(2, 2), Match(1, 1)]
