"""Learned acceptance rates: laws of the table and of a request's own factor, not their constants."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.drafters.acceptance import AcceptanceTable, Trust

LENGTHS, DEPTHS, RANKS = range(1, 25), range(1, 10), range(6)


def rate(table: AcceptanceTable, length: int, depth: int = 1, rank: int = 0) -> float:
    return table.rate(table.cell(length, depth, rank))


def teach(table: AcceptanceTable, cell: int, outcomes: list[bool]) -> None:
    table.learn(np.full(len(outcomes), cell), np.array(outcomes))


def test_at_first_a_longer_match_is_trusted_more() -> None:
    table = AcceptanceTable()
    for depth in DEPTHS:
        rates = [rate(table, length, depth) for length in LENGTHS]
        assert rates == sorted(rates)
    assert rate(table, 8) > 2 * rate(table, 1)


def test_at_first_an_accepted_parent_lengthens_the_match_and_a_later_sibling_is_less_likely() -> None:
    table = AcceptanceTable()
    for length in LENGTHS:
        assert rate(table, length, 2) >= rate(table, length, 1)
        assert rate(table, length, 1, rank=1) < rate(table, length, 1, rank=0)


def test_every_cell_is_a_probability_inside_the_table() -> None:
    table = AcceptanceTable()
    cells = {table.cell(length, depth, rank) for length in LENGTHS for depth in DEPTHS for rank in RANKS}
    assert cells <= set(range(len(table.rates())))
    assert np.all((table.rates() > 0) & (table.rates() < 1))


@pytest.mark.parametrize("truth", [0.05, 0.5, 0.95])
def test_rates_approach_what_is_observed(truth: float) -> None:
    table = AcceptanceTable()
    cell = table.cell(3, 2, 0)
    others = np.delete(table.rates(), cell)
    teach(table, cell, (np.random.default_rng(0).random(3000) < truth).tolist())
    assert table.rate(cell) == pytest.approx(truth, abs=0.05)
    assert np.array_equal(np.delete(table.rates(), cell), others)  # one cell's news is no other's


def test_one_hit_raises_and_one_miss_lowers() -> None:
    table = AcceptanceTable()
    cell = table.cell(4, 1, 0)
    start = table.rate(cell)
    teach(table, cell, [True])
    up = table.rate(cell)
    teach(table, cell, [False, False])
    assert table.rate(cell) < start < up < 1


def test_old_observations_fade() -> None:
    table = AcceptanceTable(window=100)
    cell = table.cell(2, 1, 0)
    teach(table, cell, [True] * 1000)
    teach(table, cell, [False] * 300)
    assert table.rate(cell) < 0.1


def test_a_request_like_the_average_keeps_the_rates() -> None:
    trust = Trust()
    cell = AcceptanceTable.cell(2, 1, 0)
    assert trust.factor(cell) == 1
    for place in range(400):
        trust.learn(cell, 0.25, place % 4 == 0)
    assert trust.factor(cell) == pytest.approx(1, abs=0.2)


def test_a_request_that_accepts_less_is_trusted_less_and_one_that_accepts_more_like_the_average() -> None:
    """Of many requests the luckiest would be verified most, for what they promise and do not keep."""
    cell = AcceptanceTable.cell(2, 1, 0)
    good, bad = Trust(), Trust()
    for _ in range(50):
        good.learn(cell, 0.3, True)
        bad.learn(cell, 0.3, False)
    assert 0 < bad.factor(cell) < 0.5
    assert good.factor(cell) == 1
