"""Rows of a pass: segments, parents, depths, and masks that equal walking up node by node."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from smartree.tree import DraftTree, Forest, PackedTrees, forest_of, pack
from smartree.tree.forest import Ints
from tests.tree.forests import ancestors, closed_selections, forests, ints


def naive_segments(forest: Forest, selected: Ints) -> list[list[int]]:
    """Per request its root and its selected nodes, in the order of the selection."""
    return [[root, *(int(n) for n in selected if forest.request[n] == root)] for root in range(forest.batch)]


def naive_mask(forest: Forest, selected: Ints) -> NDArray[np.bool_]:
    segments = naive_segments(forest, selected)
    width = max(map(len, segments))
    mask = np.zeros((forest.batch, width, width), bool)
    for request, segment in enumerate(segments):
        for row, node in enumerate(segment):
            for above in ancestors(forest, node):
                mask[request, row, segment.index(above)] = True
    return mask


def seen(packed: PackedTrees) -> NDArray[np.bool_]:
    """[B, n, n] by walking up from every row by its place in its segment."""
    above = packed.above()
    mask = np.zeros((*above.shape, above.shape[1]), bool)
    for request, size in enumerate(packed.sizes.tolist()):
        for row in range(size):
            at = row
            while at >= 0:
                mask[request, row, at] = True
                at = int(above[request, at])
    return mask


def check_rows(forest: Forest, selected: Ints, packed: PackedTrees) -> None:
    segments = naive_segments(forest, selected)
    nodes = [node for segment in segments for node in segment]
    assert packed.nodes.tolist() == nodes
    assert packed.sizes.tolist() == [len(segment) for segment in segments]
    assert packed.starts.tolist() == [0, *np.cumsum([len(segment) for segment in segments])]
    assert packed.tokens.tolist() == forest.token[nodes].tolist()
    for row, node in enumerate(nodes):
        parent = int(forest.parent[node])
        assert packed.parents[row] == (-1 if parent < 0 else nodes.index(parent))
        assert packed.depths[row] == len(ancestors(forest, node)) - 1


@given(st.data(), forests())
@settings(deadline=None, max_examples=300)
def test_random_selections_are_packed_as_walking_up_says(data: st.DataObject, forest: Forest) -> None:
    selected = data.draw(closed_selections(forest))
    packed = pack(forest, selected)
    check_rows(forest, selected, packed)
    np.testing.assert_array_equal(seen(packed), naive_mask(forest, selected))
    np.testing.assert_array_equal(packed.ancestor_mask(), naive_mask(forest, selected))


@pytest.mark.parametrize("lengths", [[5], [3, 0, 4], [1, 1], [0, 2]])
def test_chains_of_different_lengths_get_the_mask_of_walking_up(lengths: list[int]) -> None:
    # Chains take a shortcut in the source.
    forest = forest_of([DraftTree.of(range(-1, length - 1), [0.9] * length) for length in lengths])
    for selected in (forest.best_first(), np.arange(forest.batch, len(forest))):
        packed = pack(forest, selected)
        check_rows(forest, selected, packed)
        np.testing.assert_array_equal(seen(packed), naive_mask(forest, selected))


def test_a_chain_in_one_request_does_not_hide_a_tree_in_another() -> None:
    forest = forest_of([DraftTree.of([-1, 0, 1], [0.9] * 3), DraftTree.of([-1, -1, 0], [0.9] * 3)])
    selected = np.arange(2, len(forest))
    np.testing.assert_array_equal(seen(pack(forest, selected)), naive_mask(forest, selected))


@pytest.mark.parametrize("batch", [1, 3])
def test_an_empty_selection_leaves_the_roots(batch: int) -> None:
    forest = forest_of([DraftTree.of([-1], [0.9])] * batch)
    packed = pack(forest, ints([]))
    assert packed.nodes.tolist() == list(range(batch))
    assert packed.starts.tolist() == list(range(batch + 1))
    assert packed.parents.tolist() == [-1] * batch
    np.testing.assert_array_equal(seen(packed), np.ones((batch, 1, 1), bool))


def test_rows_keep_the_order_of_the_selection() -> None:
    # Best first: the likely path must come first, so that committing it moves few cache rows.
    forest = forest_of([DraftTree.of([-1, -1, 1, 0], [0.2, 0.8, 0.9, 0.5])])
    rows = pack(forest, forest.best_first())
    assert forest.handle[rows.nodes].tolist() == [-1, 1, 2, 0, 3]
    assert rows.parents.tolist() == [-1, 0, 1, 0, 3]
    assert rows.depths.tolist() == [0, 1, 2, 1, 2]


def test_padding_of_shorter_requests_is_masked_out() -> None:
    forest = forest_of([DraftTree.of([-1, 0], [0.9, 0.9]), DraftTree.of([], [])])
    mask = seen(pack(forest, forest.best_first()))
    assert mask[1].tolist() == [[True, False, False], [False, False, False], [False, False, False]]
