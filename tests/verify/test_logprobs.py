"""Log-probabilities against softmax written out."""

from __future__ import annotations

import math

import pytest
import torch

from smartree.verify.logprobs import token_logprobs

ROWS = [[1.0, 0.2, -0.5, 0.7], [0.0, 3.0, 3.5, -2.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [0, 2, 4, 9])
def test_chosen_and_best_tokens(count: int, dtype: torch.dtype) -> None:
    logits = torch.tensor(ROWS, dtype=dtype)
    rounding = 1e-6 if dtype != torch.float64 else 1e-14
    for row, one, token in zip(logits.tolist(), token_logprobs(logits, [2, 1], count), [2, 1], strict=True):
        total = math.log(sum(math.exp(logit) for logit in row))
        assert one.token_id == token
        assert one.logprob == pytest.approx(row[token] - total, abs=rounding)
        order = sorted(range(4), key=lambda token: -row[token])[:count]
        assert [token for token, _ in one.top] == order
        assert [value for _, value in one.top] == pytest.approx([row[token] - total for token in order], abs=rounding)


def test_they_are_plain_numbers() -> None:
    (one,) = token_logprobs(torch.tensor(ROWS[:1]), [3], 1)
    assert [type(part) for part in (one.token_id, one.logprob, *one.top[0])] == [int, float, int, float]
