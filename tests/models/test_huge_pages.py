"""Memory in large pages is ordinary memory: the right size, nothing shared."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.models import huge_pages
from smartree.models.huge_pages import LargePages, empty_in_large_pages

DTYPES = [torch.bfloat16, torch.float32, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(0,), (3,), (2, 5, 7), (3, 2**20), (2**23,)])
def test_a_tensor_of_the_size_asked_for(size: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = empty_in_large_pages(size, dtype)
    assert tensor.shape == size
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    assert float(tensor.fill_(3).sum(dtype=torch.float64)) == 3 * tensor.numel()


def test_the_wish_covers_whole_pages_inside_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    wishes: list[tuple[int, int, int]] = []

    def refuse(begin: int, length: int, advice: int) -> int:
        wishes.append((begin, length, advice))
        return -1  # as a system without large pages does

    monkeypatch.setattr(huge_pages, "_madvise", lambda: refuse)
    tensor = empty_in_large_pages((5 * 2**20 + 77,), torch.uint8)
    [(begin, length, advice)] = wishes
    assert begin % 2**21 == 0
    assert length % 2**21 == 0
    assert length >= 2**21
    assert tensor.data_ptr() <= begin < begin + length <= tensor.data_ptr() + tensor.nbytes
    assert advice == 14
    empty_in_large_pages((1000,), torch.float32)
    assert len(wishes) == 1  # it fills no page


def test_a_system_that_knows_no_such_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_madvise", lambda: None)
    assert empty_in_large_pages((2**22,), torch.uint8).shape == (2**22,)
    assert LargePages(2**10).empty((3, 4), torch.float32).shape == (3, 4)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 70), st.sampled_from(DTYPES)), min_size=1, max_size=30))
@settings(deadline=None, max_examples=40)
def test_parts_begin_at_cache_lines_and_do_not_overlap(asked: list[tuple[int, int, torch.dtype]]) -> None:
    """A block of 4 KB: some parts fit into the rest of it, some need a new one, some are larger than a block."""
    pages = LargePages(2**12)
    parts = [pages.empty((rows, columns), dtype) for rows, columns, dtype in asked]
    for value, part in enumerate(parts):
        part.fill_(value)
    for value, (part, (rows, columns, dtype)) in enumerate(zip(parts, asked, strict=True)):
        assert part.shape == (rows, columns)
        assert part.dtype == dtype
        assert part.is_contiguous()
        assert rows == 0 or part.data_ptr() % 64 == 0
        assert torch.equal(part, torch.full_like(part, value))


def test_small_parts_share_a_block_that_begins_at_a_page() -> None:
    pages = LargePages(2**16)
    first, second = pages.empty((10,), torch.float32), pages.empty((10,), torch.float32)
    assert first.data_ptr() % 2**21 == 0
    assert second.data_ptr() == first.data_ptr() + 64
    assert pages.empty((2**15,), torch.uint8).data_ptr() == second.data_ptr() + 64
