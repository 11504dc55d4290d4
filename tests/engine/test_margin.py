"""Where two outputs part, and how close the decision was there."""

from __future__ import annotations

import math

import pytest
import torch

from smartree import LLM
from smartree.engine import margin
from smartree.engine.margin import first_difference_margin, near_tie, plain_logits
from tests.tiny import VOCAB, random_prompts, tiny_model

PROMPT = random_prompts([9])[0]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(tiny_model(), policy="none", drafter="none", max_batch=2)


def expected_logits(tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = tiny_model()(torch.tensor([tokens])).logits
    return logits[0, -1]


def test_logits_are_those_of_a_plain_pass(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.testing.assert_close(plain_logits(llm, PROMPT), expected_logits(PROMPT))
    monkeypatch.setattr(margin, "_CHUNK", 4)  # a long text goes in pieces
    torch.testing.assert_close(plain_logits(llm, PROMPT), expected_logits(PROMPT))


def test_first_difference(llm: LLM) -> None:
    found = first_difference_margin(llm, PROMPT, [5, 6, 7, 8], [5, 6, 9, 8])
    assert found is not None
    logits = expected_logits([*PROMPT, 5, 6])
    assert found[0] == 2
    assert found[1] == pytest.approx(abs(float(logits[7] - logits[9])))


def test_equal_outputs_have_none(llm: LLM) -> None:
    assert first_difference_margin(llm, PROMPT, [5, 6], [5, 6]) is None
    assert first_difference_margin(llm, PROMPT, [], []) is None


def test_output_that_just_ends(llm: LLM) -> None:
    found = first_difference_margin(llm, PROMPT, [5, 6], [5])
    assert found is not None
    assert found[0] == 1
    assert math.isnan(found[1])
    assert not near_tie(llm, found[1])


def test_a_real_output_is_far_from_a_wrong_one(llm: LLM) -> None:
    right = llm.generate(PROMPT)[0].token_ids
    wrong = [*right[:3], (right[3] + 1) % VOCAB, *right[4:]]
    found = first_difference_margin(llm, PROMPT, right, wrong)
    assert found is not None
    assert found[0] == 3
    assert not near_tie(llm, found[1])
    assert near_tie(llm, 0.0)
