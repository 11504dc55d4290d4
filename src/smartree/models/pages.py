"""Large tensors straight from the operating system, in large pages where it gives them."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from math import prod

import torch

_PAGE = 2**21
_LINE = 64


def zeros(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that, on a CPU, take memory page by page as they are written, and give all of it back when dropped.

    A general allocator keeps what was dropped for later requests of the same size; of tensors that are replaced by
    larger and larger ones, as a growing cache's are, it kept half as much again as the cache had. And reading weights
    in pages of 4 KB costs a sixth more than in pages of 2 MB.
    """
    count = prod(sizes)
    if device.type != "cpu" or count == 0 or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.zeros(tuple(sizes), dtype=dtype, device=device)
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # only a wish: a system without large pages says no
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(tuple(sizes))


class LargePages:
    """Hands out parts of large blocks of memory, so that many small tensors lie in large pages too."""

    def __init__(self, block: int = 2**25) -> None:
        """Args:
        block: bytes asked of the system at a time.
        """
        self._block = block
        self._rest = torch.empty(0, dtype=torch.uint8)

    def zeros(self, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros that begins at a multiple of 64 bytes."""
        length = dtype.itemsize * prod(sizes)
        if len(self._rest) < length:
            self._rest = zeros((max(length, self._block) + _PAGE,), torch.uint8, torch.device("cpu"))
            self._rest = self._rest[-self._rest.data_ptr() % _PAGE :]
        part, self._rest = self._rest[:length], self._rest[length + -length % _LINE :]
        return part.view(dtype).view(tuple(sizes))
