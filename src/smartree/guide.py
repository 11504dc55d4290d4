"""What an output has to match: a JSON schema, a regular expression, or one of some texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smartree.errors import InputError


@dataclass(frozen=True, slots=True)
class Guide:
    """Exactly one of three ways to say what the whole output has to match.

    Attributes:
        json_schema: a JSON schema, as text or as the object itself; kept as text.
        regex: a regular expression without look-around and back references.
        choice: texts, of which the output is one.

    Raises:
        InputError: none or several are given, or the one given is malformed. Whether the grammar library knows
            everything in a schema or an expression shows when a request is added.
    """

    json_schema: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("json_schema", "regex", "choice") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InputError(
                f"A guide holds {' and '.join(given) or 'nothing'}; give exactly one of json_schema, regex and choice."
            )
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", _schema_text(self.json_schema))
        elif self.regex is not None and (not isinstance(self.regex, str) or not self.regex):
            raise InputError(f"regex is {self.regex!r}; it must be a regular expression as text.")
        elif self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))


def _schema_text(schema: str | Mapping[str, Any] | bool) -> str:
    """The schema as JSON text, its keys in their own order: that is the order in which they are written."""
    try:
        text = (
            schema if isinstance(schema, str) else json.dumps(dict(schema) if isinstance(schema, Mapping) else schema)
        )
        parsed = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InputError(f"The JSON schema is not JSON: {str(error).splitlines()[0]}.") from None
    if not isinstance(parsed, dict | bool):
        raise InputError(f"The JSON schema is a {type(parsed).__name__}; it must be an object, or true for any JSON.")
    return text


def _choices(choice: Sequence[str]) -> tuple[str, ...]:
    texts = (choice,) if isinstance(choice, str) else tuple(choice)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InputError("choice must hold at least one text, and no empty ones.")
    return texts
