"""The default policy: exact on what was drafted, at the right price, and quiet where speculation does not pay."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.cost import CostModel, CostPoint, CostTable, DraftCost, DraftPoint
from smartree.cost.padding import PaddingCost
from smartree.errors import InputError
from smartree.policies import SmartOptions, SmartPolicy, StepOutcome, StepState
from smartree.tree import DraftTree, forest_of
from smartree.tree.forest import Candidates, Floats, Forest, Ints
from tests.policies.brute_force import Pool, costs, pools
from tests.policies.steps import (
    Propose,
    Step,
    committed_tokens,
    cost_of,
    draft,
    nothing_found,
    run,
    same_children,
    state_of,
    throughput,
)

PROBABILITIES = st.one_of(st.sampled_from([1.0, 0.5, 0.1]), st.floats(1e-3, 1.0))
SECONDS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 3.0))
BUSHY = DraftTree.of([-1, -1, 0, 0, 1, 2], [0.9, 0.1, 0.8, 0.2, 0.5, 0.5])


NOBODY = np.empty(0, np.int64)


def select_from(policy: SmartPolicy, forest: Forest) -> Ints:
    """What the policy verifies of a forest that cost nothing to draft."""
    policy.begin(state_of(forest.batch), forest)
    return policy.select(forest)


def by_level(*seconds: float, batch: int = 1) -> DraftCost:
    """A drafter that pays seconds[w] for a level of w + 1 rows a request, flat from there on."""
    widths = [*enumerate(seconds, start=1), (1000, seconds[-1])]
    return DraftCost(levels=tuple(DraftPoint(batch, batch * width, value) for width, value in widths))


def roofline(draft_cost: DraftCost | None = None) -> CostModel:
    """10 ms up to 8 tokens, then in proportion, whatever the batch: the shape of design section 1."""
    sizes = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512]
    points = [
        CostPoint(batch, n, 0, 10e-3 * max(1.0, n / 8)) for batch in (1, 2, 4, 8, 16, 32) for n in sizes if n >= batch
    ]
    return CostModel(CostTable(points), draft_cost or DraftCost())


# --- exact on what was drafted -----------------------------------------------------------------------------------


@given(st.data(), pools(PROBABILITIES))
@settings(deadline=None, max_examples=200)
def test_a_fresh_policy_achieves_the_best_ratio_of_all_closed_subsets(data: st.DataObject, pool: Pool) -> None:
    overhead = data.draw(st.sampled_from([0.0, 0.5]))
    seconds = data.draw(costs(len(pool.paths) + 1, SECONDS))
    forest = forest_of(pool.trees)
    selected = select_from(SmartPolicy(cost_of(pool.batch, seconds, overhead=overhead)), forest)
    assert forest.is_closed(selected)
    sizes, tokens = pool.outcomes()
    achieved = (pool.batch + forest.path[selected].sum()) / (seconds[len(selected)] + overhead)
    assert achieved == pytest.approx(np.max(tokens / (seconds[sizes] + overhead)), rel=1e-12)


@given(st.data(), pools(PROBABILITIES), st.integers(1, 9))
@settings(deadline=None, max_examples=100)
def test_once_the_price_is_known_the_selection_is_the_best_at_that_price(
    data: st.DataObject, pool: Pool, tokens_per_step: int
) -> None:
    seconds = data.draw(costs(len(pool.paths) + 1, SECONDS))
    policy, forest = SmartPolicy(cost_of(pool.batch, seconds), SmartOptions(explore_share=0.0)), forest_of(pool.trees)
    for _ in range(20):
        policy.begin(state_of(pool.batch), forest)
        policy.observe(StepOutcome(policy.state, forest, np.empty(0, np.int64), tokens_per_step, float(seconds[0])))
    selected = select_from(policy, forest)
    price = tokens_per_step / seconds[0]  # every step so far brought this
    assert policy.price == pytest.approx(price)
    sizes, tokens = pool.outcomes()
    achieved = pool.batch + forest.path[selected].sum() - price * seconds[len(selected)]
    assert achieved == pytest.approx(np.max(tokens - price * seconds[sizes]), rel=1e-9, abs=1e-9)


def test_parents_come_before_children_in_the_selection() -> None:
    forest = forest_of([BUSHY, BUSHY])
    selected = select_from(SmartPolicy(cost_of(2, [1.0] * 13)), forest)
    places = {int(node): place for place, node in enumerate(selected)}
    assert len(places) == 12
    assert all(forest.parent[node] < 2 or places[int(forest.parent[node])] < places[node] for node in places)


def test_a_flat_floor_takes_everything() -> None:
    # Decisions follow the measured floor, not a line through the origin.
    forest = forest_of([BUSHY])
    assert len(select_from(SmartPolicy(cost_of(1, [1.0] * 7)), forest)) == 6


def test_a_steep_cost_takes_nothing() -> None:
    forest = forest_of([BUSHY])
    assert len(select_from(SmartPolicy(cost_of(1, 1.0 + np.arange(7.0))), forest)) == 0


def test_the_same_pool_under_another_profile_gives_another_tree() -> None:
    forest = forest_of([BUSHY])
    sizes = {
        len(select_from(SmartPolicy(cost_of(1, [1.0] * (flat + 1) + [9.0] * (6 - flat))), forest)) for flat in (0, 2, 4)
    }
    assert sizes == {0, 2, 4}


def test_a_chain_is_reachable_as_the_optimum() -> None:
    # A trunk of 4 at 0.9 each, a side branch of 0.1 at every node. Four nodes are free, the fifth doubles the time.
    trunk = [-1, 0, 1, 2]
    tree = DraftTree.of([*trunk, -1, 0, 1, 2], [0.9] * 4 + [0.1] * 4)
    forest = forest_of([tree])
    selected = select_from(SmartPolicy(cost_of(1, [1.0] * 5 + [2.0] * 4)), forest)
    assert forest.handle[selected].tolist() == [0, 1, 2, 3]


def test_prompt_tokens_in_the_same_pass_count() -> None:
    # Flat up to 4 rows, then 0.3 s a row. Alone, a request gets its 3 nodes for nothing. Beside 7 prompt tokens a step
    # takes 2.2 s with no node and 0.3 s more for each, at the price of plain decoding, a token a second: 0.4 pays for
    # its row and 0.16 does not.
    cost = cost_of(1, [1.0] * 4 + [1.0 + 0.3 * rows for rows in range(1, 20)])
    forest = forest_of([DraftTree.of([-1, 0, 1], [0.4] * 3)])
    policy = SmartPolicy(cost)
    assert len(select_from(policy, forest)) == 3
    policy.begin(state_of(1, extra_tokens=7), forest)
    assert len(policy.select(forest)) == 1
    assert policy.predicted_seconds == pytest.approx(2.5)


def test_drafting_that_is_paid_for_is_sunk() -> None:
    # Verifying one node of 0.25 takes 0.3 s more: 1.25 / 1.3 < 1, so alone it would not pay.
    # After 0.25 s of drafting the choice is between 1 / 1.25 = 0.8 and 1.25 / 1.55 = 0.806.
    cost = cost_of(1, [1.0, 1.3, 9.0], by_level(0.25))
    assert len(select_from(SmartPolicy(cost_of(1, [1.0, 1.3, 9.0])), forest_of([DraftTree.of([-1], [0.25])]))) == 0
    step = draft(SmartPolicy(cost), cost, state_of(1), same_children(0.25))
    assert step.draft_seconds == 0.25
    assert len(step.selected) == 1


# --- how much to draft -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_a_level_that_costs_several_plain_steps_is_never_drafted(batch: int) -> None:
    cost = cost_of(batch, [1.0] * 500, by_level(5.0 * batch, batch=batch))
    steps = run(SmartPolicy(cost), cost, state_of(batch), same_children(0.99, 0.01), 100)
    assert {step.levels for step in steps} == {0}


def test_a_dear_level_is_drafted_once_at_most() -> None:
    # 0.7 plain steps a level: the first may pay (prior gain 0.77), below it 0.6 of that gain is not enough.
    cost = cost_of(1, [1.0] * 500, by_level(0.7))
    assert draft(SmartPolicy(cost), cost, state_of(1), same_children(0.6, 0.1)).levels <= 1


def best_chain_throughput(probability: float, plain: float, level: float) -> float:
    """Of the best fixed depth: a chain where every token costs one level and verifying is free."""
    return max(
        sum(probability**depth for depth in range(levels + 1)) / (plain + levels * level) for levels in range(17)
    )


@pytest.mark.parametrize("probability", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("level", [0.02, 0.1, 0.3])
def test_the_learned_depth_is_as_good_as_the_best_fixed_one(probability: float, level: float) -> None:
    cost = cost_of(1, [1.0] * 40, by_level(level))
    steps = run(SmartPolicy(cost), cost, state_of(1), same_children(probability), 700)
    achieved = throughput(steps[350:])
    assert achieved >= 0.97 * best_chain_throughput(probability, 1.0, level)


@pytest.mark.parametrize("block_seconds", [0.1, 0.5, 1.2])
def test_a_block_drafter_that_pays_as_a_whole_is_used(block_seconds: float) -> None:
    # One pass drafts all 8 tokens, so it has to be weighed against what all 8 bring: 1 + 0.95 + ... + 0.95^8 = 7.4
    # tokens for 1 + 1.2 s at most, over 3 times plain decoding. Against what the first token brings it never pays.
    cost = cost_of(1, [1.0] * 40, DraftCost(block_seconds))
    steps = run(SmartPolicy(cost), cost, state_of(1, depth=8), same_children(0.95), 1500)
    best = sum(0.95**depth for depth in range(9)) / (1.0 + block_seconds)
    achieved = throughput(steps[750:])
    assert achieved >= 0.95 * best


@pytest.mark.parametrize("jump", [1.4, 1.8])
def test_a_step_in_the_verify_time_that_several_levels_pay_for_together_is_taken(jump: float) -> None:
    # Any draft at all makes the pass `jump` times as long, up to 60 nodes. At the price that speculation earns in the
    # long run (over 0.3 tokens per millisecond) one level of 0.9 tokens never pays for 4 or 8 ms; ten levels do.
    cost = cost_of(1, np.array([1.0] + [jump] * 60), by_level(0.05))
    steps = run(SmartPolicy(cost), cost, state_of(1), same_children(0.9), 1500)
    best = max(sum(0.9**depth for depth in range(levels + 1)) / (jump + 0.05 * levels) for levels in range(1, 17))
    achieved = throughput(steps[750:])
    assert best > 3.0
    assert achieved >= 0.9 * best


def test_nodes_below_the_price_of_a_draft_row_are_not_expanded() -> None:
    # Nothing learned: price 1 token/s. Rows 2 to 11 of a level cost 0.1 s each, so a path of 0.05 buys no row.
    levels = DraftCost(levels=(DraftPoint(1, 1, 0.01), DraftPoint(1, 11, 1.01)))
    cost = cost_of(1, [1.0] * 40, levels)
    policy, forest = SmartPolicy(cost), Forest(np.zeros(1, np.int64))
    frontier = policy.begin(state_of(1), forest)
    assert policy.wants_level(forest, frontier)
    frontier = policy.grow(forest, same_children(0.9, 0.05)(forest, frontier))
    assert forest.probability[frontier].tolist() == [0.9]
    assert len(forest) == 3  # the node that is not expanded can still be verified


def test_the_width_bounds_the_nodes_expanded_per_request() -> None:
    cost = cost_of(2, [1.0] * 200, by_level(1e-6, batch=2))
    policy, forest = SmartPolicy(cost, SmartOptions(width=3)), Forest(np.zeros(2, np.int64))
    frontier = policy.begin(state_of(2), forest)
    assert policy.wants_level(forest, frontier)
    frontier = policy.grow(forest, same_children(0.3, 0.25, 0.2, 0.15, 0.1)(forest, frontier))
    assert forest.probability[frontier].tolist() == [0.3, 0.25, 0.2] * 2


def first_frontier(cost: CostModel, batch: int, *probabilities: float) -> Ints:
    """Nodes that a policy which has learned nothing, and may look at nothing, expands below the first level."""
    policy, forest = SmartPolicy(cost, SmartOptions(explore_share=0.0)), Forest(np.zeros(batch, np.int64))
    frontier = policy.begin(state_of(batch), forest)
    assert policy.wants_level(forest, frontier)
    return policy.grow(forest, same_children(*probabilities)(forest, frontier))


def test_dearer_draft_rows_make_levels_narrower_down_to_none() -> None:
    widths = []
    for row in (1e-4, 0.02, 0.05, 0.08, 0.2, 0.9):
        levels = DraftCost(levels=(DraftPoint(4, 4, 0.05), DraftPoint(4, 44, 0.05 + 40 * row)))
        widths.append(len(first_frontier(cost_of(4, [1.0] * 200, levels), 4, 0.4, 0.2, 0.1, 0.05)))
    assert widths[0] == 16
    assert all(more >= fewer for more, fewer in pairwise(widths))
    assert widths[-1] == 4  # the rows up to the bend cost nothing


def test_nothing_is_expanded_below_nodes_that_cannot_pay_for_a_level() -> None:
    # 0.3 s a level at a token a second and request: four nodes of 0.01 bring 0.03 at the very best.
    cost = cost_of(4, [1.0] * 200, DraftCost(levels=(DraftPoint(4, 4, 0.3),)))
    assert len(first_frontier(cost, 4, 0.01)) == 0
    assert len(first_frontier(cost, 4, 0.9)) == 4


def test_a_level_stops_at_the_draft_head_s_own_bend() -> None:
    # Up to 8 rows a level costs 0.01 s, each further row 0.3 s: the two best of each of 4 requests and no more.
    bend = DraftCost(levels=(DraftPoint(4, 8, 0.01), DraftPoint(4, 108, 30.01)))
    assert len(first_frontier(cost_of(4, [1.0] * 400, bend), 4, 0.3, 0.25, 0.2, 0.15)) == 8


def test_the_best_nodes_of_the_whole_batch_are_expanded_not_as_many_of_each_request() -> None:
    # Room for 3 rows. The likeliest three of both requests belong to the first one.
    bend = DraftCost(levels=(DraftPoint(2, 3, 0.01), DraftPoint(2, 103, 100.01)))
    cost = cost_of(2, [1.0] * 400, bend)
    policy, forest = SmartPolicy(cost), Forest(np.zeros(2, np.int64))
    frontier = policy.begin(state_of(2), forest)
    assert policy.wants_level(forest, frontier)
    candidates = same_children(0.3, 0.28, 0.26)(forest, frontier)
    candidates.probabilities[3:] = [0.2, 0.1, 0.05]
    frontier = policy.grow(forest, candidates)
    assert forest.request[frontier].tolist() == [0, 0, 0]


def test_a_depth_that_was_never_reached_is_believed_to_be_like_the_one_above() -> None:
    # A level costs 0.8 s. At 0.97 a chain of several levels pays (1.97 / 1.8 = 1.09, 2.91 / 2.6 = 1.12, ...); with
    # the prior's 0.6 for every new depth it would end after the first.
    cost = cost_of(1, [1.0] * 40, by_level(0.8))
    steps = run(SmartPolicy(cost), cost, state_of(1), same_children(0.97), 600)
    achieved = throughput(steps[400:])
    assert achieved >= 0.99 * best_chain_throughput(0.97, 1.0, 0.8)


def by_depth(*rates: float) -> Propose:
    """A chain whose acceptance depends on the depth; the last rate goes on."""

    def propose(forest: Forest, frontier: Ints) -> Candidates:
        depths = np.minimum(forest.depth[frontier], len(rates) - 1)
        ranks = np.zeros(len(frontier), np.int64)
        return Candidates(frontier, ranks, np.array(rates)[depths], ranks, ranks - 1, np.zeros(len(frontier)))

    return propose


@pytest.mark.parametrize("level", [0.05, 0.1, 0.3])
def test_a_depth_that_was_once_bad_is_looked_at_again(level: float) -> None:
    cost = cost_of(1, [1.0] * 40, by_level(level))
    policy = SmartPolicy(cost)
    shallow = run(policy, cost, state_of(1), by_depth(0.9, 0.9, 0.02), 1000)
    best_shallow = (1 + 0.9 + 0.81) / (1 + 2 * level)
    while_shallow = throughput(shallow[500:])
    assert while_shallow >= 0.995 * best_shallow  # looks at the third level cost next to nothing
    deep = run(policy, cost, state_of(1), by_depth(0.9), 1500)
    achieved = throughput(deep[1100:])
    assert achieved >= 0.98 * best_chain_throughput(0.9, 1.0, level)


def test_depth_limits_and_max_depth_bound_the_tree() -> None:
    cost = cost_of(1, [1.0] * 100)
    propose = same_children(0.9)
    assert draft(SmartPolicy(cost), cost, state_of(1, depth=5), propose).levels == 5
    assert draft(SmartPolicy(cost, SmartOptions(max_depth=3)), cost, state_of(1), propose).levels == 3
    assert draft(SmartPolicy(cost), cost, state_of(1, depth=0), propose).levels == 0


@pytest.mark.parametrize("most", [3, 12, 300])
def test_the_selection_of_a_large_forest_is_the_front_of_its_best_first_order(most: int) -> None:
    # Whatever the short cuts: all nodes sorted, at most `most` of a request, the best number of them. Many ties.
    random = np.random.default_rng(most)
    for batch in (1, 6, 40):
        trees = []
        for _ in range(batch):
            size = int(random.integers(0, 40))
            parents = [int(random.integers(-1, node)) if node else -1 for node in range(size)]
            trees.append(DraftTree.of(parents, random.choice([1.0, 0.8, 0.5, 0.25], size).tolist()))
        forest = forest_of(trees)
        seconds = np.cumsum(0.02 + 0.1 * random.random(len(forest) + 1) ** 4) + 1.0
        selected = select_from(SmartPolicy(cost_of(batch, seconds), SmartOptions(max_nodes=most)), forest)
        kept, counts = [], dict.fromkeys(range(batch), 0)
        for node in forest.best_first().tolist():
            counts[int(forest.request[node])] += 1
            if counts[int(forest.request[node])] <= most:
                kept.append(node)
        tokens = batch + np.concatenate([[0.0], np.cumsum(forest.path[kept])])
        assert selected.tolist() == kept[: int(np.argmax(tokens / seconds[: len(tokens)]))]


def test_max_nodes_bounds_the_nodes_of_one_request() -> None:
    # As its documentation says; one request of the batch must not use up the allowance of the other.
    forest = forest_of([DraftTree.of(range(-1, 9), [1.0] * 10), DraftTree.of([-1], [0.5])])
    selected = select_from(SmartPolicy(cost_of(2, [1.0] * 12), SmartOptions(max_nodes=4)), forest)
    assert np.bincount(forest.request[selected], minlength=2).tolist() == [4, 1]


# --- batch, acceptance and price ---------------------------------------------------------------------------------


def nodes_per_request(steps: list[Step]) -> float:
    return float(np.mean([len(step.selected) / step.state.batch for step in steps]))


@pytest.mark.parametrize("draft_cost", [DraftCost(), by_level(0.1e-3)], ids=["one pass", "by level"])
def test_a_growing_batch_shrinks_the_trees_down_to_none(draft_cost: DraftCost) -> None:
    cost = roofline(draft_cost)
    sizes = []
    for batch in (1, 2, 4, 8, 16, 32):
        policy = SmartPolicy(cost, SmartOptions(explore_share=0.0))  # looks are bounded elsewhere
        steps = run(policy, cost, state_of(batch, depth=5), same_children(0.7, 0.1), 120)
        sizes.append(nodes_per_request(steps[60:]))
        speedup = throughput(steps[60:]) * cost.autoregressive(batch, 0) / batch
        assert speedup >= 0.99
    assert sizes[0] >= 7  # the whole flat part of the roofline
    assert all(more >= fewer for more, fewer in pairwise(sizes))
    assert sizes[-3:] == [0, 0, 0]  # from batch 8 on, every node costs what a plain token costs


def test_constant_acceptance_and_growing_cost_make_nodes_fall() -> None:
    # A controller that aims at an acceptance rate would keep its tree here.
    forest = forest_of([DraftTree.of(range(-1, 15), [0.8] * 16)])
    sizes = [
        len(select_from(SmartPolicy(cost_of(1, 1.0 + slope * np.arange(17.0))), forest))
        for slope in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.9)
    ]
    assert sizes[0] == 16
    assert all(more > fewer for more, fewer in pairwise(sizes))
    assert sizes[-1] == 0


def alternate(policy: SmartPolicy, seconds: Floats, forests: list[Forest], steps: int) -> float:
    """Throughput of a policy on steps of different kinds in turn, with the expected tokens as outcome."""
    tokens = spent = carry = 0.0
    for index in range(steps):
        forest = forests[index % len(forests)]
        selected = select_from(policy, forest)
        carry += 1 + float(forest.path[selected].sum())
        committed = math.floor(carry)  # whole tokens, whose sum follows the expected ones
        carry -= committed
        policy.observe(StepOutcome(policy.state, forest, selected, committed, float(seconds[len(selected)])))
        tokens, spent = tokens + 1 + float(forest.path[selected].sum()), spent + float(seconds[len(selected)])
    return tokens / spent


def test_the_price_of_time_beats_each_step_s_own_ratio_on_mixed_text() -> None:
    # Half of the steps draft well, half badly. Maximising its own ratio, the good step stops too early and the bad one
    # too late; the best pair of sizes is found by trying all.
    seconds = 1.0 + 0.004 * np.arange(17.0) ** 2
    forests = [forest_of([DraftTree.of(range(-1, 15), [p] * 16)]) for p in (0.97, 0.3)]
    cost = cost_of(1, seconds)
    gains = [np.concatenate([[1.0], 1 + np.cumsum(forest.path[1:])]) for forest in forests]
    best = max((gains[0][a] + gains[1][b]) / (seconds[a] + seconds[b]) for a in range(17) for b in range(17))
    priced = alternate(SmartPolicy(cost), seconds, forests, 1000)
    greedy = alternate(SmartPolicy(cost, SmartOptions(use_price=False)), seconds, forests, 1000)
    assert priced >= 0.998 * best
    assert greedy < 0.998 * best
    assert priced > greedy


def test_a_fresh_policy_prices_time_at_plain_decoding() -> None:
    policy = SmartPolicy(cost_of(4, [2.0, 3.0], overhead=0.5))
    policy.begin(state_of(4), Forest(np.zeros(4, np.int64)))
    assert policy.price == pytest.approx(4 / 2.5)


# --- looking again -----------------------------------------------------------------------------------------------

STEEP = 10e-3 + 5e-3 * np.arange(12.0)
FLAT = np.full(400, 10e-3)
HOPELESS = {
    # name: verify seconds, draft cost, drafter. In none of these can a node earn back what it takes.
    "verifying too dear": (STEEP, DraftCost(), same_children(0.3, 0.1)),
    "levels too dear": (FLAT, by_level(3e-3), same_children(0.05)),
    "a block too dear": (FLAT, DraftCost(3e-3), same_children(0.05)),
    "nothing is found": (FLAT, DraftCost(3e-3), nothing_found),
    "no level finds anything": (FLAT, by_level(3e-3), nothing_found),
}


@pytest.mark.parametrize("case", HOPELESS)
def test_looks_at_speculation_that_never_pays_stay_under_one_percent(case: str) -> None:
    seconds, draft_cost, propose = HOPELESS[case]
    cost = cost_of(1, seconds, draft_cost)
    steps = run(SmartPolicy(cost), cost, state_of(1, depth=3), propose, 20_000)
    plain = cost.autoregressive(1, 0)
    extra, total = sum(step.seconds - plain for step in steps), sum(step.seconds for step in steps)
    assert extra < 0.01 * total
    spending = [index for index, step in enumerate(steps) if step.seconds > plain]
    assert len(spending) > 10
    assert spending[-1] > 19_000  # it goes on looking to the end


@pytest.mark.parametrize("draft_cost", [DraftCost(3e-3), by_level(3e-3)], ids=["one pass", "by level"])
def test_speculation_comes_back_when_it_starts_to_pay(draft_cost: DraftCost) -> None:
    cost = cost_of(1, FLAT, draft_cost)
    policy = SmartPolicy(cost)
    quiet = run(policy, cost, state_of(1, depth=8), same_children(0.02), 1000)
    assert sum(step.levels > 0 for step in quiet[500:]) < 25
    after = run(policy, cost, state_of(1, depth=8), same_children(0.9), 3000)
    speedup = throughput(after[2500:]) * cost.autoregressive(1, 0)
    assert speedup > 1.3


def test_a_quiet_time_does_not_end_in_a_burst_of_looks() -> None:
    cost = cost_of(1, STEEP)
    policy = SmartPolicy(cost)
    run(policy, cost, state_of(1), nothing_found, 3000)  # saves up, with nothing to look at
    burst = run(policy, cost, state_of(1), same_children(0.3), 100)
    assert sum(step.seconds - 10e-3 for step in burst) <= 2 * 10e-3


def test_without_an_exploration_share_nothing_that_does_not_pay_is_verified() -> None:
    cost = cost_of(1, STEEP)
    policy = SmartPolicy(cost, SmartOptions(explore_share=0.0))
    steps = run(policy, cost, state_of(1, depth=3), same_children(0.3, 0.1), 1000)
    assert {len(step.selected) for step in steps} == {0}


@pytest.mark.parametrize(
    "options",
    [{"max_depth": 0}, {"max_nodes": 0}, {"width": 0}, {"explore_nodes": 0}, {"explore_share": -0.1}],
)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        SmartOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [1.0, float("nan")])
def test_an_exploration_share_that_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="explore_share"):
        SmartOptions(explore_share=share)


def test_a_padded_engine_pays_for_the_width_of_the_whole_batch() -> None:
    # Two requests, one with a good node: packed, 3 rows; padded, 4 rows, which this profile makes too dear.
    trees = [DraftTree.of([-1], [0.5]), DraftTree.of([], [])]
    cost = cost_of(2, [1.0, 1.1, 2.0])
    packed = SmartPolicy(cost, SmartOptions(explore_share=0))
    padded = SmartPolicy(cost, SmartOptions(explore_share=0, padded=True))
    assert len(select_from(packed, forest_of(trees))) == 1
    assert len(select_from(padded, forest_of(trees))) == 0


def test_a_padded_engine_s_price_counts_the_padding() -> None:
    # 2 requests, one with two good nodes: padded to 6 rows, which take 2 s, for 4 tokens a step in the long run.
    cost = cost_of(2, [1.0, 1.0, 1.0, 1.0, 2.0, 9.0, 9.0])
    policy = SmartPolicy(cost, SmartOptions(explore_share=0, padded=True))
    forest = forest_of([DraftTree.of([-1, 0], [1.0, 1.0]), DraftTree.of([], [])])
    for _ in range(20):
        policy.begin(state_of(2), forest)
        policy.observe(StepOutcome(policy.state, forest, np.array([2, 3]), 4, 2.0))
    policy.begin(state_of(2), forest)
    assert policy.price == pytest.approx(4 / 2.0)


# --- attention that pads to the widest request ---------------------------------------------------------------------


def padding_cost(batch: int, seconds: list[float], once: float, per_row: float = 0.0) -> CostModel:
    """A model whose padding costs something at all, and something a row (behind the 64 that attention always reads)."""
    cost = cost_of(batch, seconds)
    cost.padding = PaddingCost(once, per_row / 64)
    return cost


@pytest.mark.parametrize(("once", "per_row"), [(0.3, 0.0), (0.0, 0.3)])
def test_where_padding_costs_the_selection_evens_out(once: float, per_row: float) -> None:
    # The best two nodes are those of the first request, the third is nearly as good. Two rows are free.
    forest = forest_of([DraftTree.of([-1, -1], [0.55, 0.54]), DraftTree.of([-1], [0.5])])
    free = select_from(SmartPolicy(cost_of(2, [1.0, 1.0, 1.0, 9.0])), forest)
    assert forest.request[free].tolist() == [0, 0]
    even = select_from(SmartPolicy(padding_cost(2, [1.0, 1.0, 1.0, 9.0], once, per_row)), forest)
    assert sorted(forest.request[even].tolist()) == [0, 1]
    assert forest.path[even].tolist() == [0.55, 0.5]


def test_a_tree_that_is_much_better_than_the_others_pays_for_its_padding() -> None:
    forest = forest_of([DraftTree.of(range(-1, 4), [0.95] * 5), DraftTree.of([-1], [0.05])])
    selected = select_from(SmartPolicy(padding_cost(2, [1.0] * 7, 0.2, 0.01)), forest)
    assert np.bincount(forest.request[selected], minlength=2).tolist() == [5, 1]


@given(st.data(), pools(PROBABILITIES, most_nodes=3))
@settings(deadline=None, max_examples=100)
def test_with_padding_a_fresh_policy_achieves_the_best_ratio_of_all_closed_subsets(
    data: st.DataObject, pool: Pool
) -> None:
    seconds = data.draw(costs(len(pool.paths) + 1, SECONDS))
    cost = padding_cost(pool.batch, list(seconds), data.draw(st.floats(0.01, 1.0)), data.draw(st.floats(0.0, 0.5)))
    policy, forest = SmartPolicy(cost, SmartOptions(explore_share=0)), forest_of(pool.trees)
    selected = select_from(policy, forest)
    achieved = (pool.batch + forest.path[selected].sum()) / policy.predicted_seconds
    sizes, tokens = pool.outcomes()
    spent = seconds[sizes] + cost.padding.of(pool.batch * pool.widths() - sizes, 0)
    assert achieved == pytest.approx(np.max(tokens / spent), rel=1e-9)


def test_the_price_of_time_counts_the_padding_that_was_paid() -> None:
    # Two requests, one with two good nodes: 1 s for the rows and 1 s for the padding, for 4 tokens.
    cost = padding_cost(2, [1.0] * 9, once=1.0)
    policy = SmartPolicy(cost, SmartOptions(explore_share=0))
    forest = forest_of([DraftTree.of([-1, 0], [1.0, 1.0]), DraftTree.of([], [])])
    for _ in range(20):
        policy.begin(state_of(2), forest)
        policy.predict(forest, np.array([2, 3]))
        policy.observe(StepOutcome(policy.state, forest, np.array([2, 3]), 4, 2.0))
    policy.begin(state_of(2), forest)
    assert policy.price == pytest.approx(4 / 2.0)


def test_looks_pay_for_their_padding() -> None:
    # Rows are free up to the plateau's end and padding takes half a plain step: no look may be had for nothing.
    cost = padding_cost(4, [10e-3] * 100, once=5e-3)

    def for_the_first(forest: Forest, frontier: Ints) -> Candidates:
        return same_children(0.3, 0.2)(forest, frontier[:1])

    steps = run(SmartPolicy(cost), cost, state_of(4, depth=1), for_the_first, 5000)
    extra, total = sum(step.seconds - 10e-3 for step in steps), sum(step.seconds for step in steps)
    assert extra < 0.01 * total
    assert sum(len(step.selected) > 0 for step in steps) > 10


def test_hysteresis_keeps_the_last_size_for_a_small_gain_only() -> None:
    cost = cost_of(1, [1.0, 1.05, 1.1])
    policy = SmartPolicy(cost, SmartOptions(explore_share=0, use_price=False, hysteresis=0.1))
    first = DraftTree.of([-1], [0.9])
    assert len(select_from(policy, forest_of([first]))) == 1
    # A second node at 0.1 is worth a little more than its time: not enough for another graph. One at 0.9 is.
    assert len(select_from(policy, forest_of([DraftTree.of([-1, -1], [0.9, 0.1])]))) == 1
    assert len(select_from(policy, forest_of([DraftTree.of([-1, 0], [0.9, 0.9])]))) == 2


# --- passes that read prompts, and backlogs ------------------------------------------------------------------------


def observed(policy: SmartPolicy, step: Step, tokens: int) -> None:
    """Tells the policy what a step brought; the clock says what the model said."""
    policy.observe(StepOutcome(step.state, step.forest, step.selected, tokens, step.seconds))


def without_drafts(policy: SmartPolicy, cost: CostModel, state: StepState, tokens: int) -> None:
    """Lets requests get some tokens without drafts, in a pass that reads a prompt too and says nothing of the price."""
    forest = Forest(np.zeros(state.batch, np.int64))
    policy.begin(replace(state, extra_tokens=1000), forest)
    selected = policy.select(forest)
    policy.observe(StepOutcome(policy.state, forest, selected, tokens, cost.autoregressive(state.batch, state.context)))


def test_a_pass_that_reads_a_prompt_carries_one_level_and_starts_nothing() -> None:
    cost = roofline(by_level(1e-4))
    policy = SmartPolicy(cost)
    likely = same_children(0.9, 0.05)
    busy = replace(state_of(1), extra_tokens=100)
    observed(policy, draft(policy, cost, state_of(1), likely), tokens=3)
    assert draft(policy, cost, state_of(1), likely).levels > 1
    assert draft(policy, cost, busy, likely).levels == 1
    without_drafts(policy, cost, busy, tokens=5)
    for _ in range(20):
        assert draft(policy, cost, busy, likely).levels == 0
    assert draft(policy, cost, replace(busy, extra_tokens=8), likely).levels > 1  # a short one bends nothing


def test_a_step_that_reads_a_prompt_has_the_price_of_plain_decoding_until_its_batch_size_is_known() -> None:
    # Alone a plain step takes 1 s, beside 7 prompt tokens 2.2 s and a node 0.3 s. The step's own ratio would take two
    # nodes of 0.45, 0.2, 0.09: 1 / 2.2 = 0.455, 1.45 / 2.5 = 0.58, 1.65 / 2.8 = 0.59. A token a second pays for one.
    cost = cost_of(1, [1.0] * 4 + [1.0 + 0.3 * rows for rows in range(1, 20)])
    forest = forest_of([DraftTree.of([-1, 0, 1], [0.45] * 3)])
    policy = SmartPolicy(cost, SmartOptions(explore_share=0))
    policy.begin(state_of(1, extra_tokens=7), forest)
    assert policy.price == pytest.approx(1.0)
    assert len(policy.select(forest)) == 1
    own = SmartPolicy(cost, SmartOptions(explore_share=0, use_price=False))
    own.begin(state_of(1, extra_tokens=7), forest)
    assert len(own.select(forest)) == 2
    for _ in range(20):  # two tokens a second from now on
        observed(policy, draft(policy, cost, state_of(1), nothing_found), tokens=2)
    policy.begin(state_of(1, extra_tokens=7), forest)
    assert policy.price == pytest.approx(2.0)
    assert len(policy.select(forest)) == 0


def test_a_batch_that_is_one_smaller_while_a_prompt_is_read_has_the_speedup_of_the_full_one() -> None:
    cost = roofline()
    policy = SmartPolicy(cost)
    for _ in range(20):
        observed(policy, draft(policy, cost, state_of(8), nothing_found), tokens=12)
    usual = 12 / cost.autoregressive(8, 0)  # what time brings without a prompt: the one that reads will join
    policy.begin(state_of(7, extra_tokens=50), Forest(np.zeros(7, np.int64)))
    assert policy.price == pytest.approx(max(1.5 * 7 / cost.autoregressive(7, 0), usual))
    policy.begin(state_of(7), Forest(np.zeros(7, np.int64)))
    assert policy.price == pytest.approx(1.5 * 7 / cost.autoregressive(7, 0))


def test_few_that_decode_beside_the_prompts_of_many_pay_the_price_of_all() -> None:
    cost = roofline()
    policy = SmartPolicy(cost)
    for _ in range(20):
        observed(policy, draft(policy, cost, state_of(8), nothing_found), tokens=12)
    policy.begin(state_of(1, extra_tokens=50), Forest(np.zeros(1, np.int64)))
    assert policy.price == pytest.approx(12 / cost.autoregressive(8, 0))
    assert policy.price > 1.5 / cost.autoregressive(1, 0)


def test_beside_prompts_a_node_costs_at_least_what_it_costs_without() -> None:
    # A pass takes 0.5 s more for each of the first 7 rows, and 4 s with any more, as this profile has it.
    cost = cost_of(1, [1.0 + 0.5 * min(nodes, 6) for nodes in range(40)])
    unlikely, likely = (forest_of([DraftTree.of([-1, 0], [p, p])]) for p in (0.4, 0.6))
    policy = SmartPolicy(cost, SmartOptions(explore_share=0))
    for forest, nodes in ((unlikely, 0), (likely, 1)):
        policy.begin(state_of(1, extra_tokens=20), forest)
        assert len(policy.select(forest)) == nodes


def test_real_draft_times_decide_whether_a_level_pays() -> None:
    cost = roofline(by_level(1e-4))
    policy, likely = SmartPolicy(cost), same_children(0.6, 0.05)
    assert draft(policy, cost, state_of(1), likely).levels > 0
    for _ in range(400):  # a drafter that takes a hundred times what its profile says
        step = draft(policy, cost, state_of(1), likely)
        slow = 1e-2 * step.levels
        policy.observe(
            StepOutcome(step.state, step.forest, step.selected, 1 + step.levels, 1e-2 + slow, 1e-2, draft_seconds=slow)
        )
    assert sum(draft(policy, cost, state_of(1), likely).levels for _ in range(20)) <= 2


# --- who is drafted for after steps without drafts ------------------------------------------------------------------

ROW_SECONDS = 2e-5


def reading_drafter(batch: int) -> DraftCost:
    """A millisecond a level and 20 us a row: a long backlog takes as long as several passes."""
    return DraftCost(
        levels=tuple(DraftPoint(batch, rows, 1e-3 + ROW_SECONDS * (rows - batch)) for rows in (batch, 1000))
    )


def run_reading(policy: SmartPolicy, cost: CostModel, state: StepState, propose: Propose, steps: int) -> list[Step]:
    """As `run`, but the first level takes the time of all that the requests it is for have not read."""
    random, unread, done = np.random.default_rng(0), np.zeros(state.batch), []
    for _ in range(steps):
        step = draft(policy, cost, state, propose)
        roots = drafted_for(step)
        if roots:
            rows = max(len(roots), int(unread[roots].sum()))
            extra = cost.draft.level_seconds(state.batch, rows) - cost.draft.level_seconds(state.batch, len(roots))
            step = replace(step, draft_seconds=step.draft_seconds + extra, seconds=step.seconds + extra)
            unread[roots] = 0
        tokens = committed_tokens(step, random)
        unread += tokens / state.batch
        policy.observe(StepOutcome(state, step.forest, step.selected, tokens, step.seconds))
        done.append(step)
    return done


def drafted_for(step: Step) -> list[int]:
    """Requests that a level was drafted for, if the drafter always finds something."""
    if not step.levels:  # nodes that nobody has drafted, to see what rows cost
        return []
    return np.unique(step.forest.request[step.forest.batch :]).tolist()


@pytest.mark.parametrize(("batch", "scouts"), [(4, [0]), (16, [0, 1])])
def test_while_speculation_does_not_pay_only_scouts_are_looked_at(batch: int, scouts: list[int]) -> None:
    cost = cost_of(batch, np.full(400, 20e-3), reading_drafter(batch))
    policy, state = SmartPolicy(cost), state_of(batch, depth=3, context=256)
    steps = run_reading(policy, cost, state, same_children(0.003), 5000)[1000:]
    assert {tuple(drafted_for(step)) for step in steps} == {(), tuple(scouts)}
    plain = cost.autoregressive(batch, 256)
    spent, total = sum(step.seconds - plain for step in steps), sum(step.seconds for step in steps)
    assert spent <= 1.2 * policy.options.explore_share * total + 2 * plain
    assert any(drafted_for(step) for step in steps[-1000:])  # it goes on looking to the end


@pytest.mark.parametrize("batch", [1, 16])
def test_speculation_begins_again_for_everybody_when_it_pays(batch: int) -> None:
    cost = cost_of(batch, np.full(1000, 20e-3), reading_drafter(batch))
    policy = SmartPolicy(cost)
    state = state_of(batch, depth=8, context=256)
    quiet = run_reading(policy, cost, state, same_children(0.003), 2000)
    assert not any(len(drafted_for(step)) == batch > 1 for step in quiet[1000:])
    after = run_reading(policy, cost, state, same_children(0.9), 1200)[-100:]
    assert all(len(drafted_for(step)) == batch for step in after)
    speedup = throughput(after) * cost.autoregressive(batch, 256) / batch
    assert speedup > 3


def test_steps_that_go_well_are_no_reason_to_stop() -> None:
    # Nine tokens a request in a step are more than a drafter usually has to read, and nobody has missed a step.
    cost = cost_of(8, np.full(1000, 20e-3), reading_drafter(8))
    policy = SmartPolicy(cost)
    for _ in range(50):
        step = draft(policy, cost, state_of(8, depth=8, context=256), same_children(1.0))
        assert len(drafted_for(step)) == 8
        observed(policy, step, tokens=72)


@pytest.mark.parametrize("missed", [0, 5, 50, 500, 50_000])
def test_a_backlog_delays_speculation_and_never_forbids_it(missed: int) -> None:
    cost = cost_of(8, np.full(1000, 20e-3), reading_drafter(8))
    policy, state = SmartPolicy(cost), state_of(8, depth=8, context=256)
    without_drafts(policy, cost, state, tokens=8 * missed)
    steps = run(policy, cost, state, same_children(0.9), 200)
    assert all(len(drafted_for(step)) == 8 for step in steps[-50:])


def test_a_backlog_that_a_few_steps_cannot_repay_is_not_read_at_once() -> None:
    # 40 ms a token to read, for a gain of 15 ms a step at best.
    dear = DraftCost(levels=(DraftPoint(8, 8, 1e-3), DraftPoint(8, 24, 2e-3), DraftPoint(8, 25, 0.05)))
    cost = cost_of(8, np.full(1000, 20e-3), dear)
    policy, state = SmartPolicy(cost, SmartOptions(explore_share=0)), state_of(8, depth=1, context=256)
    assert draft(policy, cost, state, same_children(0.9)).levels == 1
    without_drafts(policy, cost, state, tokens=800)
    assert draft(policy, cost, state, same_children(0.9)).levels == 0


def test_prompts_that_the_drafter_has_not_read_count_too() -> None:
    """No step told of them: the engine does. Once acceptance is known there is more time to repay them."""
    dear = DraftCost(levels=(DraftPoint(8, 8, 1e-3), DraftPoint(8, 24, 2e-3), DraftPoint(8, 1024, 0.5)))
    cost = cost_of(8, np.full(2000, 20e-3), dear)
    state = state_of(8, depth=8, context=256)

    def levels_with(unread: int, known: bool) -> int:
        policy = SmartPolicy(cost, SmartOptions(explore_share=0, max_depth=1))
        for _ in range(10 if known else 0):
            step = draft(policy, cost, state, same_children(0.9))
            observed(policy, step, tokens=8)
        without_drafts(policy, cost, state, tokens=48)
        return draft(policy, cost, replace(state, unread=unread), same_children(0.9)).levels

    assert levels_with(0, known=False) == 1
    assert levels_with(1024, known=False) == 0
    assert levels_with(1024, known=True) == 1


def test_quiet_steps_are_asked_about_and_learned_from_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in four after the first nine; what the drafter has to read is counted in all of them."""
    cost = cost_of(4, np.linspace(1.0, 3.0, 400), DraftCost(levels=(DraftPoint(4, 4, 100.0),)))
    policy, state = SmartPolicy(cost, SmartOptions(explore_share=0)), state_of(4, depth=3, context=256)
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1

    monkeypatch.setattr(cost, "observe", count)
    for _ in range(8 + 40):
        step = draft(policy, cost, state, same_children(0.003))
        assert step.levels == 0
        policy.observe(StepOutcome(state, step.forest, step.selected, 4, step.seconds, step.seconds))
    assert seen == 9 + 39 // 4
    step = draft(policy, cost, state, same_children(0.003))
    policy.observe(StepOutcome(state, step.forest, step.selected, 4, step.seconds, step.seconds))
    assert policy._levels.unread.rows == 4 * 49  # what was passed in between included


