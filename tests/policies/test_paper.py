"""The paper's rule: worked examples, an independent version in plain arithmetic, and its limits."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.cost import CostModel, CostPoint, CostTable, DraftCost, DraftPoint, PowerExponential
from smartree.errors import InputError
from smartree.policies import PaperPolicy, StepOutcome, StepState
from smartree.tree import Forest
from tests.policies.steps import cost_of, draft, same_children, state_of
from tests.tree.forests import candidates_of

LN2 = math.log(2)
# C_verify(n) = 2^n - 1 + 9 and dC_verify(n) = ln 2 * 2^n: numbers for paper and pencil.
DOUBLING = PowerExponential(1.0, LN2, 1.0, 9.0, 0.0)
BENT = CostTable([CostPoint(b, b * n, 0, 1e-3 * max(10.0, b * n)) for b in (1, 4) for n in (1, 2, 4, 8, 16, 32, 64)])


@cache
def fitted(draft_cost: DraftCost) -> PaperPolicy:
    """Kept: the fit takes its time, and a step begins afresh anyway."""
    return PaperPolicy(CostModel(BENT, draft_cost))


def with_curve(curve: PowerExponential, draft_cost: DraftCost | None = None, alpha: float = 0.8) -> PaperPolicy:
    """A policy at the start of a step of one request, with a curve chosen by hand."""
    policy = fitted(draft_cost or DraftCost())
    policy.alpha = alpha
    policy.begin(state_of(1), Forest(np.zeros(1, np.int64)))
    policy._curve = curve
    return policy


def grow_roots(policy: PaperPolicy, *probabilities: float) -> list[float]:
    """The children of the root that are kept, by their probability."""
    forest = Forest(np.zeros(1, np.int64))
    policy.grow(forest, candidates_of([0] * len(probabilities), probabilities))
    return forest.probability[1:].tolist()


# --- by hand -----------------------------------------------------------------------------------------------------


def test_the_first_node_by_hand() -> None:
    # |T| = 1: C = 2 - 1 + 9 = 10, dC = 2 ln 2 = 1.38629, gain 1.
    # Kept if 0.8 p / 1.38629 > 1 / 10, that is p > 0.173287.
    policy = with_curve(DOUBLING)
    assert policy.pays(0.1733, 1.0, 1.0)
    assert not policy.pays(0.1732, 1.0, 1.0)


def test_the_second_node_by_hand() -> None:
    # After a node of 0.5: |T| = 2, C = 4 - 1 + 9 = 12, dC = 4 ln 2 = 2.77259, gain 1.5.
    # Kept if 0.8 p / 2.77259 > 1.5 / 12, that is p > 0.433217.
    policy = with_curve(DOUBLING)
    assert policy.pays(0.4333, 2.0, 1.5)
    assert not policy.pays(0.4332, 2.0, 1.5)


def test_a_layer_by_hand() -> None:
    # 0.5 > 0.1733 stays; 0.45 > 0.4332 stays; then |T| = 3, C = 8 - 1 + 9 = 16, dC = 8 ln 2 = 5.54518, gain 1.95:
    # the next must exceed 5.54518 * 1.95 / (0.8 * 16) = 0.84478, and 0.44 does not.
    assert grow_roots(with_curve(DOUBLING), 0.44, 0.5, 0.45) == [0.5, 0.45]
    assert grow_roots(with_curve(DOUBLING), 0.5, 0.43) == [0.5]
    assert grow_roots(with_curve(DOUBLING), 0.17, 0.17) == []


def test_a_drafter_by_level_counts_in_both_costs_by_hand() -> None:
    # A level of 10 rows takes 20 s: lambda = 2. C_spec = 2 * 1 + 10 = 12, dC_spec = 2 + 1.38629 = 3.38629.
    # Kept if p > 3.38629 / (0.8 * 12) = 0.352739.
    policy = with_curve(DOUBLING, DraftCost(levels=(DraftPoint(1, 10, 20.0),)))
    assert policy.pays(0.3528, 1.0, 1.0)
    assert not policy.pays(0.3527, 1.0, 1.0)


def test_a_drafter_of_one_pass_counts_in_the_total_only_by_hand() -> None:
    # beta = 5: C_spec = 15, dC_spec = 1.38629. Kept if p > 1.38629 / (0.8 * 15) = 0.115525.
    policy = with_curve(DOUBLING, DraftCost(5.0))
    assert policy.pays(0.1156, 1.0, 1.0)
    assert not policy.pays(0.1155, 1.0, 1.0)


def test_without_a_floor_nothing_pays_by_hand() -> None:
    # eta = 0: C(1) = 1, dC(1) = 1.38629, so p would have to exceed 1.73.
    policy = with_curve(PowerExponential(1.0, LN2, 1.0, 0.0, 0.0))
    assert not policy.pays(1.0, 1.0, 1.0)


def test_alpha_scales_the_threshold_by_hand() -> None:
    # alpha = 0.4: twice the threshold of 0.8, 0.346574.
    policy = with_curve(DOUBLING, alpha=0.4)
    assert policy.pays(0.3466, 1.0, 1.0)
    assert not policy.pays(0.3465, 1.0, 1.0)


def test_an_impossible_node_never_pays() -> None:
    assert not with_curve(DOUBLING).pays(0.0, 1.0, 1.0)


# --- any numbers -------------------------------------------------------------------------------------------------


def thresholds(curve: PowerExponential, alpha: float, rows: int, gain: float) -> float:
    """The path probability from which on a node is kept, in plain arithmetic."""
    power = curve.delta * rows**curve.rho
    slope = curve.gamma * curve.delta * curve.rho * rows ** (curve.rho - 1) * math.exp(power)
    return slope * gain / (alpha * (curve.gamma * (math.exp(power) - 1) + curve.eta))


def naive_tree(curve: PowerExponential, alpha: float, levels: int, children: tuple[float, ...]) -> list[float]:
    """The kept path probabilities of one request, layer by layer."""
    layer: list[float] = [1.0]
    kept: list[float] = []
    for _ in range(levels):
        offered = sorted((parent * child for parent in layer for child in children), reverse=True)
        layer = []
        for path in offered:
            if path > thresholds(curve, alpha, 1 + len(kept), 1 + sum(kept)):
                kept.append(path)
                layer.append(path)
    return kept


@pytest.mark.parametrize("free_eta", [True, False])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("alpha", [0.4, 0.8, 1.0])
def test_whole_trees_equal_the_rule_in_plain_arithmetic(free_eta: bool, batch: int, alpha: float) -> None:
    cost, children = CostModel(BENT), (0.7, 0.15, 0.05)
    policy = PaperPolicy(cost, alpha=alpha, free_eta=free_eta, max_depth=6)
    assert (policy._fits[batch].eta == 0) == (not free_eta)
    step = draft(policy, cost, state_of(batch), same_children(*children))
    expected = sorted(naive_tree(policy._fits[batch], alpha, 6, children), reverse=True)
    for request in range(batch):
        chosen = step.selected[step.forest.request[step.selected] == request]
        np.testing.assert_allclose(step.forest.path[chosen], expected)
    assert policy.predicted_seconds == pytest.approx(float(cost.verify(batch, batch * (1 + len(expected)), 0)))


def test_a_floor_that_the_curve_can_express_keeps_more_nodes() -> None:
    # 10 ms up to 10 rows: with eta the first nodes are nearly free, without it they look as dear as the last ones.
    cost = CostModel(BENT)
    sizes = {
        free_eta: len(
            draft(PaperPolicy(cost, free_eta=free_eta, max_depth=6), cost, state_of(1), same_children(0.7)).selected
        )
        for free_eta in (True, False)
    }
    assert sizes[True] > sizes[False]


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=10), st.floats(0.05, 1.0), st.floats(0.0, 1.0))
@settings(deadline=None, max_examples=100)
def test_a_smaller_alpha_never_keeps_more_of_a_layer(probabilities: list[float], alpha: float, share: float) -> None:
    curve = PowerExponential(1.0, 0.1, 1.0, 2.0, 0.0)
    more = grow_roots(with_curve(curve, alpha=alpha), *probabilities)
    fewer = grow_roots(with_curve(curve, alpha=max(share * alpha, 1e-3)), *probabilities)
    assert more[: len(fewer)] == fewer  # a prefix: both keep from the likeliest on


@given(
    st.floats(1e-3, 1.0),
    st.floats(1.0, 300.0),
    st.floats(1.0, 10.0),
    st.floats(0.05, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.01, 2.0),
)
@settings(deadline=None, max_examples=200)
def test_what_pays_at_a_smaller_alpha_pays_at_a_larger_one(
    path: float, rows: float, gain: float, alpha: float, share: float, rho: float
) -> None:
    curve = PowerExponential(1.0, 0.01, rho, 1.0, 0.0)
    policy = with_curve(curve)
    policy.alpha = max(share * alpha, 1e-3)
    small = policy.pays(path, rows, gain)
    policy.alpha = alpha
    assert policy.pays(path, rows, gain) or not small


@pytest.mark.parametrize("rho", [0.3, 0.5, 1.0, 1.5, 3.0])
def test_a_million_rows_do_not_overflow(rho: float) -> None:
    policy = with_curve(PowerExponential(1.0, 1.0, rho, 1.0, 0.0))
    for gain in (1.0, 1e3):
        # The rule where exp() dominates: alpha p / gain > dC / C = delta rho n^(rho - 1).
        wanted = 0.8 * 0.5 / gain > rho * 1e6 ** (rho - 1)
        assert policy.pays(0.5, 1e6, gain) == wanted


# --- limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "budget"), [(1, 5), (4, 20), (4, 8), (7, 20), (2, 7), (4, 2)])
def test_the_budget_of_the_batch_is_respected(batch: int, budget: int) -> None:
    cost = CostModel(BENT)
    policy = PaperPolicy(cost, budget=budget, max_depth=5)
    policy._fits = dict.fromkeys(policy._fits, PowerExponential(1e-9, 1e-9, 1.0, 1.0, 0.0))  # every node pays
    step = draft(policy, cost, state_of(batch), same_children(0.6, 0.3))
    assert len(step.selected) <= budget
    if budget >= batch:
        sizes = np.bincount(step.forest.request[step.selected], minlength=batch)
        assert sizes.tolist() == [budget // batch] * batch


def test_a_request_never_gets_more_than_300_nodes() -> None:
    cost = CostModel(BENT)
    policy = PaperPolicy(cost, budget=100_000, max_depth=8)
    policy._fits = dict.fromkeys(policy._fits, PowerExponential(1e-9, 1e-9, 1.0, 1.0, 0.0))
    assert len(draft(policy, cost, state_of(1), same_children(0.6, 0.35, 0.05)).selected) == 300


def test_no_more_than_top_k_children_of_a_node_are_considered() -> None:
    policy = PaperPolicy(CostModel(BENT), top_k=2)
    policy.begin(state_of(1), Forest(np.zeros(1, np.int64)))
    policy._curve = PowerExponential(1e-9, 1e-9, 1.0, 1.0, 0.0)
    assert grow_roots(policy, 0.4, 0.3, 0.2) == [0.4, 0.3]


def test_an_empty_layer_ends_the_tree() -> None:
    cost = cost_of(1, np.exp(np.arange(8.0)))  # every row makes the pass e times dearer
    step = draft(PaperPolicy(cost), cost, state_of(1), same_children(0.5))
    assert (step.levels, len(step.selected)) == (1, 0)


def test_depth_limits_and_max_depth_bound_the_tree() -> None:
    cost = cost_of(1, [1.0] * 20)
    assert draft(PaperPolicy(cost, max_depth=3), cost, state_of(1), same_children(0.9)).levels == 3
    assert draft(PaperPolicy(cost), cost, state_of(1, depth=2), same_children(0.9)).levels == 2


def test_the_curve_is_that_of_the_nearest_measured_batch() -> None:
    policy = PaperPolicy(CostModel(BENT))
    for batch, nearest in ((1, 1), (2, 1), (3, 4), (64, 4)):
        policy.begin(state_of(batch), Forest(np.zeros(batch, np.int64)))
        assert policy._curve is policy._fits[nearest]


@pytest.mark.parametrize(
    "options", [{"alpha": 0.0}, {"alpha": -1.0}, {"alpha": float("nan")}, {"budget": 0}, {"top_k": 0}]
)
def test_parameters_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        PaperPolicy(CostModel(BENT), **options)  # type: ignore[arg-type]


def test_a_profile_too_small_to_fit_is_refused() -> None:
    with pytest.raises(InputError, match="4 or more measured sizes"):
        PaperPolicy(cost_of(1, [1.0, 1.0, 1.0]))


def test_adaptive_alpha_follows_what_probabilities_turned_out_to_be_worth() -> None:
    policy, fixed = PaperPolicy(CostModel(BENT), adaptive=True), PaperPolicy(CostModel(BENT))
    forest = Forest(np.zeros(1, np.int64))
    nodes = forest.append(candidates_of([0], [0.8]))
    for _ in range(300):
        for one in (policy, fixed):
            one.observe(StepOutcome(StepState(1, 0, np.array([9])), forest, nodes, tokens=1, seconds=1.0))
    assert policy.alpha == pytest.approx(0.8 * 0.25)  # nothing was ever accepted: down to the bound
    assert fixed.alpha == 0.8
    for _ in range(300):
        policy.observe(StepOutcome(StepState(1, 0, np.array([9])), forest, nodes, tokens=2, seconds=1.0))
    assert policy.alpha > 0.9  # every node was accepted, one in 0.8 was predicted
