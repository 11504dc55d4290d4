"""Trees from plain lists: bad input is refused in a sentence, and packing them into a forest loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.errors import InputError
from smartree.tree import DraftTree, Forest, forest_of

NAN = float("nan")


@st.composite
def trees(draw: st.DrawFn, max_size: int = 8) -> DraftTree:
    size = draw(st.integers(0, max_size))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    probabilities = draw(st.lists(st.floats(1e-6, 1.0), min_size=size, max_size=size))
    return DraftTree.of(parents, probabilities, draw(st.permutations(range(size))))


@pytest.mark.parametrize(
    ("parents", "node"),
    [
        ([0], 0),  # its own parent
        ([-1, 2, 1], 1),  # a cycle of 1 and 2
        ([1, -1], 0),  # the parent after its child
        ([-1, -2], 1),  # below the root there is nothing
        ([-1, 0, 99], 2),  # no such node
    ],
)
def test_a_parent_that_does_not_come_before_its_child_is_refused(parents: list[int], node: int) -> None:
    with pytest.raises(InputError, match=rf"^Node {node} has parent {parents[node]}: .*\.$") as caught:
        DraftTree.of(parents, [0.5] * len(parents))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.5, NAN, float("inf")])
def test_a_probability_outside_its_range_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match=rf"^Node 1 has probability {bad}; .*\(0, 1\]\.$"):
        DraftTree.of([-1, 0, 1], [0.5, bad, 0.5])


@pytest.mark.parametrize(
    ("parents", "probabilities", "tokens"),
    [([-1, 0], [0.5], None), ([-1], [0.5, 0.5], None), ([-1, 0], [0.5, 0.5], [7]), ([-1], [0.5], [7, 8])],
)
def test_lists_of_different_lengths_are_refused(
    parents: list[int], probabilities: list[float], tokens: list[int] | None
) -> None:
    with pytest.raises(InputError, match=r"one token, one parent and one probability per node\.$"):
        DraftTree.of(parents, probabilities, tokens)


def test_an_empty_tree_is_a_tree() -> None:
    assert len(DraftTree.of([], [])) == 0
    assert len(forest_of([DraftTree.of([], []), DraftTree.of([], [])])) == 2


def test_depths_and_paths_of_a_small_tree() -> None:
    tree = DraftTree.of([-1, -1, 0, 2, 1], [0.5, 0.25, 0.5, 1.0, 0.5])
    assert tree.depths.tolist() == [1, 1, 2, 3, 2]
    assert tree.paths.tolist() == [0.5, 0.25, 0.25, 0.25, 0.125]
    assert tree.probabilities.tolist() == [0.5, 0.25, 0.5, 1.0, 0.5]  # asking for paths changes nothing


def ids_by_handle(forest: Forest) -> dict[int, int]:
    return {int(forest.handle[node]): node for node in range(forest.batch, len(forest))}


@given(st.lists(trees(), min_size=1, max_size=3))
@settings(deadline=None, max_examples=200)
def test_forest_of_keeps_every_node_where_it_was(wanted: list[DraftTree]) -> None:
    forest = forest_of(wanted)
    ids = ids_by_handle(forest)
    assert sorted(ids) == list(range(sum(map(len, wanted))))
    offset = 0
    for request, tree in enumerate(wanted):
        for node in range(len(tree)):
            grown, parent = ids[offset + node], int(tree.parents[node])
            assert forest.parent[grown] == (request if parent < 0 else ids[offset + parent])
            assert forest.request[grown] == request
            assert forest.token[grown] == tree.tokens[node]
            assert forest.depth[grown] == tree.depths[node]
            assert forest.probability[grown] == tree.probabilities[node]
            assert forest.path[grown] == pytest.approx(tree.paths[node], rel=1e-12)
        offset += len(tree)


@given(st.lists(trees(), min_size=1, max_size=3))
@settings(deadline=None, max_examples=50)
def test_forest_of_grows_level_by_level(wanted: list[DraftTree]) -> None:
    assert np.all(np.diff(forest_of(wanted).depth) >= 0)
