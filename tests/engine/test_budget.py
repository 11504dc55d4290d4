"""Rows are counted in blocks, and trees are cut to those that are free."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartree.engine.budget import BLOCK, RowBudget
from smartree.errors import InputError
from smartree.tree.forest import Candidates, Forest, Proposal
from tests.tree.forests import candidates_of, grow, growths

BUDGET = RowBudget(10 * BLOCK)


def test_what_fills_no_block_is_lost() -> None:
    assert RowBudget(3 * BLOCK + 5).rows == 3 * BLOCK
    assert [RowBudget.blocks(rows) for rows in (0, 1, BLOCK, BLOCK + 1)] == [0, 1, 1, 2]
    assert [RowBudget.room(rows, 2) for rows in (1, BLOCK, BLOCK + 3)] == [3 * BLOCK - 1, 2 * BLOCK, 3 * BLOCK - 3]


def test_too_little_for_a_block_is_refused() -> None:
    with pytest.raises(InputError, match=f"cache_tokens is {BLOCK - 1}; it must be at least {BLOCK}"):
        RowBudget(BLOCK - 1)


@pytest.mark.parametrize(
    ("prompt", "most", "window", "fits"),
    [(100, 61, 10**6, True), (100, 62, 10**6, False), (100, 10**9, 161, True), (100, 10**9, 162, False)],
)
def test_a_request_has_to_fit_into_the_whole_cache(prompt: int, most: int, window: int, fits: bool) -> None:
    if fits:
        BUDGET.require(prompt, most, window)
        return
    with pytest.raises(InputError, match=r"needs 161 cache rows, but there are 160.*cache_tokens\.$") as error:
        BUDGET.require(prompt, most, window)
    assert "\n" not in str(error.value)


@given(growths(max_appends=5, max_new=30), st.integers(0, 4), st.booleans(), st.data())
def test_as_many_nodes_as_there_are_rows_and_always_whole_trees(
    growth: tuple[int, list[Candidates]], free: int, sampled: bool, data: st.DataObject
) -> None:
    batch, forest = growth[0], grow(*growth)
    forest.proposal = Proposal.SAMPLED if sampled else Proposal.POINT_MASS
    lengths = np.array(data.draw(st.lists(st.integers(1, 40), min_size=batch, max_size=batch)), np.int64)
    selected = forest.best_first()[: data.draw(st.integers(0, len(forest) - batch))]
    kept = BUDGET.trim(forest, selected, lengths, free)
    assert set(kept.tolist()) <= set(selected.tolist())
    assert forest.is_closed(kept)
    seen = set(range(batch))
    for node in kept.tolist():  # parents first
        assert int(forest.parent[node]) in seen
        seen.add(node)
    sizes = np.bincount(forest.request[kept], minlength=batch)
    held = -(-lengths // BLOCK)
    assert int((-(-(lengths + sizes) // BLOCK) - held).sum()) <= free
    if kept is not selected:
        # Whoever lost a node had no row left, and no block was left over.
        short = np.bincount(forest.request[selected], minlength=batch) > sizes
        assert short.any()
        assert ((lengths + sizes)[short] % BLOCK == 0).all()
        assert int((-(-(lengths + sizes) // BLOCK) - held).sum()) == free


def test_sampled_nodes_are_not_dropped_by_their_probabilities() -> None:
    forest = grow(1, [candidates_of([0] * 6, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])])
    forest.proposal = Proposal.SAMPLED
    selected = forest.best_first()
    kept = BUDGET.trim(forest, selected, np.array([BLOCK - 3]), 0)
    assert kept.tolist() == [1, 2, 3]
    forest.proposal = Proposal.POINT_MASS
    assert BUDGET.trim(forest, selected, np.array([BLOCK - 3]), 0).tolist() == [6, 5, 4]


def test_nothing_is_done_where_there_is_room() -> None:
    forest = Forest(np.array([1, 2]))
    selected = np.empty(0, np.int64)
    assert BUDGET.trim(forest, selected, np.array([5, 5]), 10) is selected
