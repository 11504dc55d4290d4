"""Offline plans: exact against brute force, never worse than any other policy, and lawful."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from smartree.cost import CostModel, DraftCost, DraftPoint
from smartree.errors import InputError
from smartree.policies import POLICY_NAMES, PaperPolicy, SmartOptions, SmartPolicy, scan
from smartree.policies.planning import Plan, parse_pools, plan
from smartree.tree import DraftTree, forest_of
from smartree.tree.forest import Floats
from tests.policies.brute_force import Pool, costs, pools
from tests.policies.steps import cost_of, draft, same_children, state_of

PROBABILITIES = st.one_of(st.sampled_from([1.0, 0.5, 0.1]), st.floats(1e-3, 1.0))
SECONDS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 3.0))
PRICES = st.sampled_from([0.05, 0.3, 1.0, 2.5])
# Halves and quarters are exact in floating point, so that ties are ties.
EXACT = st.sampled_from([1.0, 0.5, 0.25])
EXACT_SECONDS = st.integers(0, 4).map(float)


def levels_of(batch: int, base: float, slope: float) -> DraftCost:
    """A drafter by level: `base` seconds, and `slope` more for every row beyond the first."""
    return DraftCost(levels=tuple(DraftPoint(batch, width, base + slope * (width - 1)) for width in (1, 40)))


def drafts(batch: int) -> st.SearchStrategy[DraftCost]:
    """Free, one pass, or by level, in quarters of seconds."""
    quarters = st.integers(1, 8).map(lambda count: count / 4)
    return st.one_of(
        st.just(DraftCost()),
        quarters.map(DraftCost),
        st.builds(levels_of, st.just(batch), quarters, st.sampled_from([0.0, 0.25])),
    )


def draft_seconds(pool: Pool, cost: CostModel, levels: int) -> float:
    """Seconds of drafting the first levels of a pool, from its trees."""
    if levels == 0 or not cost.draft.by_level:
        return cost.draft.seconds_per_step if levels else 0.0
    total = 0.0
    for depth in range(1, levels + 1):
        above = [set(tree.parents[tree.depths == depth].tolist()) for tree in pool.trees]
        total += cost.draft.level_seconds(pool.batch, sum(map(len, above)))
    return total


def every_outcome(pool: Pool, cost: CostModel) -> tuple[Floats, Floats]:
    """Tokens and seconds of every closed subset of every number of levels."""
    depths = np.concatenate([np.empty(0, np.int64), *(tree.depths for tree in pool.trees)])
    chosen, paths = pool.closed_subsets(), pool.paths
    tokens, seconds = [], []
    for levels in range(int(depths.max(initial=0)) + 1):
        inside = chosen[~chosen[:, depths > levels].any(axis=1)]
        tokens.append(pool.batch + inside @ paths)
        verify = cost.verify(pool.batch, pool.batch + inside.sum(axis=1), 0)
        seconds.append(verify + cost.overhead + draft_seconds(pool, cost, levels))
    return np.concatenate(tokens), np.concatenate(seconds)


def nodes_of(chosen: Plan) -> int:
    return sum(map(len, chosen.selected))


# --- exact -------------------------------------------------------------------------------------------------------


@given(st.data(), pools(PROBABILITIES), st.one_of(st.none(), PRICES))
@settings(deadline=None, max_examples=150)
def test_smart_equals_the_best_of_all_closed_subsets_and_all_numbers_of_levels(
    data: st.DataObject, pool: Pool, price: float | None
) -> None:
    seconds = data.draw(costs(len(pool.paths) + 1, SECONDS))
    overhead = data.draw(st.sampled_from([0.0, 0.5]))
    cost = cost_of(pool.batch, seconds, data.draw(drafts(pool.batch)), overhead)
    chosen = plan(pool.trees, cost, "smart", price)
    tokens, spent = every_outcome(pool, cost)
    if price is None:
        achieved, best = chosen.expected_tokens / chosen.step_seconds, np.max(tokens / spent)
    else:
        achieved = chosen.expected_tokens - price * chosen.step_seconds
        best = np.max(tokens - price * spent)
    assert achieved == pytest.approx(best, rel=1e-9, abs=1e-9)


@given(st.data(), pools(PROBABILITIES), st.sampled_from(POLICY_NAMES))
@settings(deadline=None, max_examples=100)
def test_a_plan_is_a_tree_with_the_tokens_seconds_and_speedup_it_says(
    data: st.DataObject, pool: Pool, policy: str
) -> None:
    cost = cost_of(pool.batch, data.draw(costs(max(len(pool.paths) + 1, 6), SECONDS)), data.draw(drafts(pool.batch)))
    chosen = plan(pool.trees, cost, policy)
    tokens, outcomes = float(pool.batch), every_outcome(pool, cost)
    for tree, nodes in zip(pool.trees, chosen.selected, strict=True):
        assert list(nodes) == sorted(set(nodes))
        assert all(tree.parents[node] in (-1, *nodes) for node in nodes)
        tokens += float(tree.paths[list(nodes)].sum())
    assert chosen.expected_tokens == pytest.approx(tokens)
    reached = np.isclose(outcomes[0], tokens) & np.isclose(outcomes[1], chosen.step_seconds)
    assert reached.any()  # the seconds are those of some number of levels, drafted whole
    plain = cost.autoregressive(pool.batch, 0) / pool.batch
    assert chosen.speedup == pytest.approx(tokens / chosen.step_seconds * plain)


@given(st.data(), pools(PROBABILITIES))
@settings(deadline=None, max_examples=60)
def test_smart_is_never_below_another_policy_nor_below_plain_decoding(data: st.DataObject, pool: Pool) -> None:
    seconds = data.draw(costs(max(len(pool.paths) + 1, 6), SECONDS))
    cost = cost_of(pool.batch, seconds, data.draw(drafts(pool.batch)), data.draw(st.sampled_from([0.0, 0.5])))
    speedups = {name: plan(pool.trees, cost, name).speedup for name in POLICY_NAMES}
    assert speedups["none"] == pytest.approx(1.0)
    assert speedups["smart"] >= max(speedups.values()) * (1 - 1e-12)
    assert speedups["smart"] >= 1 - 1e-12


def test_smart_beats_the_others_on_larger_pools_too() -> None:
    random = np.random.default_rng(0)
    for batch in (1, 4):
        trees = []
        for _ in range(batch):
            parents = [-1] * 4 + [int(random.integers(-1, node)) for node in range(4, 60)]
            trees.append(DraftTree.of(parents, random.beta(1, 2, 60).clip(1e-3).tolist()))
        rows: Floats = np.arange(60.0 * batch + 1)
        for seconds in (np.full(len(rows), 10e-3), 10e-3 + 0.2e-3 * rows, 10e-3 * np.maximum(1.0, rows / 8)):
            for cost in (cost_of(batch, seconds), cost_of(batch, seconds, levels_of(batch, 1e-3, 1e-5))):
                best = plan(trees, cost, "smart").speedup
                assert best >= 1
                assert all(best >= plan(trees, cost, name).speedup for name in POLICY_NAMES)


@given(st.data(), pools(PROBABILITIES), st.floats(1.0, 5.0))
@settings(deadline=None, max_examples=100)
def test_at_a_price_of_plain_decoding_or_more_the_speedup_is_never_below_one(
    data: st.DataObject, pool: Pool, times: float
) -> None:
    seconds = data.draw(costs(len(pool.paths) + 1, SECONDS))
    cost = cost_of(pool.batch, seconds, data.draw(drafts(pool.batch)))
    price = times * pool.batch / cost.autoregressive(pool.batch, 0)
    assert plan(pool.trees, cost, "smart", price).speedup >= 1 - 1e-9


def test_at_a_lower_price_it_can_be_below_one() -> None:
    # Time is worth little, so 9 s for one token more is a good deal: by the step's own ratio it is not.
    cost, tree = cost_of(1, [1.0, 10.0]), DraftTree.of([-1], [0.9])
    assert plan([tree], cost, "smart", 0.05).speedup == pytest.approx(0.19)
    assert plan([tree], cost, "smart").speedup == 1.0


# --- laws: what costs do -----------------------------------------------------------------------------------------


def whole_seconds(data: st.DataObject, pool: Pool) -> Floats:
    """Seconds of verifying 0, 1, ... nodes: whole ones, at least 1."""
    return np.asarray(data.draw(costs(len(pool.paths) + 1, EXACT_SECONDS)).round() + 1.0)


def size(pool: Pool, seconds: Floats, draft_cost: DraftCost, price: float | None) -> int:
    return nodes_of(plan(pool.trees, cost_of(pool.batch, seconds, draft_cost), "smart", price))


@given(st.data(), pools(EXACT), st.sampled_from([None, 0.125, 0.5, 1.0]), st.sampled_from([0.125, 0.5, 2.0]))
@settings(deadline=None, max_examples=200)
def test_a_cost_per_token_never_grows_the_tree(
    data: st.DataObject, pool: Pool, price: float | None, per_token: float
) -> None:
    # By the ratio only while all numbers of levels cost the same: see the next two tests.
    free = st.sampled_from([DraftCost(), DraftCost(0.5)])
    draft_cost = data.draw(drafts(pool.batch) if price is not None else free)
    seconds = whole_seconds(data, pool)
    dearer = seconds + per_token * (pool.batch + np.arange(len(seconds)))
    assert size(pool, dearer, draft_cost, price) <= size(pool, seconds, draft_cost, price)


def test_by_the_ratio_a_cost_per_token_can_buy_a_deeper_tree_with_more_nodes() -> None:
    # A sure chain of 4, and two poor children of the root with a poor child each, so that level 2 is wide and dear:
    # 1.29 s, the other levels 0.1 s. A pass takes 0.9 s, rows are free. One level, all 3 nodes:
    # (1 + 1 + 0.01 + 0.01) / 1.0 = 2.020. Four levels, all 8 nodes: 5.0202 / 2.49 = 2.016.
    # At 0.01 s a row: one level without its poor nodes 2 / 1.02 = 1.961, with them 2.02 / 1.04 = 1.942; four levels,
    # the chain alone, 5 / 2.54 = 1.969: now 4 nodes. Dear rows want good rows, and those are deeper.
    tree = DraftTree.of([-1, -1, -1, 0, 1, 2, 3, 6], [1.0, 0.01, 0.01, 1.0, 0.01, 0.01, 1.0, 1.0])
    draft_cost = DraftCost(levels=(DraftPoint(1, 1, 0.1), DraftPoint(1, 3, 1.29)))
    flat = np.full(9, 0.9)
    free = plan([tree], cost_of(1, flat, draft_cost), "smart")
    dear = plan([tree], cost_of(1, flat + 0.01 * np.arange(1, 10), draft_cost), "smart")
    assert free.selected == ((0, 1, 2),)
    assert dear.selected == ((0, 3, 6, 7),)


@given(st.data(), pools(EXACT), st.sampled_from([0.125, 0.5, 2.0]))
@settings(deadline=None, max_examples=150)
def test_by_the_ratio_a_cost_per_token_never_lowers_the_tokens_per_row(
    data: st.DataObject, pool: Pool, per_token: float
) -> None:
    # What is true with any drafter: E / N never falls.
    draft_cost = data.draw(drafts(pool.batch))
    seconds = whole_seconds(data, pool)
    rows = pool.batch + np.arange(len(seconds))
    before = plan(pool.trees, cost_of(pool.batch, seconds, draft_cost), "smart")
    after = plan(pool.trees, cost_of(pool.batch, seconds + per_token * rows, draft_cost), "smart")
    yields = [chosen.expected_tokens / (pool.batch + nodes_of(chosen)) for chosen in (before, after)]
    assert yields[1] >= yields[0] - 1e-12


@given(st.data(), pools(EXACT), st.sampled_from([None, 0.125, 0.5, 1.0]), st.sampled_from([0.5, 2.0, 8.0]))
@settings(deadline=None, max_examples=200)
def test_a_higher_floor_never_shrinks_the_tree(
    data: st.DataObject, pool: Pool, price: float | None, floor: float
) -> None:
    draft_cost = data.draw(drafts(pool.batch))
    seconds = whole_seconds(data, pool)
    before = size(pool, seconds, draft_cost, price)
    raised = size(pool, seconds + floor, draft_cost, price)
    assert raised == before if price is not None else raised >= before  # at a price a constant changes nothing
    assert size(pool, np.maximum(seconds, floor), draft_cost, price) >= before


@given(st.data(), pools(EXACT), st.sampled_from([0.125, 0.5, 1.0]))
@settings(deadline=None, max_examples=150)
def test_a_higher_price_never_grows_the_tree(data: st.DataObject, pool: Pool, price: float) -> None:
    draft_cost = data.draw(drafts(pool.batch))
    seconds = whole_seconds(data, pool)
    sizes = [size(pool, seconds, draft_cost, times * price) for times in (1, 2, 4, 16)]
    assert all(more >= fewer for more, fewer in pairwise(sizes))


@given(st.data(), pools(PROBABILITIES), st.floats(1.01, 4.0))
@settings(deadline=None, max_examples=100)
def test_steps_worse_than_the_price_get_smaller_trees_than_by_their_own_ratio_and_better_ones_larger(
    data: st.DataObject, pool: Pool, times: float
) -> None:
    draft_cost = data.draw(drafts(pool.batch))
    cost = cost_of(pool.batch, data.draw(costs(len(pool.paths) + 1, SECONDS)), draft_cost)
    own = plan(pool.trees, cost, "smart")
    ratio = own.expected_tokens / own.step_seconds
    assert nodes_of(plan(pool.trees, cost, "smart", ratio * times)) <= nodes_of(own)
    assert nodes_of(plan(pool.trees, cost, "smart", ratio / times)) >= nodes_of(own)


CHAIN = DraftTree.of(range(-1, 15), [0.8] * 16)


def test_constant_acceptance_and_growing_cost_make_nodes_fall() -> None:
    slopes = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.9)
    sizes = [nodes_of(plan([CHAIN], cost_of(1, 1.0 + slope * np.arange(17.0)), "smart")) for slope in slopes]
    assert all(more > fewer for more, fewer in pairwise(sizes))
    assert (sizes[0], sizes[-1]) == (16, 0)


def test_dearer_levels_make_depth_fall() -> None:
    sizes = [
        nodes_of(plan([CHAIN], cost_of(1, np.ones(17), levels_of(1, seconds, 0.0)), "smart"))
        for seconds in (0.001, 0.05, 0.1, 0.2, 0.5, 0.9)
    ]
    assert all(more > fewer for more, fewer in pairwise(sizes))
    assert (sizes[0], sizes[-1]) == (16, 0)


def test_the_same_pools_under_another_profile_give_another_tree() -> None:
    # A trunk of 4 with a side branch at each node. Flat to 16 rows: everything. Flat to 5: the trunk alone. From the
    # first row on as dear as a plain step: nothing.
    tree = DraftTree.of([-1, 0, 1, 2, -1, 0, 1, 2], [0.9] * 4 + [0.1] * 4)
    rows = np.arange(1, 10)
    large, small, bound = (cost_of(1, 10e-3 * np.maximum(1.0, rows / flat)) for flat in (16, 5, 1))
    assert plan([tree], large, "smart").selected == (tuple(range(8)),)
    assert plan([tree], small, "smart").selected == ((0, 1, 2, 3),)
    assert plan([tree], bound, "smart").selected == ((),)


# --- laws: what pools do -----------------------------------------------------------------------------------------


@given(st.data(), pools(PROBABILITIES), st.one_of(st.none(), PRICES))
@settings(deadline=None, max_examples=100)
def test_a_higher_probability_never_removes_its_own_node(data: st.DataObject, pool: Pool, price: float | None) -> None:
    cost = cost_of(pool.batch, data.draw(costs(len(pool.paths) + 1, SECONDS)), data.draw(drafts(pool.batch)))
    before = plan(pool.trees, cost, "smart", price)
    chosen = [
        (request, node)
        for request, nodes in enumerate(before.selected)
        for node in nodes
        if pool.trees[request].probabilities[node] <= 0.9
    ]
    assume(chosen)
    request, node = data.draw(st.sampled_from(chosen))
    tree = pool.trees[request]
    probabilities = tree.probabilities.copy()
    probabilities[node] += data.draw(st.floats(0.01, 1.0)) * (1 - probabilities[node])
    trees = list(pool.trees)
    trees[request] = DraftTree.of(tree.parents.tolist(), probabilities.tolist())
    assert node in plan(trees, cost, "smart", price).selected[request]


def test_it_can_remove_others() -> None:
    # 1.5 / 2.25 = 0.667, 1.85 / 2.7 = 0.685: both. With 1.0 in place of 0.5, 2 / 2.25 = 0.889, 2.35 / 2.7 = 0.870:
    # the step earns more, and what earns less than the step has to go.
    cost = cost_of(1, [2.0, 2.25, 2.7])
    assert plan([DraftTree.of([-1, -1], [0.5, 0.35])], cost, "smart").selected == ((0, 1),)
    assert plan([DraftTree.of([-1, -1], [1.0, 0.35])], cost, "smart").selected == ((0,),)


def shuffled(items: Sequence[Any], order: Sequence[int]) -> list[Any]:
    return [items[index] for index in order]


@given(st.integers(0, 2**32 - 1), st.permutations(range(3)), st.sampled_from(POLICY_NAMES))
@settings(deadline=None, max_examples=100)
def test_permuting_requests_permutes_the_answer(seed: int, order: list[int], policy: str) -> None:
    random = np.random.default_rng(seed)  # so that no two path probabilities are equal
    trees = []
    for _ in order:
        count = int(random.integers(1, 12))
        parents = [int(random.integers(-1, node)) for node in range(count)]
        trees.append(DraftTree.of(parents, random.uniform(0.05, 1.0, count).tolist()))
    cost = cost_of(3, 1.0 + np.cumsum(random.uniform(0.0, 0.3, 40)), levels_of(3, 0.1, 0.01))
    before, after = plan(trees, cost, policy), plan(shuffled(trees, order), cost, policy)
    assert list(after.selected) == shuffled(before.selected, order)
    assert after.speedup == pytest.approx(before.speedup, rel=1e-12)


def test_of_equal_nodes_the_first_request_s_is_taken_so_ties_do_not_permute() -> None:
    # One row is free, the second is dear: one of two equal nodes, and something has to decide.
    cost, tree = cost_of(2, [1.0, 1.0, 9.0]), DraftTree.of([-1], [0.5])
    chosen = plan([tree, tree], cost, "smart")
    assert chosen.selected == ((0,), ())


@given(st.data(), pools(EXACT, batches=[2, 3]), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=100)
def test_with_ties_permuting_requests_still_changes_no_total(data: st.DataObject, pool: Pool, random: Any) -> None:
    cost = cost_of(pool.batch, data.draw(costs(len(pool.paths) + 1, EXACT_SECONDS)), data.draw(drafts(pool.batch)))
    trees = list(pool.trees)
    before = plan(trees, cost, "smart")
    random.shuffle(trees)
    after = plan(trees, cost, "smart")
    assert (after.expected_tokens, after.step_seconds) == (before.expected_tokens, before.step_seconds)
    assert nodes_of(after) == nodes_of(before)


# --- the price of time -------------------------------------------------------------------------------------------


def recorded(seed: int) -> tuple[list[Pool], list[Floats]]:
    """Five random pools of a long run, rich and poor ones, each with its own costs."""
    random = np.random.default_rng(seed)
    found, seconds = [], []
    for _ in range(5):
        count, skill = int(random.integers(0, 7)), random.uniform(0.1, 1.0)
        parents = [int(random.integers(-1, node)) for node in range(count)]
        found.append(Pool((DraftTree.of(parents, (skill * random.uniform(0.3, 1.0, count)).tolist()),)))
        rises = random.choice([0.0, 0.0, 0.1, 0.3], size=count) * random.uniform(0.5, 1.5)
        seconds.append(random.uniform(0.5, 1.5) + np.concatenate([[0.0], np.cumsum(rises)]))
    return found, seconds


def best_long_run_ratio(found: Sequence[Pool], seconds: Sequence[Floats]) -> float:
    """Of all ways to choose a closed subset in every pool: the largest sum of tokens over sum of seconds."""
    tables = []
    for pool, spent in zip(found, seconds, strict=True):
        sizes, tokens = pool.outcomes()
        tables.append([(float(tokens[sizes == n].max()), float(spent[n])) for n in range(len(spent))])
    return max(sum(t for t, _ in choice) / sum(s for _, s in choice) for choice in product(*tables))


def long_run(found: Sequence[Pool], seconds: Sequence[Floats], price: float | None) -> float:
    """The ratio achieved by scanning every step at a price, or by its own ratio."""
    choices = [scan(np.sort(pool.paths)[::-1], spent, 1, price) for pool, spent in zip(found, seconds, strict=True)]
    return sum(choice.tokens for choice in choices) / sum(choice.seconds for choice in choices)


@pytest.mark.parametrize("seed", range(12))
def test_the_price_converges_to_the_best_long_run_ratio_which_own_ratios_never_exceed(seed: int) -> None:
    found, seconds = recorded(seed)
    best = best_long_run_ratio(found, seconds)
    for start in (0.0, len(found) / sum(spent[0] for spent in seconds), 2 * best):
        price, prices = start, []
        for _ in range(8):
            price = long_run(found, seconds, price)
            prices.append(price)
        assert all(later >= earlier - 1e-12 for earlier, later in pairwise(prices))
        assert prices[-1] == pytest.approx(best, rel=1e-12)
    assert long_run(found, seconds, None) <= best + 1e-12


def test_own_ratios_can_fall_short() -> None:
    # Section 5 of docs/theory.md: one pool brings 4 tokens in 1 s, the other a node of 0.8 for 0.75 s more.
    sure = Pool((DraftTree.of([-1, 0, 1], [1.0, 1.0, 1.0]),))
    poor = Pool((DraftTree.of([-1], [0.8]),))
    run = [sure, poor], [np.ones(4), np.array([1.0, 1.75])]
    assert long_run(*run, None) == pytest.approx(5.8 / 2.75)
    assert long_run(*run, 2.5) == best_long_run_ratio(*run) == 2.5


# --- limits ------------------------------------------------------------------------------------------------------

WIDE = same_children(*[0.1] * 10)


@pytest.mark.parametrize("batch", [1, 2])
def test_smart_verifies_at_most_300_nodes_of_a_request_by_default(batch: int) -> None:
    cost = cost_of(batch, np.ones(1000))
    # A pool of poor nodes larger than the cap: without its own limit the policy would not draft that many.
    policy = SmartPolicy(cost, SmartOptions(least_path=0.0))
    step = draft(policy, cost, state_of(batch, depth=6), WIDE)
    assert np.bincount(step.forest.request[step.forest.batch :]).min() > 300
    assert np.bincount(step.forest.request[step.selected]).tolist() == [300] * batch


@pytest.mark.parametrize(("batch", "share"), [(1, 300), (2, 150), (8, 37)])
def test_paper_shares_a_budget_of_300_among_the_requests_by_default(batch: int, share: int) -> None:
    cost = cost_of(batch, np.ones(1000))
    step = draft(PaperPolicy(cost), cost, state_of(batch, depth=6), WIDE)
    assert np.bincount(step.forest.request[step.selected]).tolist() == [share] * batch


@pytest.mark.parametrize("batch", [1, 2])
def test_a_plan_keeps_to_the_cap_of_its_policy(batch: int) -> None:
    tree = DraftTree.of([-1] * 400, [0.5] * 400)
    cost = cost_of(batch, np.ones(900))
    chosen = plan([tree] * batch, cost, "smart")
    assert [len(nodes) for nodes in chosen.selected] == [300] * batch
    assert max(len(nodes) for nodes in plan([tree] * batch, cost, "paper").selected) <= 300 // batch


# --- input -------------------------------------------------------------------------------------------------------


def test_pools_come_from_the_contract_s_json() -> None:
    (tree, empty) = parse_pools(
        {"requests": [{"parents": [-1, 0], "probabilities": [0.5, 1]}, {"parents": [], "probabilities": []}]}
    )
    assert (tree.parents.tolist(), tree.probabilities.tolist(), len(empty)) == ([-1, 0], [0.5, 1.0], 0)


def test_a_request_without_candidates_gets_its_one_token() -> None:
    chosen = plan([DraftTree.of([], []), DraftTree.of([-1], [0.9])], cost_of(2, [1.0, 1.0]), "smart")
    assert chosen.selected == ((), (0,))
    assert chosen.expected_tokens == pytest.approx(2.9)


def test_the_json_of_a_plan_is_that_of_the_contract() -> None:
    chosen = plan([DraftTree.of([-1], [0.5])], cost_of(1, [1.0, 1.2]), "smart")
    assert chosen.to_json() == {"selected": [[0]], "expected_tokens": 1.5, "step_seconds": 1.2, "speedup": 1.25}


def request(parents: Any, probabilities: Any) -> dict[str, Any]:
    return {"requests": [{"parents": parents, "probabilities": probabilities}]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, '"requests"'),
        ([], '"requests"'),
        ({}, '"requests"'),
        ({"requests": []}, "at least one request"),
        ({"requests": {}}, "at least one request"),
        ({"requests": [None]}, "Request 0"),
        ({"requests": [{"parents": [-1]}]}, "Request 0"),
        (request("", ""), "Request 0"),
        (request("", {}), "Request 0"),
        (request(None, []), "Request 0"),
        (request([0], [0.5]), "before its child"),  # its own parent
        (request([1, 0], [0.5, 0.5]), "before its child"),  # a cycle
        (request([1, -1], [0.5, 0.5]), "before its child"),
        (request([-2], [0.5]), "parent"),
        (request([2**80], [0.5]), "Request 0"),
        (request([-1.0], [0.5]), "whole number"),
        (request([True], [0.5]), "whole number"),
        (request(["-1"], [0.5]), "whole number"),
        (request([-1], [0.0]), r"\(0, 1\]"),
        (request([-1], [-0.5]), r"\(0, 1\]"),
        (request([-1], [1.5]), r"\(0, 1\]"),
        (request([-1], [float("nan")]), r"\(0, 1\]"),
        (request([-1], [float("inf")]), r"\(0, 1\]"),
        (request([-1], [10**400]), "Request 0"),
        (request([-1], ["0.5"]), "number"),
        (request([-1], [None]), "number"),
        (request([-1, -1], [0.5]), "one probability"),
        (
            {"requests": [{"parents": [-1], "probabilities": [0.5]}, {"parents": [0], "probabilities": [1]}]},
            "Request 1",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_pool_is_refused_in_one_sentence(data: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        parse_pools(data)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message


COST = cost_of(2, [1.0, 1.0, 1.5, 2.0])
TREES = [DraftTree.of([-1], [0.5]), DraftTree.of([-1], [0.4])]


def test_no_pools_are_no_plan() -> None:
    with pytest.raises(InputError, match="at least one request"):
        plan([], COST, "smart")


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_that_the_profile_does_not_cover_is_refused_with_those_it_has(batch: int) -> None:
    with pytest.raises(InputError, match=rf"covers batches 2, and {batch} requests"):
        plan(TREES[:1] * batch, COST, "smart")


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf")])
def test_a_price_that_is_none_is_refused(price: float) -> None:
    with pytest.raises(InputError, match="price"):
        plan(TREES, COST, "smart", price)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="opt-tree"):
        plan(TREES, COST, "smartest")


def test_forests_and_trees_agree_on_paths() -> None:
    tree = DraftTree.of([-1, 0, 0, 1], [0.5, 0.5, 0.25, 0.5])
    assert sorted(forest_of([tree]).path[1:].tolist()) == sorted(tree.paths.tolist())
