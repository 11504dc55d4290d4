"""Rows of many slots at once move as they would one slot after the other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smartree.models.cache import CacheShape, SlotCache
from smartree.models.crew import RowMove
from smartree.models.moves import move_all

SLOTS, ROWS = 4, 12


def filled(transposed: bool) -> SlotCache:
    """Every number is different, so that a misplaced row shows."""
    cache = SlotCache(CacheShape(2, 3, 4), SLOTS, ROWS, torch.float64, torch.device("cpu"), transposed)
    numbers = torch.arange(2 * cache.keys.numel(), dtype=torch.float64).view(2, *cache.keys.shape)
    cache.keys.copy_(numbers[0])
    cache.values.copy_(numbers[1])
    return cache


@st.composite
def accepted_paths(draw: st.DrawFn) -> list[RowMove]:
    """For some slots a committed length and rising rows behind it, as a walk leaves them."""
    moves = []
    for slot in sorted(draw(st.sets(st.integers(0, SLOTS - 1)))):
        start = draw(st.integers(0, ROWS - 1))
        rows = sorted(draw(st.sets(st.integers(start, ROWS - 1))))
        moves.append(RowMove(slot, tuple(rows), start))
    return moves + moves[: draw(st.integers(0, 2))]


@pytest.mark.parametrize("transposed", [True, False], ids=["keys transposed", "keys in rows"])
@given(moves=accepted_paths())
def test_many_slots_move_as_one_after_the_other(transposed: bool, moves: list[RowMove]) -> None:
    together, apart = filled(transposed), filled(transposed)
    move_all(together, moves)
    for move in moves:
        apart.move_rows(move.slot, move.rows, move.start)
    assert torch.equal(together.keys, apart.keys)
    assert torch.equal(together.values, apart.values)
