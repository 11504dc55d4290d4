"""The exact scan equals brute force over all closed subsets: the claim that the whole policy rests on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.cost.padding import PaddingCost
from smartree.policies import Choice, scan
from smartree.policies.base import top_per_group
from smartree.policies.scan import by_width, likeliest, likeliest_per_group, places_in_group, scan_capped
from smartree.tree import DraftTree, forest_of
from smartree.tree.forest import Floats, Ints
from tests.policies.brute_force import Pool, costs, pools

PROBABILITIES = st.one_of(st.sampled_from([1.0, 0.5, 0.1]), st.floats(1e-3, 1.0))
SECONDS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 3.0))
# Halves and small whole seconds are exact in floating point, so that ties are ties.
EXACT_PROBABILITIES = st.sampled_from([1.0, 0.5, 0.25])
EXACT_SECONDS = st.integers(0, 4).map(float)


def scan_pool(pool: Pool, seconds: Floats, price: float | None) -> Choice:
    forest = forest_of(pool.trees)
    order = forest.best_first()
    choice = scan(forest.path[order], seconds, pool.batch, price)
    assert forest.is_closed(order[: choice.count])  # what was chosen can be verified at all
    return choice


@given(st.data(), pools(PROBABILITIES))
@settings(deadline=None, max_examples=500)
def test_the_ratio_equals_the_best_of_all_closed_subsets(data: st.DataObject, pool: Pool) -> None:
    seconds = data.draw(costs(len(pool.paths) + 1, SECONDS))
    choice = scan_pool(pool, seconds, None)
    sizes, tokens = pool.outcomes()
    assert choice.tokens / choice.seconds == pytest.approx(np.max(tokens / seconds[sizes]), rel=1e-12)


@given(st.data(), pools(PROBABILITIES), st.floats(0.0, 5.0))
@settings(deadline=None, max_examples=500)
def test_the_value_at_a_price_equals_the_best_of_all_closed_subsets(
    data: st.DataObject, pool: Pool, price: float
) -> None:
    seconds = data.draw(costs(len(pool.paths) + 1, SECONDS))
    choice = scan_pool(pool, seconds, price)
    sizes, tokens = pool.outcomes()
    best = np.max(tokens - price * seconds[sizes])
    assert choice.tokens - price * choice.seconds == pytest.approx(best, rel=1e-12, abs=1e-12)


def exact_best(pool: Pool, seconds: Floats, price: float | None) -> tuple[int, Fraction]:
    """The smallest of the best subsets and its tokens, in fractions."""
    sizes, tokens = pool.outcomes()
    best: tuple[Fraction, int, Fraction] | None = None
    for size, expected in sorted({(int(s), float(t)) for s, t in zip(sizes, tokens, strict=True)}):
        gain, spent = Fraction(expected), Fraction(float(seconds[size]))
        value = gain / spent if price is None else gain - Fraction(price) * spent
        if best is None or value > best[0]:
            best = (value, size, gain)
    assert best is not None
    return best[1], best[2]


@given(st.data(), pools(EXACT_PROBABILITIES), st.sampled_from([None, 0.0, 0.25, 0.5, 1.0]))
@settings(deadline=None, max_examples=400)
def test_the_smallest_of_the_best_subsets_is_chosen(data: st.DataObject, pool: Pool, price: float | None) -> None:
    seconds = data.draw(costs(len(pool.paths) + 1, EXACT_SECONDS))
    choice = scan_pool(pool, seconds, price)
    assert (choice.count, Fraction(choice.tokens)) == exact_best(pool, seconds, price)
    assert choice.seconds == seconds[choice.count]


@given(st.data(), pools(PROBABILITIES, batches=[1]))
@settings(deadline=None, max_examples=100)
def test_for_a_given_size_no_closed_subset_beats_the_best_first_prefix(data: st.DataObject, pool: Pool) -> None:
    sizes, tokens = pool.outcomes()
    paths = np.sort(pool.paths)[::-1]
    for size in range(len(paths) + 1):
        assert np.max(tokens[sizes == size]) == pytest.approx(1 + paths[:size].sum(), rel=1e-12)


def test_the_scan_goes_on_past_a_step_that_does_not_pay_at_once() -> None:
    # One node: 1.9 / 2 < 1, so a scan that stops at the first node that does not pay takes none.
    # Four nodes at the same price: (1 + 0.9 + 0.8 + 0.7 + 0.6) / 2 = 2.
    choice = scan(np.array([0.9, 0.8, 0.7, 0.6]), np.array([1.0, 2.0, 2.0, 2.0, 2.0]), 1)
    assert (choice.count, choice.seconds) == (4, 2.0)
    assert choice.tokens == pytest.approx(4.0)


def test_two_requests_share_one_threshold() -> None:
    # 2 / 1 = 2, 2.9 / 1.35 = 2.15, 3.7 / 1.7 = 2.18, 3.8 / 2.05 = 1.85: both nodes of the first, none of the second.
    pool = Pool((DraftTree.of([-1, -1], [0.9, 0.8]), DraftTree.of([-1], [0.1])))
    assert scan_pool(pool, np.array([1.0, 1.35, 1.7, 2.05]), None).count == 2


def test_a_price_of_nothing_takes_everything_and_a_high_price_nothing() -> None:
    paths, seconds = np.array([0.5, 0.25]), np.array([1.0, 2.0, 3.0])
    assert scan(paths, seconds, 1, 0.0).count == 2
    assert scan(paths, seconds, 1, 0.3).count == 1
    assert scan(paths, seconds, 1, 1.0).count == 0


def test_the_smallest_of_equal_sizes_wins() -> None:
    assert scan(np.array([0.5, 0.5]), np.array([1.0, 1.5, 2.0]), 1).count == 0  # 1 / 1 = 1.5 / 1.5 = 2 / 2
    assert scan(np.array([0.5, 0.5]), np.array([1.0, 2.0, 3.0]), 1, 0.5).count == 0  # 0.5 at every size
    assert scan(np.array([1.0, 0.5]), np.array([1.0, 1.5, 2.0]), 2, 1.0).count == 1  # 1, 1.5, 1.5


def test_nothing_drafted_is_plain_decoding() -> None:
    assert scan(np.empty(0), np.array([2.0]), 4) == Choice(0, 4.0, 2.0)


def test_a_padded_engine_gets_the_best_width_of_all() -> None:
    random = np.random.default_rng(3)
    for _ in range(200):
        batch, nodes = int(random.integers(1, 4)), int(random.integers(1, 10))
        paths = np.sort(random.random(nodes))[::-1]
        requests = random.integers(0, batch, nodes)
        seconds = np.cumsum(0.1 + random.random(nodes + 1) ** 3)
        places, gains, counts = by_width(requests, paths, batch)
        choice = scan(gains, seconds[: len(gains) + 1], batch)
        own = [np.sort(paths[requests == request])[::-1] for request in range(batch)]
        ratios = [(batch + sum(one[:width].sum() for one in own)) / seconds[width] for width in range(len(gains) + 1)]
        assert choice.tokens / choice.seconds == pytest.approx(max(ratios))
        chosen = places[: counts[choice.count]]
        for request in range(batch):
            mine = np.sort(paths[chosen[requests[chosen] == request]])[::-1]
            np.testing.assert_array_equal(mine, own[request][: choice.count])


# --- where the widest request counts too -----------------------------------------------------------------------------

PADDING = st.builds(lambda once, row: PaddingCost(once, row / 64), SECONDS, SECONDS)  # 64 cached rows at the least
PRICES = st.one_of(st.none(), st.floats(0.0, 5.0))


def scan_uneven(pool: Pool, seconds: Floats, padding: PaddingCost, price: float | None) -> Choice:
    forest = forest_of(pool.trees)
    order = forest.best_first()

    def with_padding(widths: Ints) -> Floats:
        nodes = np.arange(len(widths))
        return seconds[nodes] + padding.of(pool.batch * widths - nodes, 0)

    kept, choice = scan_capped(forest.request[order], forest.path[order], with_padding, pool.batch, price)
    selected = order[kept[: choice.count]]
    assert forest.is_closed(selected)
    widest = int(np.bincount(forest.request[selected], minlength=pool.batch).max())
    paid = seconds[len(selected)] + float(padding.of(pool.batch * widest - len(selected), 0))
    assert choice.tokens == pytest.approx(pool.batch + forest.path[selected].sum())
    assert choice.seconds == pytest.approx(paid)  # of its own shape, not of the widest it might have had
    return choice


def worth(tokens: Floats | float, seconds: Floats | float, price: float | None) -> Floats:
    return np.asarray(tokens / seconds if price is None else tokens - price * seconds)


@given(st.data(), pools(PROBABILITIES, most_nodes=3), PADDING, PRICES)
@settings(deadline=None, max_examples=500)
def test_uneven_trees_that_pay_for_padding_equal_the_best_of_all_closed_subsets(
    data: st.DataObject, pool: Pool, padding: PaddingCost, price: float | None
) -> None:
    seconds = data.draw(costs(len(pool.paths) + 1, SECONDS))
    choice = scan_uneven(pool, seconds, padding, price)
    sizes, tokens = pool.outcomes()
    spent = seconds[sizes] + padding.of(pool.batch * pool.widths() - sizes, 0)
    best = float(np.max(worth(tokens, spent, price)))
    assert float(worth(choice.tokens, choice.seconds, price)) == pytest.approx(best, rel=1e-12, abs=1e-12)


@given(st.data(), pools(PROBABILITIES), PRICES)
@settings(deadline=None, max_examples=300)
def test_where_padding_is_free_the_shape_does_not_count(data: st.DataObject, pool: Pool, price: float | None) -> None:
    seconds = data.draw(costs(len(pool.paths) + 1, SECONDS))
    uneven, plain = scan_uneven(pool, seconds, PaddingCost(), price), scan_pool(pool, seconds, price)
    best = float(worth(plain.tokens, plain.seconds, price))
    assert float(worth(uneven.tokens, uneven.seconds, price)) == pytest.approx(best, rel=1e-12, abs=1e-12)


@given(st.data(), pools(PROBABILITIES), PADDING, PRICES)
@settings(deadline=None, max_examples=300)
def test_looking_at_widths_is_never_worse_than_looking_at_sizes_alone(
    data: st.DataObject, pool: Pool, padding: PaddingCost, price: float | None
) -> None:
    seconds, forest = data.draw(costs(len(pool.paths) + 1, SECONDS)), forest_of(pool.trees)
    plain = scan_pool(pool, seconds, price)
    widest = int(np.bincount(forest.request[forest.best_first()[: plain.count]], minlength=pool.batch).max())
    paid = plain.seconds + float(padding.of(pool.batch * widest - plain.count, 0))
    choice = scan_uneven(pool, seconds, padding, price)
    achieved = float(worth(choice.tokens, choice.seconds, price))
    assert achieved >= float(worth(plain.tokens, paid, price)) - 1e-9


def test_a_plateau_that_only_a_wide_tree_reaches_is_found() -> None:
    # The first node makes the step four times as long, nine more cost nothing: 11 tokens in 4 s, or 2 in 1 s.
    seconds = np.array([1.0] + [4.0] * 10)
    kept, choice = scan_capped(np.zeros(10, np.int64), np.full(10, 0.9), lambda widths: seconds[: len(widths)], 2)
    assert (len(kept), choice.count) == (10, 10)


def test_one_node_for_each_request_beats_two_for_one_if_padding_costs() -> None:
    # 0.6 and 0.55 belong to the first request, 0.5 to the second. Two nodes are free, the third is dear.
    pool = Pool((DraftTree.of([-1, -1], [0.6, 0.55]), DraftTree.of([-1], [0.5])))
    seconds = np.array([1.0, 1.0, 1.0, 9.0])
    assert scan_uneven(pool, seconds, PaddingCost(), None).tokens == pytest.approx(3.15)
    assert scan_uneven(pool, seconds, PaddingCost(0.1), None).tokens == pytest.approx(3.1)


def test_wide_trees_are_scanned_in_few_steps() -> None:
    scanned: list[int] = []

    def flat(widths: Ints) -> Floats:
        scanned.append(int(widths.max()))
        return np.ones(len(widths))

    kept, choice = scan_capped(np.zeros(40, np.int64), np.full(40, 0.9), flat, 1)
    assert scanned == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert (len(kept), choice.count) == (40, 40)


def test_with_nothing_drafted_uneven_trees_are_plain_decoding_too() -> None:
    nothing = np.empty(0, np.int64)
    kept, choice = scan_capped(nothing, np.empty(0), lambda widths: np.full(len(widths), 2.0), 4)
    assert (len(kept), choice) == (0, Choice(0, 4.0, 2.0))


# --- the front of the best-first order, without sorting the rest -----------------------------------------------------

TIED_PATHS = st.lists(st.sampled_from([1.0, 0.5, 0.5, 0.25, 0.1, 0.0]), max_size=60)


@given(TIED_PATHS, st.data())
@settings(deadline=None, max_examples=300)
def test_the_likeliest_are_the_front_of_a_stable_sort(values: list[float], data: st.DataObject) -> None:
    paths = np.array(values, np.float64)
    count = data.draw(st.integers(0, len(paths)))
    np.testing.assert_array_equal(likeliest(paths, count), np.argsort(-paths, kind="stable")[:count])


def test_the_likeliest_of_many_with_many_ties() -> None:
    paths = np.random.default_rng(5).integers(0, 50, 5000) / 50
    for count in (0, 1, 7, 99, 100, 101, 2499, 2500, 4999, 5000):
        np.testing.assert_array_equal(likeliest(paths, count), np.argsort(-paths, kind="stable")[:count])


@pytest.mark.parametrize("groups", [1, 7, 70_000])
def test_places_in_group_count_in_the_order_given(groups: int) -> None:
    owners = np.random.default_rng(groups).integers(0, groups, 3000)
    seen: dict[int, int] = {}
    for owner, place in zip(owners.tolist(), places_in_group(owners, groups).tolist(), strict=True):
        assert place == seen.get(owner, 0)
        seen[owner] = place + 1


@given(TIED_PATHS, st.integers(1, 5), st.integers(1, 8), st.integers(0, 99))
@settings(deadline=None, max_examples=200)
def test_the_likeliest_per_group_are_those_of_each_group_in_falling_order(
    values: list[float], groups: int, most: int, seed: int
) -> None:
    paths = np.array(values, np.float64)
    owners = np.random.default_rng(seed).integers(0, groups, len(paths))
    found = likeliest_per_group(paths, owners, groups, most)
    assert np.all(np.diff(paths[found]) <= 0)
    np.testing.assert_array_equal(np.sort(found), np.flatnonzero(top_per_group(owners, paths, most)))
