"""Settings of a run that cannot be are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from smartree.errors import InputError
from smartree.train.config import TrainConfig


@pytest.mark.parametrize("name", ["epochs", "unrolled", "batch_tokens", "draft_vocab", "save_every", "evaluate_every"])
def test_counts_are_at_least_one(name: str) -> None:
    assert getattr(TrainConfig(**{name: 1}), name) == 1
    with pytest.raises(InputError, match=f"{name} is 0"):
        TrainConfig(**{name: 0})


@pytest.mark.parametrize("name", ["warm_epochs", "warm_up", "weight_decay", "intermediate_size"])
def test_some_may_be_zero_but_not_negative(name: str) -> None:
    assert getattr(TrainConfig(**{name: 0}), name) == 0
    with pytest.raises(InputError, match=f"{name} is -1"):
        TrainConfig(**{name: -1})


@pytest.mark.parametrize("value", [0, -1, float("nan")])
@pytest.mark.parametrize("name", ["learning_rate", "clip", "decay"])
def test_rates_are_above_zero(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name} is"):
        TrainConfig(**{name: value})


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, float("nan")])
def test_the_held_out_share_is_a_part(value: Any) -> None:
    with pytest.raises(InputError, match="held_out"):
        TrainConfig(held_out=value)