@pytest.mark.parametrize("change", ["batch", "planted"])
def test_a_rest_ends_with_whatever_is_new(change: str) -> None:
    cost = cost_of(4, np.linspace(1.0, 3.0, 400), DraftCost(levels=(DraftPoint(4, 4, 100.0),)))
    policy, state = SmartPolicy(cost, SmartOptions(explore_share=0)), state_of(4, depth=3, context=256)
    for _ in range(9):
        step = draft(policy, cost, state, same_children(0.003))
        policy.observe(StepOutcome(state, step.forest, step.selected, 4, step.seconds, step.seconds))
    assert policy.least_planted(state) is None
    forest = Forest(np.zeros(4, np.int64))
    if change == "planted":
        zero = np.zeros(1, np.int64)
        forest.plant(Candidates(zero, zero, np.full(1, 0.999), zero, zero, np.zeros(1)))
    new = state_of(3, depth=3, context=256) if change == "batch" else state
    before = policy._rest._left
    policy.begin(new, Forest(np.zeros(new.batch, np.int64)) if change != "planted" else forest)
    assert before > 0
    assert not policy._rest.now
    policy.begin(state, Forest(np.zeros(4, np.int64)))
    assert not policy._rest.now  # and it does not come back by itself


def test_a_level_that_is_always_wanted_is_not_asked_about_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = roofline(by_level(1e-4))
    policy, asked = SmartPolicy(cost, SmartOptions(explore_share=0)), 0
    pays = SmartPolicy._level_pays

    def count(self: SmartPolicy, forest: Forest, frontier: Ints, depth: int, seconds: float) -> bool:
        nonlocal asked
        asked += depth == 0
        return pays(self, forest, frontier, depth, seconds)

    monkeypatch.setattr(SmartPolicy, "_level_pays", count)
    steps = run(policy, cost, state_of(1), same_children(0.8, 0.05), 80)
    assert all(step.levels > 0 for step in steps)
    assert 20 <= asked <= 40


