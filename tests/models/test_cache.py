"""The slot cache: rows go where they should, move in place, and survive growth."""

from __future__ import annotations

import pytest
import torch

from smartree.models.cache import CacheShape, SlotCache
from smartree.models.crew import RowMove

SHAPE = CacheShape(layers=3, kv_heads=2, head_dim=4)


@pytest.fixture(params=[True, False], ids=["keys transposed", "keys in rows"])
def transposed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def filled(transposed: bool, slots: int = 3, rows: int = 10) -> SlotCache:
    """Every number is different, so that a misplaced row shows."""
    cache = SlotCache(SHAPE, slots, rows, torch.float64, torch.device("cpu"), transposed)
    numbers = torch.arange(2 * cache.keys.numel(), dtype=torch.float64).view(2, *cache.keys.shape)
    cache.keys.copy_(numbers[0])
    cache.values.copy_(numbers[1])
    return cache


def data(cache: SlotCache) -> torch.Tensor:
    """[layers, 2, slots, kv_heads, rows, head_dim] a copy of all there is."""
    return torch.stack([cache.keys, cache.values], dim=1)


def test_a_fresh_cache_is_finite_everywhere() -> None:
    # Masked rows enter the product with weight 0, and 0 * nan is nan.
    cache = SlotCache(SHAPE, 2, 5, torch.bfloat16, torch.device("cpu"))
    assert data(cache).shape == (3, 2, 2, 2, 5, 4)
    assert torch.count_nonzero(data(cache)) == 0


def test_rows_are_written_where_the_index_says_and_nowhere_else(transposed: bool) -> None:
    cache = filled(transposed)
    before = data(cache)
    index = cache.write_index(slots=[2, 0], starts=[3, 7], sizes=[2, 1])
    keys, values = torch.randn(2, 1, 2, 3, 4, dtype=torch.float64)
    cache.write(1, index, keys, values)
    for which, new in ((0, keys), (1, values)):
        written = data(cache)[1, which]
        assert torch.equal(written[2, :, 3:5], new[0, :, :2])
        assert torch.equal(written[0, :, 7], new[0, :, 2])
    before[1, :, 2, :, 3:5] = data(cache)[1, :, 2, :, 3:5]
    before[1, :, 0, :, 7] = data(cache)[1, :, 0, :, 7]
    assert torch.equal(data(cache), before)


def test_requests_without_new_rows_are_left_out(transposed: bool) -> None:
    cache = filled(transposed)
    index = cache.write_index(slots=[0, 1, 2], starts=[4, 5, 6], sizes=[1, 0, 2])
    assert index.rows.tolist() == [4, 46, 47, 14, 56, 57]  # 10 rows a head, 2 heads a slot


@pytest.mark.parametrize("sources", [[3, 4, 5], [3, 5, 8], [4, 5, 6], [9], [5, 4, 3], []])
def test_moved_rows_follow_each_other_from_the_start_given(sources: list[int], transposed: bool) -> None:
    cache = filled(transposed)
    before = data(cache)
    cache.move(RowMove(1, tuple(sources), 3).each())
    end = 3 + len(sources)
    assert torch.equal(data(cache)[:, :, 1, :, 3:end], before[:, :, 1, :, sources])
    assert torch.equal(data(cache)[:, :, 1, :, :3], before[:, :, 1, :, :3])
    assert torch.equal(data(cache)[:, :, [0, 2]], before[:, :, [0, 2]])


def test_a_copied_slot_keeps_its_first_rows(transposed: bool) -> None:
    cache = filled(transposed)
    before = data(cache)
    cache.copy_slot(0, 2, 4)
    assert torch.equal(data(cache)[:, :, 2, :, :4], before[:, :, 0, :, :4])
    assert torch.equal(data(cache)[:, :, 2, :, 4:], before[:, :, 2, :, 4:])
    assert torch.equal(data(cache)[:, :, :2], before[:, :, :2])


def test_growing_keeps_rows_and_views(transposed: bool) -> None:
    cache = filled(transposed, rows=10)
    before = data(cache)
    cache.ensure_rows(8, 300)
    assert cache.rows == 10  # large enough already
    cache.ensure_rows(11, 300)
    assert cache.rows == 96  # an odd multiple of 32, at least 64 apart, so that growing stays rare
    assert torch.equal(data(cache)[..., :10, :], before)
    assert torch.count_nonzero(data(cache)[..., 10:, :]) == 0
    keys = values = torch.ones(1, 2, 1, 4, dtype=torch.float64)
    cache.write(2, cache.write_index([1], [15], [1]), keys, values)
    assert torch.equal(cache.layer(2)[0][1, :, 15], torch.ones(2, 4, dtype=torch.float64))
    cache.ensure_rows(160, 300)
    assert cache.rows == 224  # with room for what comes behind a long prompt
    cache.ensure_rows(225, 300)
    assert cache.rows == 300  # no more than will ever be needed
    cache.ensure_rows(310, 300)
    assert cache.rows == 310  # but what is needed now counts more


@pytest.mark.parametrize("layers", [1, 3, 4, 8])
def test_layers_in_several_tensors_are_one_cache(layers: int, transposed: bool) -> None:
    draw = torch.Generator().manual_seed(layers)
    cache = SlotCache(CacheShape(layers, 2, 4), 3, 10, torch.float64, torch.device("cpu"), transposed)
    expected = torch.zeros(layers, 2, 3, 2, 10, 4, dtype=torch.float64)
    for layer in range(layers):
        new = torch.randn(2, 1, 2, 30, 4, dtype=torch.float64, generator=draw)
        cache.write(layer, cache.write_index([0, 1, 2], [0, 0, 0], [10, 10, 10]), new[0], new[1])
        expected[layer] = new[:, 0].reshape(2, 2, 3, 10, 4).transpose(1, 2)
    assert torch.equal(data(cache), expected)
    cache.move([(0, 7, 3), (2, 5, 4), (0, 8, 4), (1, 9, 7)])
    for slot, source, target in ((0, 7, 3), (0, 8, 4), (2, 5, 4), (1, 9, 7)):
        expected[:, :, slot, :, target] = expected[:, :, slot, :, source]
    assert torch.equal(data(cache), expected)
    cache.copy_slot(1, 0, 6)
    expected[:, :, 0, :, :6] = expected[:, :, 1, :, :6]
    assert torch.equal(data(cache), expected)
    cache.ensure_rows(20, 1000)
    assert torch.equal(data(cache)[..., :10, :], expected)
    assert cache.nbytes == data(cache).nbytes


def test_while_it_grows_only_a_few_layers_are_there_twice(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SlotCache(CacheShape(30, 2, 4), 3, 64, torch.float64, torch.device("cpu"), transposed)
    before, made, peak = cache.nbytes, 0, 0
    empty = cache._empty

    def counting(layers: int, rows: int, transposed: bool) -> torch.Tensor:
        nonlocal made, peak
        tensor = empty(layers, rows, transposed)
        made += tensor.nbytes
        # What has been replaced already is garbage: only tensors that the cache still names are alive.
        peak = max(peak, cache.nbytes + tensor.nbytes)
        return tensor

    monkeypatch.setattr(cache, "_empty", counting)
    cache.ensure_rows(100, 1000)
    assert made == cache.nbytes > before
    assert peak <= 1.1 * cache.nbytes
    assert cache._views[0][0].data_ptr() == cache._keys[0].data_ptr()
