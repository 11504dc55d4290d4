"""Guides: exactly one way, well-formed, comparable."""

from __future__ import annotations

from typing import Any

import pytest

from smartree import Guide
from smartree.errors import InputError


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, r"A guide holds nothing; give exactly one of json_schema, regex and choice\."),
        ({"regex": "a", "choice": ["b"]}, r"A guide holds regex and choice; give exactly one"),
        ({"json_schema": {}, "regex": "a", "choice": ["b"]}, r"A guide holds json_schema and regex and choice"),
        ({"json_schema": '{"type": '}, r"The JSON schema is not JSON: "),
        ({"json_schema": "[1]"}, r"The JSON schema is a list; it must be an object"),
        ({"json_schema": {"enum": [object()]}}, r"The JSON schema is not JSON: "),
        ({"regex": ""}, r"regex is ''; it must be a regular expression"),
        ({"regex": 5}, r"regex is 5; it must be a regular expression"),
        ({"choice": []}, r"choice must hold at least one text"),
        ({"choice": ["a", ""]}, r"choice must hold at least one text"),
        ({"choice": [1]}, r"choice must hold at least one text"),
    ],
)
def test_what_is_not_one_guide_is_refused_in_one_sentence(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=f"^{why}") as caught:
        Guide(**settings)
    assert "\n" not in str(caught.value)


def test_guides_can_be_compared_and_hashed_however_they_were_given() -> None:
    assert Guide(json_schema={"type": "null"}) == Guide(json_schema='{"type": "null"}')
    assert Guide(choice=["a", "b"]) == Guide(choice=("a", "b"))
    assert len({Guide(choice=["a"]), Guide(choice=("a",)), Guide(regex="a")}) == 2
    one: Any = "yes"
    assert Guide(choice=one).choice == ("yes",)
    assert Guide(json_schema=True).json_schema == "true"
