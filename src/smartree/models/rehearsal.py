"""A pass made up to be timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from smartree.models.packed_pass import RowGroup
from smartree.models.runner import ModelRunner


def rehearsal(
    runner: ModelRunner, sizes: Sequence[int], context: int, logits: bool = True
) -> Callable[[], torch.Tensor]:
    """A pass of requests with so many rows each behind `context` cached ones; gives its logits, if they are wanted."""
    tokens = np.arange(sum(sizes)) % min(100, runner.vocab_size)
    return lambda: runner.forward([level_group(sizes, context)], tokens, logits=logits)


def level_group(sizes: Sequence[int], context: int) -> RowGroup:
    """Causal rows of requests with `sizes` rows each behind `context` cached ones."""
    counts = np.array(sizes)
    cached = np.full(len(counts), context)
    depths = np.concatenate([np.arange(size) for size in sizes])
    return RowGroup(list(range(len(counts))), cached, cached, counts, depths, causal=True)
