"""Memory from the operating system: zeros like any other, and given back."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.models.pages import LargePages, zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(3, 5, 7), (1,), (2, 0, 4), (64, 1024)])
def test_they_are_zeros_of_their_own(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    one, other = zeros(sizes, dtype, CPU), zeros(sizes, dtype, CPU)
    assert one.shape == sizes
    assert one.dtype == dtype
    assert one.is_contiguous()
    assert torch.equal(one, torch.zeros(sizes, dtype=dtype))
    one += 1
    assert torch.count_nonzero(other) == 0


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_taken_when_written_and_given_back_when_dropped() -> None:
    size, some = 64 * 2**20, 16 * 2**20
    before = resident()
    tensor = zeros((size,), torch.uint8, CPU)
    assert resident() < before + some
    tensor.fill_(1)
    assert resident() > before + size - some
    del tensor
    gc.collect()
    assert resident() < before + some


DTYPES = [torch.bfloat16, torch.float32, torch.uint8]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 70), st.sampled_from(DTYPES)), min_size=1, max_size=30))
@settings(deadline=None, max_examples=40)
def test_parts_begin_at_cache_lines_and_do_not_overlap(asked: list[tuple[int, int, torch.dtype]]) -> None:
    """A block of 4 KB: some parts fit into the rest of it, some need a new one, some are larger than a block."""
    pages = LargePages(2**12)
    parts = [pages.zeros((rows, columns), dtype) for rows, columns, dtype in asked]
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
    first, second = pages.zeros((10,), torch.float32), pages.zeros((10,), torch.float32)
    assert first.data_ptr() % 2**21 == 0
    assert second.data_ptr() == first.data_ptr() + 64
    assert pages.zeros((2**15,), torch.uint8).data_ptr() == second.data_ptr() + 64
