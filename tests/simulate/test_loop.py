"""The simulated engine: exact on cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smartree.cost import CostModel, CostPoint, CostTable, DraftCost, DraftPoint
from smartree.errors import InputError
from smartree.policies import POLICY_NAMES, SmartOptions, SmartPolicy, StepState, make_policy
from smartree.policies.base import BasePolicy, StepOutcome
from smartree.policies.chain import ChainPolicy
from smartree.policies.fixed import ORACLE_GRID, TreeSize, fixed_tree
from smartree.simulate.acceptance import AcceptanceLaw, ParametricPools
from smartree.simulate.devices import DEVICES
from smartree.simulate.loop import price, run
from smartree.simulate.models import MODELS
from smartree.simulate.oracle import PLAIN, best_tree, run_grid
from smartree.simulate.recorded import RecordedPool, RecordedPools
from smartree.simulate.roofline import cost_model
from smartree.tree.forest import Forest, Ints

LAW = AcceptanceLaw("test", mean=0.8, optimism=0.0)
LLAMA, L40S = MODELS["llama-3.1-8b"], DEVICES["l40s"]


def chain_pool(step: int, accepted: int) -> RecordedPool:
    """Two nodes in a row, of which `accepted` are."""
    return RecordedPool(
        step, 0, np.array([-1, 0]), np.array([0.6, 0.5]), np.array([0, 0]), np.array([accepted > 0, accepted > 1])
    )


def hand_made_cost(overhead: float = 0.0) -> CostModel:
    """1 s for a pass of 1 row, 1.5 s for 3; 0.1 s a draft level."""
    table = CostTable([CostPoint(1, 1, 0, 1.0), CostPoint(1, 3, 0, 1.5)])
    return CostModel(table, DraftCost(levels=(DraftPoint(1, 1, 0.1),)), overhead)


def test_two_steps_by_hand() -> None:
    # Two draft levels of one row and a pass of 3 rows: 0.2 + 1.5 = 1.7 s a step. One node is accepted in the first
    # step, two in the second: 2 + 3 = 5 tokens in 3.4 s, against 1 token a second.
    pools = RecordedPools("test", [chain_pool(0, 1), chain_pool(1, 2)], batch=1)
    cost = hand_made_cost()
    steps = run(fixed_tree(TreeSize(2, 1, 2)), pools, cost, context=0, steps=2)
    assert [(step.widths, step.rows, step.tokens) for step in steps] == [((1, 1), 3, 2.0), ((1, 1), 3, 3.0)]
    outcome = price(steps, cost, batch=1, context=0)
    assert outcome.speedup == pytest.approx(5 / 3.4)
    assert outcome.expected_accepted_length == pytest.approx(2.5)
    assert outcome.verified_tokens == 3
    assert outcome.draft_ms == pytest.approx(200)
    assert outcome.verify_ms == pytest.approx(1500)
    assert outcome.draft_levels == 2


def test_overhead_is_part_of_every_step_plain_ones_too() -> None:
    pools = RecordedPools("test", [chain_pool(0, 1), chain_pool(1, 2)], batch=1)
    cost = hand_made_cost(overhead=0.3)
    steps = run(fixed_tree(TreeSize(2, 1, 2)), pools, cost, context=0, steps=2)
    assert price(steps, cost, batch=1, context=0).speedup == pytest.approx(5 / 4.0 * 1.3)


@pytest.mark.parametrize("overhead", [0.0, 1e-3, 0.1])
def test_plain_decoding_is_the_unit_whatever_the_overhead_of_a_step(overhead: float) -> None:
    # A plain step pays it too: in the loop, for the oracle and in smart's own price.
    cost = cost_model(L40S, LLAMA, batches=(4,))
    cost.overhead = overhead
    hopeless = AcceptanceLaw("hopeless", mean=-9.0, optimism=0.0, coverage=0.0)
    plain = run(make_policy("none", cost), ParametricPools(hopeless, 4, 5), cost, context=LLAMA.context, steps=5)
    assert price(plain, cost, 4, LLAMA.context).speedup == 1.0
    grid = run_grid(ParametricPools(hopeless, 4, 3), LLAMA.context, 3)
    assert best_tree(grid, cost, LLAMA.context).outcome.speedup == 1.0
    quiet = SmartPolicy(cost, SmartOptions(explore_share=0.0, max_nodes=1))
    run(quiet, ParametricPools(hopeless, 4, 400), cost, context=LLAMA.context, steps=400)
    assert quiet.price == pytest.approx(4 / (cost.autoregressive(4, LLAMA.context) + overhead), rel=0.05)


def test_the_oracle_charges_overhead_as_the_loop_does() -> None:
    cost = cost_model(L40S, LLAMA, batches=(4,))
    cost.overhead = 5e-3
    best = best_tree(run_grid(ParametricPools(LAW, 4, 6), LLAMA.context, 6), cost, LLAMA.context)
    steps = run(fixed_tree(best.size), ParametricPools(LAW, 4, 6), cost, context=LLAMA.context, steps=6)
    assert best.outcome.speedup == pytest.approx(price(steps, cost, 4, LLAMA.context).speedup)


def test_a_drafter_that_pays_once_pays_once() -> None:
    pools = RecordedPools("test", [chain_pool(0, 2)], batch=1)
    cost = CostModel(hand_made_cost().table, DraftCost(0.5))
    steps = run(fixed_tree(TreeSize(2, 1, 2)), pools, cost, context=0, steps=1)
    assert price(steps, cost, batch=1, context=0).speedup == pytest.approx(3 / 2.0)


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_plain_decoding_has_a_speedup_of_exactly_one(batch: int) -> None:
    cost = cost_model(L40S, LLAMA, batches=(batch,))
    pools = ParametricPools(LAW, batch, 5)
    steps = run(make_policy("none", cost), pools, cost, context=LLAMA.context, steps=5)
    outcome = price(steps, cost, batch, LLAMA.context)
    assert outcome.speedup == 1.0
    assert (outcome.expected_accepted_length, outcome.verified_tokens, outcome.draft_ms) == (1.0, batch, 0.0)


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_expected_tokens_are_what_is_committed_on_average(name: str) -> None:
    cost = cost_model(L40S, LLAMA, batches=(8,))
    committed: list[int] = []

    class Watched:
        def __init__(self) -> None:
            self.inner = make_policy(name, cost)

        def __getattr__(self, attribute: str) -> object:
            return getattr(self.inner, attribute)

        def observe(self, outcome: StepOutcome) -> None:
            committed.append(outcome.tokens)
            self.inner.observe(outcome)

    policy = Watched()
    steps = run(policy, ParametricPools(LAW, 8, 100), cost, context=LLAMA.context, steps=100)  # type: ignore[arg-type]
    expected = np.mean([step.tokens for step in steps])
    assert np.mean(committed) == pytest.approx(expected, rel=0.06)


def test_optimistic_probabilities_are_calibrated_on_the_way() -> None:
    seen: list[tuple[float, float]] = []
    pools = ParametricPools(replace(LAW, optimism=0.3), 8, 200)

    class Chain(BasePolicy):
        def grow(self, forest: Forest, candidates: object) -> Ints:
            raise NotImplementedError

        def observe(self, outcome: StepOutcome) -> None:
            nodes = outcome.selected
            seen.append((float(outcome.forest.path[nodes].sum()), float(pools.worth(outcome.forest)[nodes].sum())))

    watched = fixed_tree(TreeSize(3, 1, 3))
    watched.observe = Chain().observe  # type: ignore[method-assign]
    run(watched, pools, None, context=0, steps=200)
    early, late = (np.sum(part, axis=0) for part in (seen[:3], seen[100:]))
    assert early[0] / early[1] > 1.2
    assert late[0] / late[1] == pytest.approx(1.0, abs=0.08)


def test_no_steps_are_refused() -> None:
    with pytest.raises(InputError):
        run(make_policy("none", None), ParametricPools(LAW, 1, 1), None, context=0, steps=0)


def test_the_oracle_is_the_best_of_running_every_tree() -> None:
    batch, steps = 4, 6
    cost = cost_model(L40S, LLAMA, batches=(batch,))
    best = best_tree(run_grid(ParametricPools(LAW, batch, steps), LLAMA.context, steps), cost, LLAMA.context)
    outcomes = {}
    for size in ORACLE_GRID:
        done = run(fixed_tree(size), ParametricPools(LAW, batch, steps), cost, context=LLAMA.context, steps=steps)
        outcomes[size] = price(done, cost, batch, LLAMA.context)
    winner = max(outcomes, key=lambda size: outcomes[size].speedup)
    assert best.size == winner
    for name in ("speedup", "expected_accepted_length", "verified_tokens", "draft_ms", "verify_ms"):
        assert getattr(best.outcome, name) == pytest.approx(getattr(outcomes[winner], name)), name


def test_the_oracle_does_not_speculate_where_nothing_pays() -> None:
    law = AcceptanceLaw("hopeless", mean=-9.0, optimism=0.0, coverage=0.0)
    cost = cost_model(L40S, LLAMA, batches=(8,))
    best = best_tree(run_grid(ParametricPools(law, 8, 3), LLAMA.context, 3), cost, LLAMA.context)
    assert best.size == PLAIN
    assert best.outcome.speedup == 1.0


def test_a_state_is_what_policies_are_given() -> None:
    states: list[StepState] = []

    class Spy(BasePolicy):
        def begin(self, state: StepState, forest: Forest) -> Ints:
            states.append(state)
            return np.empty(0, np.int64)

        def select(self, forest: Forest) -> Ints:
            return np.empty(0, np.int64)

        def grow(self, forest: Forest, candidates: object) -> Ints:
            raise AssertionError("nothing was asked for")

    run(Spy(), ParametricPools(LAW, 3, 2), None, context=77, steps=2)
    assert [(state.batch, state.context, state.extra_tokens) for state in states] == [(3, 77, 0)] * 2
    assert [state.generated.tolist() for state in states] == [[0, 0, 0], [1, 1, 1]]


def test_what_each_request_has_generated_is_counted() -> None:
    # Request 0 has one of two nodes accepted, then both; request 1, which replays them half a round later, the reverse.
    seen: list[list[int]] = []

    class Watched(ChainPolicy):
        def begin(self, state: StepState, forest: Forest) -> Ints:
            seen.append(state.generated.tolist())
            return super().begin(state, forest)

    pools = RecordedPools("test", [chain_pool(0, 1), chain_pool(1, 2)], batch=2)
    run(Watched(length=2), pools, None, context=0, steps=3)
    assert seen == [[0, 0], [2, 3], [5, 5]]
