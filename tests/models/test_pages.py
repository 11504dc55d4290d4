"""Memory from the operating system: zeros like any other, and given back."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch

from smartree.models.pages import zeros

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
