"""What time is worth, apart for steps where much was found for nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from smartree.policies.prices import Prices
from smartree.tree.forest import Candidates, Forest


def forest_with(*probabilities: float, batch: int = 2) -> Forest:
    forest = Forest(np.zeros(batch, np.int64))
    if probabilities:
        roots, ranks = np.zeros(len(probabilities), np.int64), np.arange(len(probabilities))
        chances = np.array(probabilities)
        forest.plant(Candidates(roots, ranks, chances, ranks, ranks, chances))
    return forest


def test_steps_where_much_is_found_have_a_price_of_their_own() -> None:
    prices = Prices()
    for _ in range(20):
        prices.begin(forest_with())
        prices.now.update(2, 2.0, 1.0)
        prices.begin(forest_with(0.9))
        prices.now.update(2, 6.0, 1.0)
    prices.begin(forest_with(0.2, 0.1))  # too little to count on
    assert prices.now is prices.plain
    assert prices.now.at(2) == pytest.approx(2.0)
    prices.begin(forest_with(0.6, 0.3))
    assert prices.now.at(2) == pytest.approx(6.0)
    assert prices.plain.at(2) == pytest.approx(2.0)
    assert prices.highest(2) == pytest.approx(6.0)
    prices.begin(forest_with(0.4, batch=1))
    assert prices.now is not prices.plain  # of one request that is much, of two it was not
    other = Prices()
    other.load_json(json.loads(json.dumps(prices.to_json())))
    for forest in (forest_with(), forest_with(0.9)):
        prices.begin(forest)
        other.begin(forest)
        assert other.now.at(2) == pytest.approx(prices.now.at(2))
    with pytest.raises(KeyError):
        other.load_json({"plain": []})


def test_before_a_kind_has_been_seen_often_enough_the_other_price_stands_in() -> None:
    prices = Prices()
    prices.begin(forest_with(0.9))
    assert prices.at(2) is None
    assert prices.highest(2) is None
    for _ in range(20):
        prices.begin(forest_with())
        prices.now.update(2, 2.0, 1.0)
    prices.begin(forest_with(0.9))
    assert prices.at(2) == pytest.approx(2.0)
