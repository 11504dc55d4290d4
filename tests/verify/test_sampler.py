"""Drawing tokens: filters as transformers applies them, and the law of the target."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from smartree.sampling_params import SamplingParams
from smartree.verify.sampler import Draw, Sampler, filtered_logits
from tests.verify.laws import agrees, law

CPU = torch.device("cpu")
LOGITS = [1.0, 0.2, -0.5, 0.7]
FILTERS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.7),
    SamplingParams(temperature=1.0, top_k=2),
    SamplingParams(temperature=1.0, top_p=0.7),
    SamplingParams(temperature=1.3, top_k=3, top_p=0.8),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, min_p=0.4),
    SamplingParams(temperature=1.5, min_p=0.4, top_k=3, top_p=0.9),
]


def theirs(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The same filters by transformers."""
    scores = TemperatureLogitsWarper(params.temperature)(None, logits)
    if params.min_p:
        scores = MinPLogitsWarper(params.min_p)(torch.empty(0), scores)  # type: ignore[arg-type]
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    return TopPLogitsWarper(params.top_p)(None, scores) if params.top_p < 1 else scores


@pytest.mark.parametrize("vocab", [4, 97, 5000])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (0, 1.0, 0.0),
        (3, 1.0, 0.0),
        (0, 1e-6, 0.0),
        (0, 0.3, 0.0),
        (0, 0.95, 0.0),
        (50, 0.9, 0.0),
        (4000, 0.999, 0.0),
        (0, 1.0, 0.05),
        (50, 0.9, 0.01),
        (0, 1.0, 1.0),
    ],
)
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_filters_keep_what_those_of_transformers_keep(
    vocab: int, temperature: float, top_k: int, top_p: float, min_p: float, spread: float
) -> None:
    logits = spread * torch.randn(20, vocab, generator=torch.Generator().manual_seed(vocab), dtype=torch.float64)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    mine, expected = filtered_logits(logits, [params] * 20), theirs(logits, params)
    assert torch.equal(torch.isfinite(mine), torch.isfinite(expected))
    kept = torch.isfinite(mine)
    assert torch.allclose(mine[kept], expected[kept], rtol=1e-12, atol=0)


def test_rows_with_different_settings_are_filtered_as_each_alone() -> None:
    logits = torch.randn(len(FILTERS) + 1, 2000, generator=torch.Generator().manual_seed(0))
    each = [*FILTERS, SamplingParams(temperature=0.9, top_k=1500, top_p=0.4)]
    together = filtered_logits(logits, each)
    for row, params in enumerate(each):
        assert torch.equal(together[row], filtered_logits(logits[row : row + 1], [params])[0])


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(temperature=1.0, top_k=2), [0, 1, 2]),  # the second and third best are equal
        (SamplingParams(temperature=1.0, top_k=1), [0]),
        (SamplingParams(temperature=1.0, top_p=0.5), [0, 1, 2]),
        (SamplingParams(temperature=1.0, top_k=4), [0, 1, 2, 3, 4]),
        (SamplingParams(temperature=1.0, min_p=0.6), [0, 1, 2]),
    ],
)
def test_equal_logits_are_kept_or_removed_together(params: SamplingParams, kept: list[int]) -> None:
    logits = torch.tensor([[2.0, 1.5, 1.5, 0.0, 0.0, -3.0]])
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 0, 5, 2, 4, 1]):
        scores = filtered_logits(logits[:, order], [params])[0]
        assert sorted(order[place] for place in torch.nonzero(torch.isfinite(scores)).flatten().tolist()) == kept


def test_half_precision_logits_are_filtered_in_single_precision() -> None:
    logits = torch.randn(3, 97, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    scores = filtered_logits(logits, [SamplingParams(temperature=0.7)] * 3)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, logits.float() / 0.7)


def test_temperature_zero_is_the_best_token_whatever_the_filters() -> None:
    logits = torch.randn(5, 97, generator=torch.Generator().manual_seed(1))
    greedy = SamplingParams(temperature=0.0, top_k=3, top_p=0.1, min_p=0.5)
    sampler = Sampler(97, CPU)
    alone = sampler.draw(logits, [Draw(row, 7, greedy, 0) for row in range(5)])
    assert alone == logits.argmax(-1).tolist()
    warm = SamplingParams(temperature=5.0)
    mixed = sampler.draw(logits, [Draw(row, 7, greedy if row % 2 else warm, row) for row in range(5)])
    assert mixed[1::2] == alone[1::2]
    assert mixed[::2] != alone[::2]


