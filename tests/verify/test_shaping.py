"""Bias, penalties and least length in one row, and who is touched by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smartree.errors import InputError
from smartree.sampling_params import SamplingParams
from smartree.verify.sampler import Draw, Sampler
from smartree.verify.shaper import Shaper
from smartree.verify.shaping import Shaping

CPU = torch.device("cpu")
SHAPER = Shaper(None, 6, frozenset({5}), CPU)
ROW = [0.5, 2.0, -1.0, 0.0, 1.0, 3.0]


def shaping(prompt: list[int] | None = None, stop_ids: frozenset[int] = frozenset({5}), **settings: Any) -> Shaping:
    made = SHAPER.shaping(SamplingParams(**settings), prompt or [], stop_ids)
    assert made is not None
    return made


def shaped(how: Shaping, output: list[int]) -> list[float]:
    row = torch.tensor(ROW)
    how.apply(row, output)
    return row.tolist()


def test_a_bias_is_added_to_its_tokens() -> None:
    assert shaped(shaping(logit_bias={4: 2.5, 0: -100}), []) == [-99.5, 2.0, -1.0, 0.0, 3.5, 3.0]


def test_a_bias_comes_before_the_penalties() -> None:
    assert shaped(shaping([1], logit_bias={1: 2.0}, repetition_penalty=2.0), [])[1] == 2.0
    assert shaped(shaping(logit_bias={1: 2.0}, presence_penalty=1.5, frequency_penalty=0.25), [1, 1])[1] == 2.0


def test_ends_are_suppressed_until_there_are_enough_tokens() -> None:
    how = shaping(min_tokens=2, stop_ids=frozenset({5, 3, 1000}))
    for output in ([], [1]):
        assert shaped(how, output) == [0.5, 2.0, -1.0, -torch.inf, 1.0, -torch.inf]
    assert shaped(how, [1, 1]) == ROW


def test_a_text_that_grows_gives_what_the_whole_text_gives_at_once() -> None:
    params: dict[str, Any] = {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.5}
    grown, text = shaping([0, 1], **params), [4, 4, 2, 0]
    for end in (0, 1, 3, 4):
        assert shaped(grown, text[:end]) == shaped(shaping([0, 1], **params), text[:end])
    assert shaped(grown, text) == shaped(grown, text)  # asked again, nothing is counted twice


def test_a_step_that_was_cut_short_is_drawn_again() -> None:
    params: dict[str, Any] = {"frequency_penalty": 1.0, "repetition_penalty": 1.5}
    how = shaping([0, 4], **params)
    shaped(how, [1, 2, 2, 4])
    assert shaped(how, [1, 2]) == shaped(shaping([0, 4], **params), [1, 2])
    assert shaped(how, [1, 2, 2]) == shaped(shaping([0, 4], **params), [1, 2, 2])


def test_requests_that_ask_for_nothing_have_no_shaping() -> None:
    for params in (SamplingParams(), SamplingParams(temperature=1.0, top_k=3, top_p=0.5, min_p=0.1, logprobs=3, n=2)):
        assert SHAPER.shaping(params, [1], {5}) is None


@pytest.mark.parametrize("token", [-1, 6, 1000])
def test_a_bias_on_a_token_that_does_not_exist_is_refused(token: int) -> None:
    with pytest.raises(InputError, match=f"logit_bias names token {token}, which is not in the vocabulary of 6 tokens"):
        shaping(logit_bias={token: 1.0})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_shaped_row_leaves_the_logits_and_its_neighbours_alone(dtype: torch.dtype) -> None:
    logits = torch.tensor([ROW, ROW, ROW], dtype=dtype)
    before, params = logits.clone(), SamplingParams(logit_bias={2: 9.0})
    draws = [
        Draw(0, 3, SamplingParams(), 0),
        Draw(1, 3, params, 0, SHAPER.shaping(params, [], {5})),
        Draw(2, 3, params, 0),
    ]
    assert Sampler(6, CPU).draw(logits, draws) == [5, 2, 5]
    assert torch.equal(logits, before)


def test_sampled_tokens_are_drawn_from_the_changed_logits() -> None:
    params = SamplingParams(temperature=1.0, logit_bias=dict.fromkeys((0, 1, 2, 3, 5), -100.0), top_k=4, min_p=0.01)
    draws = [Draw(0, 3, params, seed, SHAPER.shaping(params, [], {5})) for seed in range(50)]
    assert Sampler(6, CPU).draw(torch.tensor([ROW]), draws) == [4] * 50
