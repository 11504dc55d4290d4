"""Choosing among logits: the best token of a row, the likeliest children of a node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.models.native.library import library, why_not

Likeliest = tuple[NDArray[np.int64], NDArray[np.float64]]


def takes(logits: torch.Tensor) -> bool:
    """True for bfloat16 logits on a CPU where the kernels run."""
    return logits.dtype == torch.bfloat16 and logits.device.type == "cpu" and why_not() is None


def argmax(logits: torch.Tensor, rows: Sequence[int]) -> list[int]:
    """The first of the largest of each of these rows of [K, vocabulary] logits."""
    logits = logits.contiguous()
    wanted = np.array(rows, np.int64)
    best = np.empty(len(wanted), np.int64)
    addresses = wanted.ctypes.data, len(wanted), best.ctypes.data
    library().argmax(logits.data_ptr(), logits.shape[-1], *addresses, torch.get_num_threads())
    return best.tolist()


def noisy_argmax(
    logits: torch.Tensor, rows: Sequence[int], keys: Sequence[int], temperatures: Sequence[float]
) -> list[int]:
    """The token of each of these rows with the best logit / temperature + Gumbel noise, the first of equal ones.

    Args:
        logits: [K, vocabulary] bfloat16.
        rows: [R] of the logits.
        keys: [R] of their noise (`noise_key`), unsigned, 64 bits.
        temperatures: [R] positive.
    """
    logits = logits.contiguous()
    wanted, seeds = np.array(rows, np.int64), np.array(keys, np.uint64)
    divisors, best = np.array(temperatures, np.float64), np.empty(len(rows), np.int64)
    library().gumbel(
        *(logits.data_ptr(), logits.shape[-1], wanted.ctypes.data, seeds.ctypes.data, divisors.ctypes.data),
        *(len(wanted), best.ctypes.data, torch.get_num_threads()),
    )
    return best.tolist()


def likeliest(logits: torch.Tensor, divisors: Sequence[float], count: int) -> Likeliest:
    """[n, count] likeliest entries of [n, vocabulary] logits and their probabilities, falling.

    Args:
        logits: bfloat16.
        divisors: [n] temperatures, at least 1e-30.
        count: entries of a row.
    """
    logits = logits.contiguous()
    rows, size = logits.shape
    sharpen = np.array([1 / divisor for divisor in divisors], np.float32)
    tokens, probabilities = np.empty((rows, count), np.int64), np.empty((rows, count))
    library().likeliest(
        *(logits.data_ptr(), rows, size, sharpen.ctypes.data, count),
        *(tokens.ctypes.data, probabilities.ctypes.data, torch.get_num_threads()),
    )
    return tokens, probabilities