@pytest.mark.parametrize("temperature", [1e-5, 1e-8, 1e-40])
def test_a_temperature_near_zero_is_nearly_the_best_token(temperature: float) -> None:
    logits = 20 * torch.randn(50, 97, generator=torch.Generator().manual_seed(3))
    draws = [Draw(row, 7, SamplingParams(temperature=temperature, top_p=0.9), row) for row in range(50)]
    assert Sampler(97, CPU).draw(logits, draws) == logits.argmax(-1).tolist()


def test_the_first_of_equal_best_tokens_is_taken_alone_and_beside_sampled_rows() -> None:
    # bfloat16 logits tie often; a request must not depend on its company.
    logits = torch.zeros(2, 3000, dtype=torch.bfloat16)
    logits[:, [40, 41, 1777, 2999]] = 8.0
    sampler, greedy = Sampler(3000, CPU), SamplingParams()
    assert sampler.draw(logits, [Draw(0, 5, greedy, 0)]) == [40]
    draws = [Draw(0, 5, greedy, 0), Draw(1, 5, SamplingParams(temperature=1.0), 0)]
    assert sampler.draw(logits, draws)[0] == 40


def test_draws_name_their_rows_in_any_order_and_number() -> None:
    logits = torch.randn(4, 97, generator=torch.Generator().manual_seed(2))
    sampler = Sampler(97, CPU)
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        each = [sampler.draw(logits, [Draw(row, 3, params, 9)])[0] for row in range(4)]
        assert sampler.draw(logits, [Draw(row, 3, params, 9) for row in (2, 0)]) == [each[2], each[0]]
        assert sampler.draw(logits, [Draw(row, 3, params, 9) for row in (3, 1, 0, 2)]) == [
            each[row] for row in (3, 1, 0, 2)
        ]
        assert sampler.draw(logits, [Draw(1, 3, params, 9)] * 6) == [each[1]] * 6


def test_a_token_depends_on_its_own_seed_and_position_only() -> None:
    logits = torch.zeros(1, 1000)
    sampler, params = Sampler(1000, CPU), SamplingParams(temperature=1.0)
    alone = sampler.draw(logits, [Draw(0, 12, params, 5)])[0]
    together = sampler.draw(logits, [Draw(0, 11, params, 5), Draw(0, 12, params, 5), Draw(0, 12, params, 6)])
    assert together[1] == alone
    assert len({*together}) == 3


@pytest.mark.parametrize(
    ("along", "params"),
    [*(("seeds", params) for params in FILTERS), ("positions", FILTERS[0]), ("positions", FILTERS[5])],
)
def test_two_hundred_thousand_draws_follow_the_law(along: str, params: SamplingParams) -> None:
    count = 200_000
    sampler = Sampler(4, CPU)
    logits = torch.tensor([LOGITS])
    draws = [Draw(0, *((17, params, n) if along == "seeds" else (n, params, 17))) for n in range(count)]
    counts = np.bincount(sampler.draw(logits, draws), minlength=4)
    assert counts.sum() == count
    assert agrees(counts, law(LOGITS, params))


def test_the_law_test_would_notice_a_wrong_temperature() -> None:
    sampler = Sampler(4, CPU)
    draws = [Draw(0, 17, SamplingParams(temperature=1.05), seed) for seed in range(200_000)]
    counts = np.bincount(sampler.draw(torch.tensor([LOGITS]), draws), minlength=4)
    assert not agrees(counts, law(LOGITS, SamplingParams(temperature=1.0)))


def test_one_question_a_pass_gives_the_tokens_of_one_a_level() -> None:
    """On a GPU every row's best token is fetched at once; the device is only named here, the logits lie on the CPU."""
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(1))
    logits[3] = logits[5] = 1.0  # all equal: the first token
    at_once, by_level = Sampler(50, torch.device("cuda")), Sampler(50, CPU)
    for rows in ([0, 3], [5], [8, 1, 2]):
        draws = [Draw(row, 7, SamplingParams(), 0) for row in rows]
        assert at_once.draw(logits, draws) == by_level.draw(logits, draws)
    other = torch.randn(9, 50, generator=torch.Generator().manual_seed(2))  # the next pass
    draws = [Draw(row, 7, SamplingParams(), 0) for row in range(9)]
    assert at_once.draw(other, draws) == by_level.draw(other, draws) != at_once.draw(logits, draws)
