"""A pass made up to be timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from smartree.models.packed_pass import RowGroup
from smartree.models.runner import ModelRunner


def rehearsal(runner: ModelRunner, batch: int, rows: int, context: int) -> Callable[[], torch.Tensor]:
    """A pass of `batch` requests with `rows` rows each behind `context` cached ones; gives its logits."""
    tokens = np.arange(batch * rows) % min(100, runner.vocab_size)
    return lambda: runner.forward([level_group(batch, rows, context)], tokens)


def level_group(batch: int, rows: int, context: int) -> RowGroup:
    """`rows` causal rows of each of `batch` requests behind `context` cached ones."""
    cached = np.full(batch, context)
    mask = np.broadcast_to(np.tril(np.ones((rows, rows), bool)), (batch, rows, rows)).copy()
    return RowGroup(list(range(batch)), cached, cached, np.full(batch, rows), np.tile(np.arange(rows), batch), mask)
