"""Packed passes: positions, which rows see which, sliding windows over trees."""

from __future__ import annotations

import numpy as np
import torch

from smartree.models.cache import CacheShape, SlotCache
from smartree.models.packed_pass import PackedPass, RowGroup, causal_group


def seen(group: RowGroup, window: int = 0) -> np.ndarray:
    """[b, n, reach] True where the additive mask is 0."""
    bias = group.bias(1, window, torch.float64, torch.device("cpu"))[:, 0]
    assert set(bias.unique().tolist()) <= {0.0, float("-inf")}
    return (bias == 0).numpy()


def two_trees() -> RowGroup:
    """Request 0: root, two children, a grandchild below the second; request 1: root and one child."""
    mask = np.zeros((2, 4, 4), bool)
    for row, sees in enumerate(([0], [0, 1], [0, 2], [0, 2, 3])):
        mask[0, row, sees] = True
    mask[1, 0, 0] = mask[1, 1, 0] = mask[1, 1, 1] = True
    base = np.array([5, 2])
    return RowGroup([0, 1], base, base, np.array([4, 2]), np.array([0, 1, 1, 2, 0, 1]), mask)


def test_rows_see_the_prefix_their_ancestors_and_themselves() -> None:
    visible = seen(two_trees())
    assert visible.shape == (2, 4, 9)
    assert [np.flatnonzero(row).tolist() for row in visible[0]] == [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5, 6],
        [0, 1, 2, 3, 4, 5, 7],
        [0, 1, 2, 3, 4, 5, 7, 8],
    ]
    assert np.flatnonzero(visible[1, 0]).tolist() == [0, 1, 2]
    assert np.flatnonzero(visible[1, 1]).tolist() == [0, 1, 2, 3]
    assert visible[1, 2:].any(axis=1).all()  # padding rows see something, or their softmax is nan


def test_a_sliding_window_counts_positions_not_rows() -> None:
    visible = seen(two_trees(), window=3)
    # The grandchild, position 7, sees positions 5, 6 and 7: the root, its parent and itself, not its uncle's row 6.
    assert np.flatnonzero(visible[0, 3]).tolist() == [5, 7, 8]
    assert np.flatnonzero(visible[0, 1]).tolist() == [4, 5, 6]
    assert np.flatnonzero(visible[0, 2]).tolist() == [4, 5, 7]
    assert np.flatnonzero(visible[1, 1]).tolist() == [1, 2, 3]


def test_a_deep_node_is_far_from_its_ancestors_however_near_their_rows_are() -> None:
    # root - 1, 2, 3; below 3 the chain 4 - 5: row 3 is one row before row 4, and two positions before row 5.
    mask = np.zeros((1, 6, 6), bool)
    for row, sees in enumerate(([0], [0, 1], [0, 2], [0, 3], [0, 3, 4], [0, 3, 4, 5])):
        mask[0, row, sees] = True
    group = RowGroup([0], np.array([5]), np.array([5]), np.array([6]), np.array([0, 1, 1, 1, 2, 3]), mask)
    assert np.flatnonzero(seen(group, window=2)[0, 5]).tolist() == [9, 10]
    assert np.flatnonzero(seen(group, window=3)[0, 5]).tolist() == [8, 9, 10]
    assert np.flatnonzero(seen(group, window=4)[0, 5]).tolist() == [5, 8, 9, 10]


def test_heads_that_share_keys_are_folded_over_the_rows() -> None:
    group = two_trees()
    one = group.bias(1, 0, torch.float32, torch.device("cpu"))
    three = group.bias(3, 0, torch.float32, torch.device("cpu"))
    assert three.shape == (2, 1, 12, 9)
    assert torch.equal(three, torch.cat([one] * 3, dim=2))


def test_rows_find_their_way_to_the_padded_order_and_back() -> None:
    group = two_trees()
    places = group.places(torch.device("cpu"))
    assert places is not None
    padded, back = places
    assert padded[:6].tolist() == [0, 1, 2, 3, 4, 5]  # four rows of the first request, two of the second
    assert padded.shape == (2 * 4,)
    assert back.tolist() == [0, 1, 2, 3, 4, 5]
    base, sizes, depths = np.array([3, 3, 3]), np.array([1, 0, 3]), np.array([0, 0, 1, 2])
    places = RowGroup([0, 1, 2], base, base, sizes, depths, group_mask(1, 0, 3)).places(torch.device("cpu"))
    assert places is not None
    padded, back = places
    assert back.tolist() == [0, 6, 7, 8]
    rows = torch.arange(4.0)
    assert torch.equal(rows[padded][back], rows)
    assert padded.shape == (3 * 3,)  # whatever stands at a place of padding is some row
    assert 0 <= int(padded.min()) <= int(padded.max()) < 4


