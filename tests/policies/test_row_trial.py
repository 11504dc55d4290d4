"""Passes that are only to tell what rows cost."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.cost import DraftCost
from smartree.cost.draft import DraftPoint
from smartree.cost.padding import PaddingCost
from smartree.policies import SmartOptions, SmartPolicy, StepOutcome
from smartree.policies.level_costs import LevelCosts
from smartree.policies.row_trial import RowTrial
from smartree.policies.step_costs import StepCosts
from smartree.tree import Candidates, Forest
from tests.policies.steps import cost_of, same_children, state_of

ROW = 0.1


def made(share: float = 0.01, padding: PaddingCost | None = None) -> tuple[RowTrial, StepCosts]:
    model = cost_of(4, [1.0 + ROW * nodes for nodes in range(64)])
    if padding is not None:
        model.padding = padding
    costs = StepCosts(model, LevelCosts(model))
    costs.begin(state_of(4))
    return RowTrial(model, costs, share), costs


def noted(trial: RowTrial, rows: int, slower: float = 0.0) -> None:
    """A pass of so many rows for the four requests."""
    spent = 1.0 + ROW * (rows - 4)
    trial.note(4, rows, spent, spent + slower)


def starts(trial: RowTrial, batch: int = 4) -> bool:
    trial.begin()
    return trial.starts(Forest(np.arange(batch)))


def test_three_passes_with_twice_the_rows_are_paid_in_advance() -> None:
    trial, _ = made()
    for _ in range(3):
        forest = Forest(np.arange(4))
        trial.begin()
        assert trial.starts(forest)
        assert forest.parent[4:].tolist() == [0, 1, 2, 3]
        assert trial.nodes.tolist() == [4, 5, 6, 7]
        assert forest.path[4:].max() == 0
        noted(trial, 8)
    assert not starts(trial)
    assert len(trial.nodes) == 0


def test_later_ones_come_after_many_steps_and_out_of_a_share_of_the_time() -> None:
    trial, _ = made(share=0.01)
    for _ in range(3):
        assert starts(trial)
        noted(trial, 8)
    came = []
    for _ in range(5000):
        came.append(starts(trial))
        noted(trial, 8 if came[-1] else 4)
    times = np.flatnonzero(came)
    assert np.all(np.diff(times) == 501)
    assert len(times) == 9


@pytest.mark.parametrize(("slower", "most"), [(0.0, 1.0), (0.4, 0.5)])
def test_where_rows_are_dear_trials_take_no_more_than_their_share(slower: float, most: float) -> None:
    trial, _ = made(share=0.001)
    count = 0
    for _ in range(20_000):
        tried = starts(trial)
        count += tried
        noted(trial, 8 if tried else 4, slower * tried)
    assert 3 < count <= 3 + most * 20_000 * 0.2 * 0.001 / (4 * ROW) + 1


def test_what_another_engine_has_learned_is_checked_once() -> None:
    trial, _ = made()
    trial.resume()
    assert starts(trial)
    noted(trial, 8)
    assert not starts(trial)


def test_steps_that_were_passed_count() -> None:
    trial, _ = made()
    for _ in range(3):
        assert starts(trial)
        noted(trial, 8)
    trial.pass_by(499, 1.0)
    assert not starts(trial)
    trial.pass_by(1, 1.0)
    assert starts(trial)


def test_passes_of_many_rows_that_came_by_themselves_make_trials_needless() -> None:
    trial, _ = made()
    for _ in range(3):
        noted(trial, 6)
    assert not starts(trial)


@pytest.mark.parametrize("why", ["prompts", "end", "padding", "no budget", "planted"])
def test_nothing_is_tried_where_it_would_tell_nothing_or_not_be_wanted(why: str) -> None:
    trial, costs = made(0.0 if why == "no budget" else 0.01, PaddingCost(0.5, 1e-3) if why == "padding" else None)
    forest = Forest(np.arange(4))
    if why == "prompts":
        costs.begin(state_of(4, extra_tokens=8))
    if why == "end":
        costs.begin(state_of(4, depth=0))
    if why == "planted":
        one, half = np.array([0]), np.array([0.5])
        forest.plant(Candidates(one, one, half, one, one, half))
    assert not trial.starts(forest)
    assert len(trial.nodes) == 0


def test_a_profile_that_has_rows_far_too_dear_is_found_out_and_speculation_begins() -> None:
    """Nobody speculates, as a row is believed to take twice what it does; and looks are too small to tell."""
    believed, true = 10e-3 + 1.2e-3 * np.arange(1000.0), 10e-3 + 0.6e-3 * np.arange(1000.0)
    levels = DraftCost(levels=(DraftPoint(8, 8, 1e-3), DraftPoint(8, 4096, 1e-3)))

    def drafted(share: float) -> list[bool]:
        cost = cost_of(8, believed, levels)
        policy, done = SmartPolicy(cost, SmartOptions(explore_share=share)), []
        for _ in range(1500):
            state, forest = state_of(8, depth=8), Forest(np.zeros(8, np.int64))
            frontier, count = policy.begin(state, forest), 0
            while policy.wants_level(forest, frontier):
                frontier = policy.grow(forest, same_children(0.8)(forest, frontier))
                count += 1
            selected = policy.select(forest)
            tokens = 8 + round(float(forest.path[selected].sum()))
            seconds = float(true[len(selected)])
            outcome = StepOutcome(state, forest, selected, tokens, seconds + 1e-3 * count, seconds, 1e-3 * count)
            policy.observe(outcome)
            done.append(count > 0 and len(selected) >= 8)
        return done

    tried = drafted(0.005)
    assert not any(tried[:3])
    assert sum(tried[-50:]) >= 48  # a step now and then is plain, to see what that takes
    assert not any(drafted(0.0))
