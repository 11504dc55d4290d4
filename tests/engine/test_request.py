"""Ends of a request: stop tokens, stop strings, lengths, the window."""

from __future__ import annotations

import pytest

from smartree.engine.request import Request
from smartree.engine.text import StopText
from smartree.sampling_params import SamplingParams
from tests.tiny import character_tokenizer


def a_request(prompt: list[int], params: SamplingParams, stop_ids: frozenset[int] = frozenset()) -> Request:
    watch = StopText(character_tokenizer(), params.stop) if params.stop else None
    return Request(0, list(prompt), len(prompt), params, Request.seed_for(params), stop_ids, watch)


def test_tokens_are_taken_up_to_the_most_wanted() -> None:
    request = a_request([1, 2], SamplingParams(max_tokens=5))
    assert request.accept([3, 4], window=100) == 2
    assert (request.finish_reason, request.remaining, request.output) == (None, 3, [3, 4])
    assert request.accept([5, 6, 7, 8, 9], window=100) == 3
    assert (request.finish_reason, request.output) == ("length", [3, 4, 5, 6, 7])


def test_a_stop_token_ends_in_the_middle_of_an_accepted_path_and_is_kept() -> None:
    request = a_request([1, 9], SamplingParams(max_tokens=5), frozenset({9, 8}))
    assert request.accept([3, 9, 4, 8], window=100) == 2
    assert (request.finish_reason, request.output) == ("stop", [3, 9])


def test_a_stop_token_as_the_last_one_wanted_is_a_stop() -> None:
    request = a_request([1], SamplingParams(max_tokens=2), frozenset({9}))
    request.accept([3, 9], window=3)
    assert request.finish_reason == "stop"


def test_the_window_ends_a_request() -> None:
    request = a_request([1, 2, 3], SamplingParams(max_tokens=50))
    assert request.accept([4, 5, 6, 7], window=6) == 3
    assert (request.finish_reason, len(request.tokens)) == ("length", 6)


def test_a_stop_string_ends_it_with_the_token_that_completes_it() -> None:
    tokenizer = character_tokenizer()
    spell = tokenizer("ab.c!x")["input_ids"]
    request = a_request([5], SamplingParams(max_tokens=50, stop=("c!",)))
    assert request.accept(spell[:4], window=100) == 4
    assert request.finish_reason is None
    assert request.accept(spell[4:], window=100) == 1
    assert request.finish_reason == "stop"
    assert request.stop_text is not None
    assert request.stop_text.cut == "ab."


def test_the_prompt_is_not_searched_for_stops() -> None:
    tokenizer = character_tokenizer()
    prompt = tokenizer("abc!")["input_ids"]
    request = a_request(prompt, SamplingParams(max_tokens=3, stop=("c!",)), frozenset({prompt[0]}))
    request.accept(tokenizer("d")["input_ids"], window=100)
    assert request.finish_reason is None


def test_seeds_are_those_asked_for_or_fresh() -> None:
    assert Request.seed_for(SamplingParams(seed=0)) == 0
    fresh = {Request.seed_for(SamplingParams()) for _ in range(20)}
    assert len(fresh) == 20
    assert all(0 <= seed < 2**63 for seed in fresh)  # may be given back


def test_requests_are_told_apart_by_identity() -> None:
    one, two = a_request([1], SamplingParams(seed=0)), a_request([1], SamplingParams(seed=0))
    assert one != two
    assert len({one, two}) == 2


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_drafter_sees_the_temperature(temperature: float) -> None:
    assert a_request([1], SamplingParams(temperature=temperature)).temperature == temperature
