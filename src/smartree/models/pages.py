"""Large tensors of zeros straight from the operating system."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod

import torch


def zeros(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that, on a CPU, take memory page by page as they are written, and give all of it back when dropped.

    A general allocator keeps what was dropped for later requests of the same size; of tensors that are replaced by
    larger and larger ones, as a growing cache's are, it kept half as much again as the cache had.
    """
    count = prod(sizes)
    if device.type != "cpu" or count == 0 or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.zeros(tuple(sizes), dtype=dtype, device=device)
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(tuple(sizes))
