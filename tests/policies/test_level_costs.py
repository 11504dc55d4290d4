"""What a level costs: the profile's time, what there is to read before the first one, and what the clock says."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.cost import CostModel, CostPoint, CostTable, DraftCost, DraftPoint
from smartree.policies import StepOutcome
from smartree.policies.level_costs import LevelCosts
from smartree.tree import Forest
from tests.policies.steps import state_of

TABLE = CostTable([CostPoint(8, 8, 0, 0.02), CostPoint(8, 64, 0, 0.03)])
ROWS = 0.5e-3  # a level takes 2 ms for 8 rows and 0.5 ms for each further one


def by_level() -> CostModel:
    return CostModel(TABLE, DraftCost(levels=(DraftPoint(8, 8, 2e-3), DraftPoint(8, 1008, 2e-3 + 1000 * ROWS))))


def costs_of(model: CostModel) -> LevelCosts:
    costs = LevelCosts(model)
    costs.begin(8)
    return costs


def outcome(tokens: int, *, draft: float = 0.0, rest: float = 0.0, prompt_tokens: int = 0) -> StepOutcome:
    """A step whose target pass took 20 ms."""
    state, forest = state_of(8, extra_tokens=prompt_tokens), Forest(np.zeros(8, np.int64))
    return StepOutcome(state, forest, np.empty(0, np.int64), tokens, 0.02 + draft + rest, 0.02, draft)


def test_a_constant_is_paid_with_the_first_level() -> None:
    costs = costs_of(CostModel(TABLE, DraftCost(0.25)))
    assert [costs.of(depth, 8) for depth in (0, 1, 5)] == [0.25, 0.0, 0.0]
    assert not costs.free
    assert LevelCosts(CostModel(TABLE)).free


def test_the_levels_of_a_step_add_up() -> None:
    costs = costs_of(by_level())
    costs.add(0, 8)
    costs.add(1, 16)
    assert costs.seconds == pytest.approx(2e-3 + 2e-3 + 8 * ROWS)
    assert costs.count == 2
    costs.begin(8)
    assert (costs.seconds, costs.count) == (0.0, 0)


@pytest.mark.parametrize(("tokens", "rows"), [(8, 8), (10, 10), (24, 24), (100, 24), (10_000, 24)])
def test_the_first_level_reads_what_was_committed_up_to_what_is_usual(tokens: int, rows: int) -> None:
    costs = costs_of(by_level())
    costs.learn(outcome(tokens), 0.0)
    costs.begin(8)
    assert costs.of(0, 8) == pytest.approx(2e-3 + (rows - 8) * ROWS)
    assert costs.of(1, 8) == pytest.approx(2e-3)


def test_a_look_reads_the_backlog_of_the_scouts_only() -> None:
    costs = costs_of(by_level())
    costs.learn(outcome(8 * 40), 0.0)
    costs.begin(8)
    costs.scouting = True
    assert costs.of(0, 1) == pytest.approx(2e-3 + (41 - 8) * ROWS)  # one scout, 40 tokens and the one it is looked at
    assert costs.reading(320) == pytest.approx(2e-3 + (320 - 8) * ROWS)


@pytest.mark.parametrize("uneven", [0.0, 1e-3])
def test_levels_follow_the_clock(uneven: float) -> None:
    costs = costs_of(by_level())
    for _ in range(200):
        costs.begin(8)
        costs.learn(outcome(8, rest=1e-3), 0.0)
    for _ in range(300):  # the drafter takes 1.5 times what its profile says, and 2 ms a level go with it
        costs.begin(8)
        costs.add(0, 8)
        costs.add(1, 8)
        costs.learn(outcome(8, draft=6e-3, rest=5e-3), uneven)
    assert costs.of(1, 8) == pytest.approx(1.5 * 2e-3 + 2e-3 + uneven / 2, rel=0.01)


def test_steps_that_read_more_than_usual_say_nothing_of_the_clock() -> None:
    model = by_level()
    costs = costs_of(model)
    for _ in range(50):  # every other step is plain: the first level reads two steps at once
        costs.begin(8)
        costs.learn(outcome(8), 0.0)
        costs.begin(8)
        costs.add(0, 8)
        costs.learn(outcome(8, draft=0.1), 0.0)
    costs.begin(8)
    costs.learn(outcome(8), 0.0)
    for _ in range(50):  # looks at a few requests
        costs.begin(8)
        costs.scouting = True
        costs.add(0, 1)
        costs.learn(outcome(8, draft=0.1), 0.0)
    for _ in range(50):  # beside prompts
        costs.begin(8)
        costs.add(0, 8)
        costs.learn(outcome(8, draft=0.1, prompt_tokens=9), 0.0)
    assert model.drafting.scale == 1.0


def test_a_look_that_took_less_than_believed_lowers_the_belief() -> None:
    model = by_level()
    model.drafting.scale, model.drafting.seconds_per_level = 30.0, 0.02
    costs = costs_of(model)
    for _ in range(80):
        costs.begin(8)
        costs.learn(outcome(8), 0.0)  # a plain step between the looks
        costs.begin(8)
        costs.scouting = True
        scale = model.drafting.scale
        costs.add(0, 1)
        costs.learn(outcome(8, draft=2 * 2e-3, rest=1e-3), 0.0)
        assert model.drafting.scale <= scale
    assert model.drafting.scale < 2.5
    assert model.drafting.seconds_per_level == pytest.approx(1e-3, rel=0.01)
    seen = model.drafting.scale
    costs.begin(8)
    costs.scouting = True
    costs.add(0, 1)
    costs.learn(outcome(8, draft=2e-4, prompt_tokens=9), 0.0)  # beside a prompt: no clean time
    assert model.drafting.scale == seen
