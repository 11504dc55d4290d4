"""A profile is refused on another setup, in a message that says what differs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from smartree.cost import ProfileKey
from smartree.errors import InputError, ProfileMismatchError
from tests.cost.keys import KEY

NAMES = [field.name for field in fields(ProfileKey)]


def changed(name: str) -> ProfileKey:
    other: dict[str, Any] = {name: 99 if name == "threads" else "another"}
    return replace(KEY, **other)


def test_the_same_setup_is_accepted() -> None:
    KEY.require(replace(KEY))


@pytest.mark.parametrize("name", NAMES)
def test_a_mismatch_names_the_field_and_both_values_and_no_other_field(name: str) -> None:
    with pytest.raises(ProfileMismatchError) as caught:
        KEY.require(changed(name))
    message = str(caught.value)
    assert f"{name} (profile: {getattr(KEY, name)}, here: {getattr(changed(name), name)})" in message
    assert all(f"{other} (profile:" not in message for other in NAMES if other != name)
    assert "smartree profile" in message


def test_a_mismatch_names_each_differing_field() -> None:
    with pytest.raises(ProfileMismatchError) as caught:
        KEY.require(replace(KEY, threads=8, dtype="float32"))
    assert "threads (profile: 2, here: 8)" in str(caught.value)
    assert "dtype (profile: bfloat16, here: float32)" in str(caught.value)
    assert isinstance(caught.value, InputError)


def test_the_digest_is_stable() -> None:
    # Names of saved profiles: a digest that changed would make every machine measure again.
    assert KEY.digest() == "9ce4c659fed4fff6"
    assert replace(KEY).digest() == KEY.digest()
    assert len({KEY.digest(), *(changed(name).digest() for name in NAMES)}) == 1 + len(NAMES)


def test_a_key_survives_json() -> None:
    assert ProfileKey.from_json(KEY.to_json()) == KEY
    assert ProfileKey.from_json(KEY.to_json() | {"added later": 1}) == KEY


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_field_is_named(name: str) -> None:
    data = {key: value for key, value in KEY.to_json().items() if key != name}
    with pytest.raises(InputError, match=rf"lacks {name};"):
        ProfileKey.from_json(data)


@pytest.mark.parametrize("data", [None, "cpu", ["cpu"], 3])
def test_what_is_no_object_is_no_key(data: object) -> None:
    with pytest.raises(InputError, match="no key"):
        ProfileKey.from_json(data)
