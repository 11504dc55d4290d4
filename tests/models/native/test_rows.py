"""What the kernels are told of a pass's rows: everything a mask shows, once, in the order of positions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from smartree.drafters.catch_up import CatchUp, Pending
from smartree.drafters.tree_rows import TreeRows
from smartree.models.native.rows import NativeRows
from smartree.models.packed_pass import RowGroup, causal_group
from smartree.models.rehearsal import level_group
from smartree.tree import DraftTree, forest_of
from tests.models.native.small import random_trees, tree_group


def seen_by(rows: NativeRows, row: int) -> list[int]:
    """Rows of its slot that a row sees, as the kernels read them."""
    listed = rows.list[rows.list_start[row] : rows.list_start[row + 1]].tolist()
    return [*range(rows.contiguous[row]), *listed]


def assert_read_as_masked(groups: list[RowGroup]) -> NativeRows:
    """Compares every row with a reading of its group's mask, cell by cell."""
    rows, at, first = NativeRows(groups), 0, [0]
    for group in groups:
        for request, size in enumerate(group.sizes.tolist()):
            for local in range(size):
                base, mask = int(group.base[request]), group.mask[request, local]
                expected = [*range(base), *(base + column for column in range(len(mask)) if mask[column])]
                assert seen_by(rows, at) == expected
                assert rows.place[at] == group.cached[request] + local == expected[-1]
                assert rows.slot[at] == group.slots[request]
                assert rows.positions[at] == base + group.depths[at - sum_before(groups, group)]
                at += 1
            first.append(at)
    assert rows.first.tolist() == first
    assert len(rows) == at == len(rows.slot) == len(rows.contiguous) == len(rows.list_start) - 1
    assert rows.list_start[-1] == len(rows.list)
    return rows


def sum_before(groups: list[RowGroup], group: RowGroup) -> int:
    return sum(one.rows for one in groups[: next(i for i, one in enumerate(groups) if one is group)])


def counts(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, most), min_size=1, max_size=4)


@given(counts(14), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=100)
def test_trees_of_several_requests_beside_chunks(nodes: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    packed = random_trees(draw, nodes)
    slots = draw.permutation(9)
    cached = draw.integers(0, 40, len(nodes)).tolist()
    chunk = causal_group(int(slots[8]), int(draw.integers(0, 9)), int(draw.integers(1, 9)))
    tree = tree_group(slots[: len(nodes)].tolist(), cached, packed)
    rows = assert_read_as_masked([chunk, tree] if draw.random() < 0.5 else [tree, chunk])
    assert {name: array.dtype for name, array in vars(rows).items() if name != "positions"} == dict.fromkeys(
        ("first", "slot", "place", "contiguous", "list_start", "list"), np.dtype(np.int32)
    )


@given(counts(10), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=100)
def test_trees_fed_level_by_level(nodes: list[int], seed: int) -> None:
    """As drafters do: later levels lie behind earlier ones, of which they see some."""
    draw = np.random.default_rng(seed)
    trees = []
    for count in nodes:
        parents = [int(draw.integers(-1, node)) if node else -1 for node in range(count)]
        trees.append(DraftTree.of(parents, [0.5] * count, [0] * count))
    forest = forest_of(trees)
    base = draw.integers(1, 30, len(nodes))
    tree_rows = TreeRows(len(nodes))
    for depth in range(1, int(forest.depth.max()) + 1):
        level = np.flatnonzero(forest.depth == depth)
        level = level[np.argsort(forest.request[level], kind="stable")]
        rows = assert_read_as_masked([tree_rows.group(forest, level, base)])
        assert rows.positions.tolist() == (base[forest.request[level]] + depth - 1).tolist()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=5))
@settings(deadline=None, max_examples=50)
def test_committed_tokens_that_are_read_later(parts: list[tuple[int, int]]) -> None:
    pending = [Pending(slot, cached, [0] * count) for slot, (cached, count) in enumerate(parts)]
    rows = assert_read_as_masked(CatchUp(pending).groups)
    assert len(rows.list) == 0  # no lists where there is no tree
    assert assert_read_as_masked([level_group([count for _, count in parts], 7)]).list.size == 0


def test_what_follows_the_committed_rows_without_a_gap_is_no_list() -> None:
    """A chain has no lists at all, and a node's list begins where its path leaves the chain."""
    chain = DraftTree.of([-1, 0, 1, 1], [0.5] * 4, [0] * 4)
    forest = forest_of([chain])
    mask: NDArray[np.bool_] = np.zeros((1, 5, 5), bool)
    for node in range(5):
        above = node
        while above >= 0:
            mask[0, node, above] = True
            above = int(forest.parent[above])
    group = RowGroup([2], np.array([10]), np.array([10]), np.array([5]), forest.depth, mask)
    rows = assert_read_as_masked([group])
    assert rows.contiguous.tolist() == [11, 12, 13, 14, 13]
    assert rows.list.tolist() == [14]


def test_the_structure_holds_the_arrays() -> None:
    rows = NativeRows([causal_group(3, 2, 4), causal_group(1, 0, 1)])
    rotations = np.zeros((5, 8), np.float32), np.ones((5, 8), np.float32)
    struct = rows.struct(*rotations)
    assert (struct.count, struct.requests) == (5, 2)
    addresses = [getattr(struct, name) for name in ("first", "slot", "place", "contiguous", "list_start", "list")]
    arrays = (rows.first, rows.slot, rows.place, rows.contiguous, rows.list_start, rows.list)
    assert addresses == [array.ctypes.data for array in arrays]
    assert (struct.cosines, struct.sines) == tuple(array.ctypes.data for array in rotations)
