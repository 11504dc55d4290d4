"""Tree rows fed level by level: where each node lies, and what it sees."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.drafters.tree_rows import TreeRows
from smartree.models.packed_pass import RowGroup
from smartree.tree import DraftTree, Forest, forest_of


def random_forest(draw: np.random.Generator, counts: list[int]) -> Forest:
    trees = []
    for count in counts:
        parents = [int(draw.integers(-1, node)) if node else -1 for node in range(count)]
        trees.append(DraftTree.of(parents, [0.5] * count, [0] * count))
    return forest_of(trees)


def path(forest: Forest, node: int) -> list[int]:
    """From the child of the root to the node."""
    found = []
    while node >= forest.batch:
        found.append(node)
        node = int(forest.parent[node])
    return found[::-1]


def check_level(forest: Forest, level: list[int], group: RowGroup, places: dict[int, int]) -> None:
    """Every row's mask against walking up, node by node."""
    at = dict.fromkeys(range(forest.batch), 0)
    for node in level:
        request = int(forest.request[node])
        seen = np.flatnonzero(group.mask[request, at[request]]).tolist()
        assert seen == sorted(places[one] for one in path(forest, node))
        at[request] += 1
    assert [at[request] for request in range(forest.batch)] == group.sizes.tolist()
    assert group.mask.sum() == sum(len(path(forest, node)) for node in level)  # nothing past a request's own rows


@given(st.lists(st.integers(0, 60), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=100)
def test_levels_lie_behind_each_other_and_see_their_ancestors(counts: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    forest = random_forest(draw, counts)
    base, rows = draw.integers(1, 30, len(counts)), TreeRows(len(counts))
    places: dict[int, int] = {}
    for depth in range(1, int(forest.depth.max()) + 1):
        nodes = np.flatnonzero((forest.depth == depth) & (draw.random(len(forest)) < 0.8))
        fed = [one for one in nodes.tolist() if all(above in places for above in path(forest, one)[:-1])]
        level = sorted(fed, key=lambda node: (int(forest.request[node]), node))
        if not level:
            break
        before = rows.counts.copy()
        group = rows.group(forest, np.array(level), base)
        for node in level:
            request = int(forest.request[node])
            places[node] = int(before[request])
            before[request] += 1
        assert rows.counts.tolist() == before.tolist()
        assert group.cached.tolist() == (base + before - group.sizes).tolist()
        assert group.depths.tolist() == [depth - 1] * len(level)
        check_level(forest, level, group, places)
    every = np.arange(len(forest) + 3)
    assert rows.row_of(every).tolist() == [places.get(node, -1) for node in every.tolist()]


def test_a_sliding_window_counts_positions_of_earlier_levels_too() -> None:
    """Two chains that share no row: a grandchild is two positions from its root's child, whatever lies between."""
    forest = forest_of([DraftTree.of([-1, -1, 0, 1, 2], [0.5] * 5, [0] * 5)])
    rows, base = TreeRows(1), np.array([4])
    levels = [np.flatnonzero(forest.depth == depth) for depth in (1, 2, 3)]
    groups = [rows.group(forest, level, base) for level in levels]
    last = groups[-1]
    assert last.mask[0, 0].tolist() == [True, False, True, False, True]
    visible = last._visible(2)[0, 0]
    assert np.flatnonzero(visible).tolist() == [4 + 2, 4 + 4]  # itself and its parent
    assert np.flatnonzero(last._visible(3)[0, 0]).tolist() == [4, 6, 8]
