"""Which nodes are verified once all are drafted."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.cost import CostModel
from smartree.policies import SmartOptions, SmartPolicy
from smartree.policies.level_costs import LevelCosts
from smartree.policies.price import Savings
from smartree.policies.selection import Selection
from smartree.policies.step_costs import StepCosts
from smartree.tree import Forest
from tests.policies.steps import cost_of, same_children, state_of
from tests.tree.forests import candidates_of


def selection_of(
    model: CostModel, batch: int, price: float, options: SmartOptions, saved: float = 0.0
) -> tuple[Selection, StepCosts, Savings]:
    costs, looks = StepCosts(model, LevelCosts(model)), Savings(0.01)
    looks.seconds = saved
    costs.begin(state_of(batch))
    costs.price = price
    return Selection(model, options, costs, looks), costs, looks


def drafted(batch: int, *probabilities: float) -> Forest:
    forest = Forest(np.zeros(batch, np.int64))
    frontier = np.arange(batch)
    for _ in range(2):
        frontier = forest.append(same_children(*probabilities)(forest, frontier))
    return forest


@pytest.mark.parametrize("most", [300, 4])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_scan_that_is_known_already_selects_the_same(batch: int, most: int) -> None:
    model, forest = cost_of(batch, [1.0 + 0.2 * nodes for nodes in range(40)]), drafted(batch, 0.7, 0.2)
    options = SmartOptions(max_nodes=most)
    for price in (0.1, 0.6, 2.0):
        selection, costs, _ = selection_of(model, batch, price, options)
        known, _ = costs.best(np.sort(forest.path[batch:]), price)
        fresh, choice = selection.of(forest, None, True)
        again, same = selection.of(forest, known, True)
        np.testing.assert_array_equal(again, fresh)
        assert (same.count, same.seconds) == (choice.count, choice.seconds)
        assert selection.last_count == len(fresh)


@pytest.mark.parametrize(("saved", "looked_at"), [(0.0, 0), (0.9, 0), (1.1, 1), (2.5, 2), (99.0, 4)])
def test_a_look_takes_as_many_nodes_as_are_saved_for(saved: float, looked_at: int) -> None:
    # A node costs a second, at a price at which none pays.
    forest = Forest(np.zeros(1, np.int64))
    forest.append(candidates_of([0] * 6, [0.05, 0.3, 0.1, 0.2, 0.15, 0.01]))
    selection, _, looks = selection_of(cost_of(1, 1.0 + np.arange(20.0)), 1, 5.0, SmartOptions(), saved)
    selected, choice = selection.of(forest, None, True)
    assert selected.tolist() == [2, 4, 5, 3][:looked_at]
    assert choice.count == 0
    assert looks.seconds == pytest.approx(saved - looked_at)


def test_an_empty_level_does_not_leave_an_old_choice_behind() -> None:
    # The last level was paid for and brought nothing: the step is dearer than when its nodes were last counted.
    cost = cost_of(1, [1.0 + 0.1 * nodes for nodes in range(20)])
    policy, forest = SmartPolicy(cost, SmartOptions(use_price=False)), Forest(np.zeros(1, np.int64))
    frontier = policy.begin(state_of(1), forest)
    assert policy.wants_level(forest, frontier)
    frontier = policy.grow(forest, same_children(0.9)(forest, frontier))
    assert policy.wants_level(forest, frontier)
    assert policy.select(forest).tolist() == [1]
    assert policy.predicted_seconds == pytest.approx(1.1)
