"""Memory in large pages: reading 270 MB of weights in pages of 4 KB costs a sixth more."""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable, Sequence
from functools import cache

import torch

_PAGE = 2**21
_LINE = 64
_ADVICE = 14  # MADV_HUGEPAGE of Linux


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if platform.system() != "Linux":
        return None
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function  # type: ignore[no-any-return]


def empty_in_large_pages(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """`torch.empty` on a CPU, in large pages where the system gives them and the tensor fills some."""
    tensor = torch.empty(tuple(size), dtype=dtype)
    function, begin = _madvise(), tensor.data_ptr()
    first = -(-begin // _PAGE) * _PAGE
    length = (begin + tensor.nbytes - first) // _PAGE * _PAGE
    if function is not None and length > 0:
        function(first, length, _ADVICE)  # only a wish: a refusal changes nothing
    return tensor


class LargePages:
    """Hands out parts of large blocks of memory, so that many small tensors lie in large pages too."""

    def __init__(self, block: int = 2**25) -> None:
        """Args:
        block: bytes asked of the system at a time.
        """
        self._block = block
        self._rest = torch.empty(0, dtype=torch.uint8)

    def empty(self, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor that begins at a multiple of 64 bytes."""
        length = dtype.itemsize * math.prod(size)
        if len(self._rest) < length:
            self._rest = empty_in_large_pages((max(length, self._block) + _PAGE,), torch.uint8)
            self._rest = self._rest[-self._rest.data_ptr() % _PAGE :]
        part, self._rest = self._rest[:length], self._rest[length + -length % _LINE :]
        return part.view(dtype).view(tuple(size))
