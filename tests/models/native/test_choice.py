"""Choices among logits equal those of torch, ties included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.drafters.proposing import top_children
from smartree.models.native.choice import argmax, likeliest, takes
from smartree.sampling_params import SamplingParams
from smartree.verify.sampler import Draw, Sampler
from tests.models.native.small import needs_kernels, threads

pytestmark = needs_kernels
SIZES = [1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 97, 127, 129, 1000]
FEW_VALUES = st.sampled_from([-3.0, -0.5, 0.0, 0.25, 2.0, 2.015625])  # so that there are ties


def logits_of(rows: int, size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(rows, size, generator=draw)).to(torch.bfloat16)


@pytest.mark.parametrize("size", SIZES)
def test_the_best_is_found_wherever_it_lies(size: int) -> None:
    for seed in range(5):
        logits = logits_of(4, size, seed)
        assert argmax(logits, [0, 1, 2, 3]) == logits.max(dim=-1).indices.tolist()
    for place in range(min(size, 140)):
        logits = torch.full((1, size), -2.0, dtype=torch.bfloat16)
        logits[0, place] = -1.0
        assert argmax(logits, [0]) == [place]


@given(st.lists(st.one_of(FEW_VALUES, st.just(-torch.inf)), min_size=1, max_size=150))
@settings(deadline=None, max_examples=200)
def test_the_first_of_equal_ones_is_taken(values: list[float]) -> None:
    logits = torch.tensor([values], dtype=torch.bfloat16)
    assert argmax(logits, [0]) == [values.index(max(values))]


@pytest.mark.parametrize("size", SIZES)
def test_nothing_but_minus_infinity(size: int) -> None:
    assert argmax(torch.full((2, size), -torch.inf, dtype=torch.bfloat16), [1]) == [0]


def test_rows_in_any_order_more_than_once_and_of_any_layout() -> None:
    logits = logits_of(5, 97)
    best = logits.max(dim=-1).indices
    rows = [4, 0, 0, 3]
    assert argmax(logits, rows) == best[rows].tolist()
    assert argmax(logits.T.contiguous().T, rows) == best[rows].tolist()
    assert argmax(logits[1:], [0]) == [int(best[1])]


def reference(logits: torch.Tensor, divisors: Sequence[float], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and probabilities by sorting, the first of equal logits first."""
    divided = logits.double() / torch.tensor(divisors, dtype=torch.float64)[:, None]
    order = torch.sort(logits.double(), dim=-1, descending=True, stable=True).indices[:, :count]
    return order, torch.softmax(divided, dim=-1).gather(1, order)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("size", SIZES)
def test_the_likeliest_and_their_probabilities(size: int, temperature: float) -> None:
    for count in {1, min(4, size), min(10, size), size if size <= 200 else 20}:
        logits = logits_of(3, size, seed=count)
        tokens, probabilities = likeliest(logits, [temperature] * 3, count)
        expected_tokens, expected = reference(logits, [temperature] * 3, count)
        assert tokens.tolist() == expected_tokens.tolist()
        np.testing.assert_allclose(probabilities, expected.numpy(), rtol=1e-5)
        if count == size:
            np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-5)


@given(st.lists(FEW_VALUES, min_size=1, max_size=150), st.data())
@settings(deadline=None, max_examples=200)
def test_of_equal_ones_the_first_comes_first(values: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values)))
    temperature = data.draw(st.sampled_from([1.0, 0.7, 1.3]))
    logits = torch.tensor([values], dtype=torch.bfloat16)
    tokens, probabilities = likeliest(logits, [temperature], count)
    expected_tokens, expected = reference(logits, [temperature], count)
    assert tokens.tolist() == expected_tokens.tolist()
    np.testing.assert_allclose(probabilities, expected.numpy(), rtol=1e-5)


def test_every_row_has_its_own_temperature_and_rows_do_not_matter_to_each_other() -> None:
    logits, temperatures = logits_of(5, 97), [0.05, 0.5, 1.0, 2.0, 0.1]
    tokens, probabilities = likeliest(logits, temperatures, 7)
    for row, temperature in enumerate(temperatures):
        alone = likeliest(logits[row : row + 1], [temperature], 7)
        assert np.array_equal(alone[0][0], tokens[row])
        assert np.array_equal(alone[1][0], probabilities[row])


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-40, 1e-320])
def test_hardly_any_temperature_makes_the_best_certain(
    temperature: float, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a float cannot hold its inverse."""
    if not kernels:
        monkeypatch.setattr("smartree.drafters.proposing.takes", lambda _logits: False)
    logits = logits_of(2, 97)
    candidates = top_children(np.arange(2), logits, [temperature, 0.0], 3)
    assert candidates.tokens[[0, 3]].tolist() == logits.max(dim=-1).indices.tolist()
    np.testing.assert_allclose(candidates.probabilities[:3], [1.0, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(candidates.probabilities[3:], reference(logits, [1.0, 1.0], 3)[1][1], rtol=1e-5)


def test_large_logits_do_not_overflow() -> None:
    logits = torch.tensor([[1e30, 3e38, -3e38, 0.0]], dtype=torch.bfloat16)
    tokens, probabilities = likeliest(logits, [1.0], 2)
    assert tokens.tolist() == [[1, 0]]
    assert probabilities.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("given", [None, 1])
def test_threads_change_nothing(given: int | None) -> None:
    logits, rows = logits_of(7, 1000), [6, 1, 3]
    with threads(2, given=given):
        best, likely = argmax(logits, rows), likeliest(logits, [0.7] * 7, 9)
    assert best == argmax(logits, rows)
    again = likeliest(logits, [0.7] * 7, 9)
    assert np.array_equal(likely[0], again[0])
    assert np.array_equal(likely[1], again[1])


@pytest.mark.parametrize(
    ("logits", "taken"),
    [
        (torch.zeros(1, 4, dtype=torch.bfloat16), True),
        (torch.zeros(1, 4), False),
        (torch.zeros(1, 4, dtype=torch.float64), False),
        (torch.zeros(1, 4, dtype=torch.bfloat16, device="meta"), False),
    ],
)
def test_only_bfloat16_on_a_cpu_is_taken(logits: torch.Tensor, taken: bool) -> None:
    assert takes(logits) == taken


def test_sampler_and_proposals_give_the_same_with_and_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of(6, 97)
    draws = [Draw(row, 3, SamplingParams(), 0) for row in (5, 2, 2, 0)]
    sampler, nodes = Sampler(97, logits.device), np.arange(6)
    table = np.random.default_rng(0).permutation(300)[:97]
    temperatures = [0.0, 1.0, 0.5, 0.0, 2.0, 1.0]
    tokens = sampler.draw(logits, draws)
    candidates = top_children(nodes, logits, temperatures, 1, table)
    for place in ("verify.sampler", "drafters.proposing"):
        monkeypatch.setattr(f"smartree.{place}.takes", lambda _logits: False)
    assert sampler.draw(logits, draws) == tokens
    theirs = top_children(nodes, logits, temperatures, 1, table)
    np.testing.assert_array_equal(candidates.tokens, theirs.tokens)
    np.testing.assert_allclose(candidates.probabilities, theirs.probabilities, rtol=1e-5)