def group_mask(*sizes: int) -> np.ndarray:
    """[b, n, n] causal rows of requests with so many each."""
    inside = np.arange(max(sizes)) < np.array(sizes)[:, None]
    return np.tri(max(sizes), dtype=bool) & inside[:, :, None] & inside[:, None, :]


def test_requests_with_as_many_rows_each_need_no_padding() -> None:
    base = np.array([3, 3])
    group = RowGroup([0, 1], base, base, np.array([2, 2]), np.array([0, 1, 0, 1]), group_mask(2, 2))
    assert group.places(torch.device("cpu")) is None


def test_masks_of_different_windows_do_not_mix() -> None:
    group = two_trees()
    wide, narrow = seen(group), seen(group, 2)
    assert wide.sum() > narrow.sum()
    assert np.array_equal(wide, seen(group))


def test_a_chunk_is_causal_behind_what_is_cached() -> None:
    visible = seen(causal_group(3, 4, 3))
    assert [np.flatnonzero(row).tolist() for row in visible[0]] == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5, 6],
    ]


def test_positions_are_committed_length_plus_depth_and_rows_go_behind_the_cached_ones() -> None:
    cache = SlotCache(CacheShape(1, 1, 2), 4, 20, torch.float32, torch.device("cpu"))
    packed = PackedPass([two_trees(), causal_group(3, 4, 3)], cache)
    assert packed.positions.tolist() == [5, 6, 6, 7, 2, 3, 4, 5, 6]
    assert packed.index.rows.tolist() == [5, 6, 7, 8, 22, 23, 64, 65, 66]
    assert packed.rows == 9


def test_a_later_level_is_written_behind_the_earlier_ones_at_its_own_depth() -> None:
    cache = SlotCache(CacheShape(1, 1, 2), 2, 20, torch.float32, torch.device("cpu"))
    mask = np.zeros((1, 2, 5), bool)
    mask[0, 0, [0, 1, 3]] = mask[0, 1, [0, 2, 4]] = True
    level = RowGroup(
        [1], np.array([6]), np.array([9]), np.array([2]), np.array([2, 2]), mask, np.array([[0, 1, 1, 2, 2]])
    )
    packed = PackedPass([level], cache)
    assert packed.positions.tolist() == [8, 8]
    assert packed.index.rows.tolist() == [29, 30]
    assert np.flatnonzero(seen(level, window=2)[0, 1]).tolist() == [8, 10]


def test_parents_say_what_a_mask_says() -> None:
    """The trees of `two_trees`, told by parents: masks, windows and shapes are the same."""
    base, above = np.array([5, 2]), np.array([[-1, 0, 0, 2], [-7, 0, -1, -1]])
    group = RowGroup([0, 1], base, base, np.array([4, 2]), np.array([0, 1, 1, 2, 0, 1]), above=above)
    expected = two_trees()
    assert np.array_equal(group.mask, expected.mask)
    assert (group.width, group.columns, group.reach, group.rows) == (4, 4, 9, 6)
    for window in (0, 2, 3):
        assert np.array_equal(seen(group, window), seen(two_trees(), window))
    assert group.given_mask is None
    assert expected.given_mask is not None
    assert np.array_equal(group.bare().mask, expected.mask)


def test_a_later_level_told_by_parents() -> None:
    """Rows 9 and 10 behind a root and its two children, one below each."""
    above = np.array([[-1, 0, 0, 1, 2]])
    level = RowGroup([1], np.array([6]), np.array([9]), np.array([2]), np.array([2, 2]), above=above)
    assert [np.flatnonzero(row).tolist() for row in level.mask[0]] == [[0, 1, 3], [0, 2, 4]]
    assert np.flatnonzero(seen(level, window=2)[0, 1]).tolist() == [8, 10]
    assert not level.in_one_go


def test_causal_rows_of_several_requests_need_no_mask() -> None:
    base = np.array([3, 4, 9])
    group = RowGroup([2, 0, 1], base, base, np.array([2, 0, 3]), np.array([0, 1, 0, 1, 2]), causal=True)
    assert np.array_equal(group.mask, group_mask(2, 0, 3))
    assert group.given_mask is None
