"""Who begins after steps without drafts, on made-up costs."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.cost import CostModel, CostPoint, CostTable, DraftCost, DraftPoint
from smartree.policies.beginning import Beginning
from smartree.policies.growth import Growth
from smartree.policies.level_costs import LevelCosts
from smartree.policies.price import Savings

PLAIN = 0.01
ROOTS = np.arange(16)


def made(row: float = 1e-5, saved: float = 0.0) -> tuple[Beginning, LevelCosts, Growth]:
    """A drafter that pays 1 ms and `row` for every row it reads; `saved` seconds for looks."""
    points = tuple(DraftPoint(16, rows, 1e-3 + row * rows) for rows in (1, 16, 4096))
    model = CostModel(CostTable([CostPoint(16, 16, 0, PLAIN)]), DraftCost(levels=points))
    levels, growth, looks = LevelCosts(model), Growth(), Savings(0.01)
    looks.seconds = saved
    levels.begin(16)
    return Beginning(levels, growth, looks), levels, growth


def asked(beginning: Beginning, unread: int, answer: bool = False) -> list[float]:
    """What the first level has to be worth; empty if nobody asks."""
    found: list[float] = []

    def pays(seconds: float) -> bool:
        found.append(seconds)
        return answer

    beginning.roots(ROOTS, 16, unread, PLAIN, pays)
    return found


def test_a_level_must_repay_the_backlog_within_twenty_steps_and_four_percent_of_a_step() -> None:
    beginning, levels, _ = made()
    level, usual = levels.of(0, 16), levels.unread.usual(16)
    assert asked(beginning, 1000) == [pytest.approx(level + 1e-5 * (1000 - usual) / 20 + 0.04 * PLAIN)]


def test_with_growth_known_there_is_as_much_time_as_the_backlog_took_to_grow() -> None:
    beginning, levels, growth = made()
    growth.expect([[0.7, 0.1, 0.05, 0.02]])
    level, usual = levels.of(0, 16), levels.unread.usual(16)
    assert asked(beginning, 1600) == [pytest.approx(level + 1e-5 * (1600 - usual) / 100 + 0.04 * PLAIN)]


def test_one_step_in_four_asks() -> None:
    beginning, _, _ = made()
    assert [len(asked(beginning, 100)) for _ in range(9)] == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    beginning.pass_by(3)
    assert len(asked(beginning, 100)) == 1


def test_everybody_begins_where_it_pays_else_scouts_if_they_can_be_afforded() -> None:
    beginning, levels, _ = made()
    assert len(beginning.roots(ROOTS, 16, 100, PLAIN, lambda seconds: True)) == 16
    assert not levels.scouting
    beginning, levels, _ = made()
    assert len(beginning.roots(ROOTS, 16, 100, PLAIN, lambda seconds: False)) == 0
    beginning, levels, _ = made(saved=1.0)
    assert beginning.roots(ROOTS, 16, 100, PLAIN, lambda seconds: False).tolist() == [0, 1]
    assert levels.scouting
