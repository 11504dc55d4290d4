"""Each value of the engine's configuration that is out of range is refused by name."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from smartree.config import DTYPES, EngineConfig
from smartree.errors import InputError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "int8"),
        ("dtype", ""),
        ("max_batch", 0),
        ("max_batch", -1),
        ("max_model_len", 1),
        ("max_model_len", 0),
        ("prefill_tokens", 0),
        ("cache_tokens", 15),
        ("cache_tokens", 0),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_sentence_that_names_it(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(InputError) as caught:
        EngineConfig("demo", **options)
    message = str(caught.value)
    # The option of the command line and of the LLM is called batch.
    assert message.startswith(f"{name.removeprefix('max_') if name == 'max_batch' else name} ")
    assert str(value) in message
    assert message.endswith(".")
    assert "\n" not in message


def test_an_unknown_dtype_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        EngineConfig("demo", dtype="int8")
    assert all(dtype in str(caught.value) for dtype in DTYPES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_listed_dtype_is_accepted(dtype: str) -> None:
    assert EngineConfig("demo", dtype=dtype).dtype == dtype


def test_the_smallest_values_are_accepted() -> None:
    config = EngineConfig("demo", max_batch=1, max_model_len=2, prefill_tokens=1)
    assert (config.max_batch, config.max_model_len, config.prefill_tokens) == (1, 2, 1)


def test_a_configuration_never_changes() -> None:
    config = EngineConfig("demo")
    with pytest.raises(FrozenInstanceError):
        config.max_batch = 2  # type: ignore[misc]
