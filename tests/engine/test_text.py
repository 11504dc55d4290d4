"""Text as it comes, and stop strings in it."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from smartree.engine.text import StopText, TextStream
from tests.tiny import character_tokenizer


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that most characters of the world are split over tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def spaced_tokenizer() -> PreTrainedTokenizerFast:
    """Words whose spaces appear only between them, as in SentencePiece vocabularies."""
    words = ["<eos>", "▁one", "▁two", "▁three", "s", "."]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<eos>"))
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


@pytest.mark.parametrize("text", ["plain words, 12 + 3", "Überraschung für Zoë", "数学とEmoji 🙂🙃 done", "", "🙂"])
def test_pieces_make_the_text_and_no_character_comes_in_halves(text: str) -> None:
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokenizer(text)["input_ids"]]
    assert "".join(pieces) == stream.text == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_spaces_between_words_are_kept() -> None:
    tokenizer = spaced_tokenizer()
    tokens = [1, 2, 4, 5, 3, 5]
    stream = TextStream(tokenizer)
    assert "".join(stream.push(token) for token in tokens) == tokenizer.decode(tokens) == "one twos. three."


def test_special_tokens_have_no_text() -> None:
    tokenizer = character_tokenizer()
    stream = TextStream(tokenizer)
    spell = tokenizer("ab")["input_ids"]
    assert [stream.push(token) for token in (0, spell[0], 1, spell[1], 1)] == ["", "a", "", "b", ""]


def test_a_character_that_never_becomes_whole_does_not_hold_the_rest_back() -> None:
    tokenizer = byte_tokenizer()
    half = tokenizer("é")["input_ids"][:1]
    stream = TextStream(tokenizer)
    for token in [*half, *tokenizer("ab")["input_ids"]]:
        stream.push(token)
    assert stream.text == tokenizer.decode([*half, *tokenizer("ab")["input_ids"]])
    assert stream.text.endswith("ab")


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Characters needed until one of the strings has appeared, and the text before it."""
    for end in range(1, len(text) + 1):
        places = [place for place in (text[:end].find(stop) for stop in stops) if place >= 0]
        if places:
            return end, text[: min(places)]
    return None


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("one two three", (" t",)),
        ("one two three", ("thr", "two th")),
        ("aaaaab", ("aab",)),
        ("abcabcabd", ("abd",)),
        ("hello", ("hello",)),
        ("hello", ("h",)),
        ("hello", ("x", "lo", "ll")),
        ("hello", ("xyz",)),
        ("a\n\nb", ("\n\n",)),
    ],
)
def test_stop_strings_across_tokens(text: str, stops: tuple[str, ...]) -> None:
    tokenizer = byte_tokenizer()
    watch = StopText(tokenizer, stops)
    expected = first_stop(text, stops)
    for place, token in enumerate(tokenizer(text)["input_ids"], 1):
        if watch.push(token):
            assert expected == (place, watch.cut)
            return
    assert expected is None
    assert watch.cut is None


def test_stop_strings_in_random_texts() -> None:
    draw = random.Random(0)
    tokenizer = byte_tokenizer()
    found = 0
    for _ in range(150):
        text = "".join(draw.choice("abé🙂") for _ in range(draw.randint(1, 25)))
        stops = tuple(
            "".join(draw.choice("abé🙂") for _ in range(draw.randint(1, 4))) for _ in range(draw.randint(1, 3))
        )
        watch = StopText(tokenizer, stops)
        cut = next((watch.cut for token in tokenizer(text)["input_ids"] if watch.push(token)), None)
        expected = first_stop(text, stops)
        assert cut == (expected[1] if expected else None), (text, stops)
        found += expected is not None
    assert found > 50


def test_a_token_of_several_characters_is_cut_inside() -> None:
    watch = StopText(spaced_tokenizer(), ("hr",))
    assert not watch.push(1)
    assert watch.push(3)
    assert watch.cut == "one t"


def test_the_string_may_stay_in_the_text() -> None:
    tokenizer = character_tokenizer()
    watch = StopText(tokenizer, ("c!", "b"), keep=True)
    assert [watch.push(token) for token in tokenizer("ac!")["input_ids"]] == [False, False, True]
    assert watch.cut == "ac!"


def test_strings_that_end_before_they_are_wanted_are_passed_over() -> None:
    tokenizer = character_tokenizer()
    watch = StopText(tokenizer, ("bc", "longer than that", "e"))
    fates = [watch.push(token, place > 2) for place, token in enumerate(tokenizer("abcdbc")["input_ids"])]
    assert fates == [False] * 5 + [True]
    assert watch.cut == "abcd"
    spanning = StopText(tokenizer, ("bc",))
    assert [spanning.push(token, place > 1) for place, token in enumerate(tokenizer("abc")["input_ids"])][-1]