def test_lookups_that_cost_nothing_are_made_in_every_step() -> None:
    cost = cost_of(4, np.linspace(1.0, 3.0, 400), DraftCost())
    policy, state = SmartPolicy(cost), state_of(4, depth=3, context=256)
    for _ in range(40):
        step = draft(policy, cost, state, same_children(0.003))
        assert step.levels > 0
        policy.observe(StepOutcome(state, step.forest, step.selected[:0], 4, step.seconds, step.seconds))


def run_timed(policy: SmartPolicy, cost: CostModel, state: StepState, steps: int) -> list[Step]:
    """Steps whose draft times the clock reports: those of the profile."""
    random, done = np.random.default_rng(0), []
    for _ in range(steps):
        step = draft(policy, cost, state, same_children(0.9))
        tokens, target = committed_tokens(step, random), step.seconds - step.draft_seconds
        outcome = StepOutcome(
            state, step.forest, step.selected, tokens, step.seconds, target, draft_seconds=step.draft_seconds
        )
        policy.observe(outcome)
        done.append(step)
    return done


@pytest.mark.parametrize("batch", [1, 16])
def test_drafting_that_was_believed_far_too_dear_begins_again(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody speculates, so only looks can tell that a level takes what its profile says, and not twenty times it."""

    def steps_with_drafts_for_all() -> list[bool]:
        cost = cost_of(batch, np.full(1000, 20e-3), reading_drafter(batch))
        policy, state = SmartPolicy(cost), state_of(batch, depth=8, context=256)
        cost.drafting.scale = 20.0
        steps = run_timed(policy, cost, state, 2200)
        return [len(drafted_for(step)) == batch and step.levels > 1 for step in steps]

    drafted = steps_with_drafts_for_all()
    assert sum(drafted[:300]) < 10
    assert all(drafted[-50:])
    monkeypatch.setattr("smartree.cost.drafting.DraftingCost.observe_look", lambda *step: None)
    assert sum(steps_with_drafts_for_all()) < 10  # a look now and then, so it was the looks that told


def test_another_engine_begins_with_what_this_one_has_learned() -> None:
    cost, state = roofline(by_level(2e-4)), state_of(2)
    first = SmartPolicy(cost)
    for _ in range(100):
        observed(first, draft(first, cost, state, same_children(0.8, 0.1)), tokens=6)
    second = SmartPolicy(roofline(by_level(2e-4)))
    second.resume(json.loads(json.dumps(first.learned())))
    assert second._prices.plain.at(2) == pytest.approx(first._prices.plain.at(2) or 0, rel=1e-3)
    assert second._growth.at(0).tolist() == pytest.approx(first._growth.at(0).tolist(), abs=1e-3)
    assert second._model.autoregressive(2, 0) == pytest.approx(first._model.autoregressive(2, 0), rel=0.01)
    fresh = SmartPolicy(roofline(by_level(2e-4)))
    fresh.begin(state, Forest(np.zeros(2, np.int64)))
    second.begin(state, Forest(np.zeros(2, np.int64)))
    assert fresh._known_price() is None
    assert second._known_price() is not None


@pytest.mark.parametrize(("accepted", "plain_steps"), [(0.3, 3), (0.9, 0)])
def test_where_speculation_gains_little_a_plain_step_is_taken_now_and_then(accepted: float, plain_steps: int) -> None:
    """A node costs 15% of a plain step, so that one which is accepted 3 times of 10 is worth it, and no more."""
    cost = cost_of(1, np.linspace(10e-3, 610e-3, 400), by_level(1e-4))
    policy = SmartPolicy(cost, SmartOptions(explore_share=0, max_depth=3))
    policy.expect([[accepted, 0.0, 0.0, 0.0]])
    levels = []
    for step in range(160):
        done = draft(policy, cost, state_of(1), same_children(accepted))
        observed(policy, done, tokens=1 + (step % 10 < 10 * accepted))
        levels.append(done.levels)
    assert levels.count(0) == plain_steps


def test_nothing_is_looked_up_for_a_plain_step() -> None:
    cost = cost_of(1, np.linspace(10e-3, 610e-3, 400), by_level(1e-4))
    policy, looked_up = SmartPolicy(cost, SmartOptions(explore_share=0, max_depth=3)), []
    policy.expect([[0.3, 0.0, 0.0, 0.0]])
    for step in range(52):
        looked_up.append(policy.least_planted(state_of(1)) is not None)
        done = draft(policy, cost, state_of(1), same_children(0.3))
        observed(policy, done, tokens=1 + (step % 10 < 3))
        assert looked_up[-1] == (done.levels > 0)
    assert looked_up.count(False) == 1


def test_steps_that_were_passed_count_for_their_own_batch() -> None:
    """Rests at batch 4, then a request ends and a prompt is read beside the other three."""
    points = [CostPoint(batch, batch + nodes, 0, 1.0 + nodes) for batch in (3, 4) for nodes in (0, 100)]
    levels = DraftCost(levels=tuple(DraftPoint(batch, batch, 100.0) for batch in (3, 4)))
    cost = CostModel(CostTable(points), levels)
    policy = SmartPolicy(cost, SmartOptions(explore_share=0))
    four, three = state_of(4, depth=3), state_of(3, depth=3, extra_tokens=100)
    for state in [four] * 11 + [three] * 5 + [state_of(3, depth=3)] * 12:
        forest = Forest(np.zeros(state.batch, np.int64))
        policy.begin(state, forest)
        selected = policy.select(forest)
        policy.observe(StepOutcome(state, forest, selected, state.batch, 1.0))
    assert policy._prices.plain.at(4) == pytest.approx(4.0)
    assert policy._prices.plain.at(3) == pytest.approx(3.0)
