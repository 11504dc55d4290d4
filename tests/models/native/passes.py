"""Runners of random native models, and what it means that two results are the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from hypothesis import strategies as st

from smartree.models.load import LoadedModel
from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner
from tests.models.native.small import (
    native_target,
)

WINDOW = 109  # no multiple of 32 or 16, nor even
SEEDS = st.integers(0, 2**32 - 1)


@cache
def target(kind: str) -> LoadedModel:
    return native_target(kind)


def runner_of(kind: str, slots: int = 1, window: int = WINDOW, tapped: Sequence[int] = ()) -> ModelRunner:
    return ModelRunner(target(kind), slots, window, tapped)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """What must be the same: minus zero is not zero, and a NaN equals itself."""
    return tensor.contiguous().view(torch.int16)


def same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    assert bool(torch.isfinite(mine.float()).all())
    return torch.equal(bits(mine), bits(theirs))


def in_one_go(runner: ModelRunner, tokens: Sequence[int]) -> torch.Tensor:
    return runner.forward([causal_group(0, 0, len(tokens))], np.array(tokens))
