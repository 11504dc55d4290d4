"""What a step costs by its nodes: kept from step to step, and never older than what the cost model says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.cost import CostModel, CostPoint, CostTable
from smartree.policies.level_costs import LevelCosts
from smartree.policies.scan import scan
from smartree.policies.step_costs import StepCosts
from tests.policies.steps import cost_of, state_of

CONTEXTS = (0, 512)


def measured(overhead: float = 0.0) -> CostModel:
    """Passes of 1 and 2 requests that rise with rows and context."""
    return CostModel(
        CostTable(
            [
                CostPoint(batch, rows, context, 1.0 + 0.01 * rows + 1e-4 * context)
                for batch in (1, 2)
                for rows in (2, 40)
                for context in CONTEXTS
            ]
        ),
        overhead=overhead,
    )


def costs_of(model: CostModel) -> StepCosts:
    return StepCosts(model, LevelCosts(model))


def assert_current(costs: StepCosts, model: CostModel, batch: int, context: int) -> None:
    np.testing.assert_array_equal(costs.passes(20), model.verify(batch, batch + np.arange(21), context))


def test_passes_follow_every_correction_by_the_clock() -> None:
    model = measured()
    costs, plain = costs_of(model), []
    for _ in range(60):
        costs.begin(state_of(2))
        assert_current(costs, model, 2, 0)
        plain.append(costs.plain)
        model.observe(2, 2, 0, 1.5 * float(model.table.seconds(2, 2, 0)))
    assert plain[-1] == pytest.approx(1.5 * plain[0], rel=0.05)


def test_passes_are_kept_while_the_costs_are_the_same() -> None:
    costs = costs_of(measured())
    costs.begin(state_of(2))
    first = costs.changes
    for context in (0, 1, 63):  # one bucket of contexts
        costs.begin(state_of(2, context=context))
        costs.passes(100)
    assert costs.changes == first


@pytest.mark.parametrize("extra", [0, 7])
def test_another_step_has_its_own_passes(extra: int) -> None:
    model = measured()
    costs = costs_of(model)
    for batch, context, tokens in ((2, 0, extra), (1, 0, extra), (1, 512, extra), (1, 512, 30), (2, 0, extra)):
        costs.begin(state_of(batch, context=context, extra_tokens=tokens))
        first = float(model.verify(batch, batch + tokens, context))
        assert float(costs.passes(0)[0]) == first
        assert costs.plain == float(model.verify(batch, batch, context))


def test_a_step_with_very_many_nodes() -> None:
    model = measured()
    costs = costs_of(model)
    costs.begin(state_of(2))
    np.testing.assert_array_equal(costs.passes(5000), model.verify(2, 2 + np.arange(5001), 0))
    count, worth = costs.best(np.full(3000, 0.5), 1e-3)
    assert count.count == 3000
    assert worth == pytest.approx(1500 - 1e-3 * float(costs.passes(3000)[-1]))


def test_beside_a_prompt_a_node_costs_at_least_what_it_does_without() -> None:
    # Alone the first nodes are dear; behind the prompt's five tokens the pass is flat up to 8 rows, then dear.
    model = cost_of(1, [1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 4.0])
    costs = costs_of(model)
    costs.begin(state_of(1, extra_tokens=4))
    # From 5 rows on: 2, 2, 2, 2, 3, 4 by the table; each of the first two nodes rises by 0.5 as it does alone.
    np.testing.assert_allclose(costs.passes(5), [2.0, 2.5, 3.0, 3.0, 4.0, 5.0])


def test_the_price_of_a_row_looks_past_a_step_of_the_staircase() -> None:
    # The next row costs 1 s, the 256 after it nothing: 1 / 256 s each.
    costs = costs_of(cost_of(1, [1.0] + [2.0] * 400))
    costs.begin(state_of(1))
    assert costs.row_seconds(0) == pytest.approx(1 / 256)
    assert costs.row_seconds(1) == 0.0


def test_the_seconds_of_a_step_hold_overhead_and_levels() -> None:
    model = measured(overhead=0.25)
    levels = LevelCosts(model)
    costs = StepCosts(model, levels)
    for extra in (0, 9):
        costs.begin(state_of(2, extra_tokens=extra))
        levels.seconds = 0.5
        for nodes in (0, 3):
            seconds = float(model.verify(2, 2 + extra + nodes, 0)) + 0.75
            assert costs.seconds_of(nodes) == pytest.approx(seconds)
            assert costs.seconds(nodes)[-1] == pytest.approx(seconds)
        assert costs.plain_choice().seconds == pytest.approx(float(model.verify(2, 2 + extra, 0)) + 0.75)


@given(
    st.lists(st.integers(0, 64), max_size=40), st.lists(st.integers(0, 8), min_size=41, max_size=41), st.integers(0, 8)
)
@settings(deadline=None, max_examples=200)
def test_the_best_number_is_that_of_the_exact_scan(paths: list[int], rises: list[int], price: int) -> None:
    # Binary fractions: sums are exact, so that ties are ties.
    model = cost_of(1, 1.0 + np.cumsum(rises) / 8)
    costs, pool = costs_of(model), np.sort(np.array(paths) / 64)
    costs.begin(state_of(1))
    choice, worth = costs.best(pool, price / 8)
    wanted = scan(pool[::-1], costs.seconds(len(pool)), 1, price / 8)
    assert (choice.count, choice.tokens) == (wanted.count, wanted.tokens)
    assert worth == pytest.approx(wanted.tokens - 1 - price / 8 * wanted.seconds)
    assert costs.worth(pool, price / 8) == worth


def test_another_price_in_the_same_step() -> None:
    costs = costs_of(cost_of(1, 1.0 + np.arange(40.0)))
    costs.begin(state_of(1))
    pool = np.full(30, 0.5)
    assert [costs.best(pool, price)[0].count for price in (0.4, 0.6, 0.4)] == [30, 0, 30]
