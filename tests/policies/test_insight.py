"""What a first level tells about planted nodes."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.policies.insight import Insight
from smartree.tree.forest import Candidates, Forest


def forest_with(*probabilities: float) -> Forest:
    forest = Forest(np.zeros(1, np.int64))
    if probabilities:
        roots, ranks, chances = (
            np.zeros(len(probabilities), np.int64),
            np.arange(len(probabilities)),
            np.array(probabilities),
        )
        forest.plant(Candidates(roots, ranks, chances, ranks, ranks, chances))
    return forest


def level(insight: Insight, forest: Forest, foreseen: float, worth: float) -> float:
    """A first level of a step; what was expected of it beforehand."""
    insight.begin()
    expected = insight.foresee(forest, foreseen)
    insight.learn(worth)
    return expected


def test_what_levels_were_worth_more_than_foreseen_is_expected_of_the_next_one() -> None:
    insight = Insight()
    assert level(insight, forest_with(0.6), 3.0, 3.5) == 0.0
    assert 0 < level(insight, forest_with(0.6), 3.0, 3.5) < 0.2  # one level is not yet a rule
    for _ in range(200):
        level(insight, forest_with(0.6), 3.0, 3.5)
    for probabilities, expected in (((0.6,), 0.5), ((0.5, 0.4), 1.0), ((0.1,), 0.0), ((), 0.0)):
        insight.begin()
        assert insight.foresee(forest_with(*probabilities), 3.0) == pytest.approx(expected, abs=0.01)
    for _ in range(300):
        level(insight, forest_with(0.6), 3.0, 2.9)
    assert insight.foresee(forest_with(0.6), 3.0) == pytest.approx(-0.1, abs=0.01)


def test_what_nodes_turn_out_to_be_does_not_change_how_many_were_asked_about() -> None:
    insight = Insight()
    for _ in range(200):
        forest = forest_with(0.3, 0.3, 0.3)
        insight.begin()
        insight.foresee(forest, 3.0)
        forest.revise(np.array([1, 2, 3]), np.array([0.9, 0.01, 0.01]))
        insight.learn(3.3)
    assert level(insight, forest_with(0.3, 0.3, 0.3), 3.0, 3.0) == pytest.approx(0.3, abs=0.01)


def test_a_level_that_nobody_asked_about_in_its_step_teaches_nothing() -> None:
    insight = Insight()
    insight.begin()
    insight.foresee(forest_with(0.6), 2.0)
    insight.begin()
    for _ in range(50):
        insight.learn(9.0)
    assert insight.foresee(forest_with(0.6), 3.0) == 0.0
