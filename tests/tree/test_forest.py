"""The forest's invariants under random growth, and the best-first order that every policy relies on."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.tree import Candidates, Forest, Proposal
from tests.tree.forests import ancestors, candidates_of, closed_selections, forests, grow, growths, ints

FIELDS = ("request", "parent", "token", "depth", "rank", "handle", "probability", "path", "feature")


def chain(*probabilities: float) -> Forest:
    return grow(1, [candidates_of([node], [probability]) for node, probability in enumerate(probabilities)])


@given(growths())
@settings(deadline=None, max_examples=200)
def test_random_growth_keeps_the_invariants(growth: tuple[int, list[Candidates]]) -> None:
    batch, appends = growth
    forest = grow(batch, appends)
    assert len(forest) == batch + sum(len(candidates) for candidates in appends)
    for node in range(batch, len(forest)):
        parent = int(forest.parent[node])
        assert 0 <= parent < node
        assert forest.request[node] == forest.request[parent]
        assert forest.depth[node] == forest.depth[parent] + 1
        assert forest.path[node] <= forest.path[parent]
        assert forest.path[node] == forest.path[parent] * forest.probability[node]
    for root in range(batch):
        assert (forest.request[root], forest.parent[root], forest.depth[root]) == (root, -1, 0)
        assert (forest.path[root], forest.token[root]) == (1.0, 100 + root)


def test_append_records_every_field_and_returns_ids_in_the_order_given() -> None:
    forest = Forest(ints([7, 8]), Proposal.SAMPLED)
    first = Candidates(
        ints([1, 0]), ints([21, 20]), np.array([0.5, 0.25]), ints([3, 2]), ints([40, 41]), np.array([0.1, 0.2])
    )
    assert forest.append(first).tolist() == [2, 3]
    assert forest.append(candidates_of([3], [0.5])).tolist() == [4]
    assert forest.proposal is Proposal.SAMPLED
    assert forest.token.tolist() == [7, 8, 21, 20, 0]
    assert forest.request.tolist() == [0, 1, 1, 0, 0]
    assert forest.rank.tolist() == [-1, -1, 3, 2, 0]
    assert forest.handle.tolist() == [-1, -1, 40, 41, -1]
    assert forest.feature.tolist() == [0, 0, 0.1, 0.2, 0]
    assert forest.path.tolist() == [1, 1, 0.5, 0.25, 0.125]


@given(growths(max_appends=6, max_new=10), st.integers(0, 12))
@settings(deadline=None, max_examples=100)
def test_growth_past_the_capacity_keeps_everything(growth: tuple[int, list[Candidates]], capacity: int) -> None:
    tight, roomy = grow(*growth, capacity=capacity), grow(*growth, capacity=10_000)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(tight, field), getattr(roomy, field))


def test_appending_nothing_changes_nothing() -> None:
    forest = chain(0.5)
    assert len(forest.append(Candidates.empty())) == 0
    assert len(forest) == 2


@given(forests())
@settings(deadline=None, max_examples=200)
def test_best_first_holds_every_node_once_by_falling_path_probability(forest: Forest) -> None:
    order = forest.best_first()
    assert sorted(order) == list(range(forest.batch, len(forest)))
    assert np.all(np.diff(forest.path[order]) <= 0)


@given(forests())
@settings(deadline=None, max_examples=200)
def test_prefixes_of_best_first_are_closed(forest: Forest) -> None:
    order = forest.best_first()
    seen = set(range(forest.batch))
    for count, node in enumerate(order, start=1):
        assert int(forest.parent[node]) in seen
        seen.add(int(node))
        assert forest.is_closed(order[:count])


def test_prefixes_of_best_first_are_closed_when_all_children_are_certain() -> None:
    # Every path probability ties with every other: only the place of birth can put parents first.
    forest = grow(
        2, [candidates_of([1, 0], [1, 1]), candidates_of([3, 2, 3], [1, 1, 1]), candidates_of([6, 4], [1, 1])]
    )
    order = forest.best_first()
    assert all(forest.is_closed(order[:count]) for count in range(len(order) + 1))


def test_is_closed_catches_a_hole() -> None:
    forest = chain(0.9, 0.9, 0.9)  # nodes 1, 2, 3
    assert forest.is_closed(ints([1, 2, 3]))
    assert forest.is_closed(ints([]))
    assert not forest.is_closed(ints([1, 3]))
    assert not forest.is_closed(ints([2]))


@given(st.data(), forests())
@settings(deadline=None, max_examples=200)
def test_is_closed_agrees_with_walking_up(data: st.DataObject, forest: Forest) -> None:
    chosen = sorted(data.draw(st.sets(st.integers(forest.batch, max(forest.batch, len(forest) - 1)))))
    chosen = [node for node in chosen if node < len(forest)]
    allowed = {*chosen, *range(forest.batch)}
    closed = all(above in allowed for node in chosen for above in ancestors(forest, node))
    assert forest.is_closed(ints(chosen)) == closed


@given(st.data(), forests())
@settings(deadline=None, max_examples=100)
def test_closed_selections_are_closed(data: st.DataObject, forest: Forest) -> None:
    assert forest.is_closed(data.draw(closed_selections(forest)))


def test_take_keeps_rows_together() -> None:
    taken = candidates_of([0, 0, 1], [0.1, 0.2, 0.3], tokens=[5, 6, 7]).take(ints([2, 0]))
    assert taken.parents.tolist() == [1, 0]
    assert taken.tokens.tolist() == [7, 5]
    assert taken.probabilities.tolist() == [0.3, 0.1]
    assert taken.ranks.tolist() == [0, 0]
    assert len(candidates_of([0, 0], [0.1, 0.2]).take(np.array([False, True]))) == 1


@given(st.integers(1, 3), st.data())
def test_what_is_thought_of_planted_nodes_can_change_and_their_paths_follow(batch: int, data: st.DataObject) -> None:
    def planted(probabilities: list[float], parents: list[int]) -> Forest:
        forest = Forest(np.arange(batch))
        places, chances = np.array(parents, np.int64), np.array(probabilities)
        forest.plant(Candidates(places, places * 0 + 5, chances, places * 0, places, chances))
        return forest

    count = data.draw(st.integers(1, 8))
    parents = [data.draw(st.integers(0, batch + place - 1)) for place in range(count)]
    before = [data.draw(st.floats(0, 1)) for _ in range(count)]
    forest = planted(before, parents)
    chosen = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    after = list(before)
    for place in chosen:
        after[place] = data.draw(st.floats(0, 1))
    forest.append(
        Candidates(*(np.zeros(1, np.int64),) * 2, np.full(1, 0.3), *(np.zeros(1, np.int64),) * 2, np.zeros(1))
    )
    forest.revise(np.array(chosen) + batch, np.array([after[place] for place in chosen]))
    wanted = planted(after, parents)
    assert np.array_equal(forest.path[:-1], wanted.path)
    assert np.array_equal(forest.probability[:-1], wanted.probability)
    assert forest.path[-1] == 0.3
