"""What a drafter's word about looked-up tokens is worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartree.drafters.second_opinion import NOT_NAMED, SecondOpinion


def rate_of(opinion: SecondOpinion, rate: float, rank: int, probability: float) -> float:
    rates = np.array([rate])
    cells = opinion.cells(rates, np.array([rank]), np.array([probability]))
    return float(opinion.rates(cells, rates)[0])


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.6, 0.7, 0.9])
def test_agreement_counts_for_a_token_and_the_more_the_surer_the_drafter_is(rate: float) -> None:
    opinion = SecondOpinion()
    agreed = [rate_of(opinion, rate, 0, probability) for probability in (0.3, 0.6, 0.9, 0.99)]
    assert agreed == sorted(agreed)
    assert agreed[-1] > rate
    if rate < 0.8:
        assert rate_of(opinion, rate, NOT_NAMED, 0.0) < rate
        assert rate_of(opinion, rate, 2, 0.05) < rate


@given(st.floats(0, 1), st.integers(-1, 9), st.floats(0, 1))
def test_rates_are_probabilities_and_rise_with_the_lookup_s_within_a_cell(
    rate: float, rank: int, probability: float
) -> None:
    opinion = SecondOpinion()
    here = rate_of(opinion, rate, rank, probability)
    assert 0 < here < 1
    cells = opinion.cells(np.array([rate]), np.array([rank]), np.array([probability]))
    assert float(opinion.rates(cells, np.array([min(rate + 0.01, 1.0)]))[0]) >= here


@pytest.mark.parametrize("truth", [0.2, 0.7])
def test_what_came_of_a_cell_is_learned_and_others_stay(truth: float) -> None:
    opinion, fresh, random = SecondOpinion(), SecondOpinion(), np.random.default_rng(0)
    rates = np.full(1, 0.6)
    cells = opinion.cells(rates, np.array([0]), np.array([0.9]))
    for hit in random.random(1500) < truth:
        opinion.learn(cells, rates, np.array([hit]))
    assert rate_of(opinion, 0.6, 0, 0.9) == pytest.approx(truth, abs=0.05)
    for rate, rank, probability in ((0.6, NOT_NAMED, 0.0), (0.6, 0, 0.99), (0.7, 0, 0.9)):
        assert rate_of(opinion, rate, rank, probability) == rate_of(fresh, rate, rank, probability)


def test_a_probability_counts_for_the_first_choice_alone() -> None:
    opinion = SecondOpinion()
    assert rate_of(opinion, 0.6, 1, 0.45) == rate_of(opinion, 0.6, 3, 0.01)
    assert rate_of(opinion, 0.6, NOT_NAMED, 0.0) == rate_of(opinion, 0.6, NOT_NAMED, 0.99)
