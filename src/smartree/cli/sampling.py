"""Sampling options of `smartree generate` beyond the common ones, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smartree.errors import InputError
from smartree.guide import Guide

_PANEL = "Sampling"

MinP = Annotated[
    float,
    typer.Option(
        "--min-p", help="Drop tokens less than this share as likely as the likeliest; 0: none.", rich_help_panel=_PANEL
    ),
]
PresencePenalty = Annotated[
    float,
    typer.Option(
        "--presence-penalty", help="Taken off the logits of tokens already in the output.", rich_help_panel=_PANEL
    ),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(
        "--frequency-penalty", help="Taken off once for each time a token is in the output.", rich_help_panel=_PANEL
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        "--repetition-penalty",
        help="Divides the logits of tokens already in prompt or output; 1: off.",
        rich_help_panel=_PANEL,
    ),
]
MinTokens = Annotated[int, typer.Option("--min-tokens", help="No end before this many tokens.", rich_help_panel=_PANEL)]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        metavar="K",
        help="Write each token's log-probability and the K likeliest tokens' with --json.",
        rich_help_panel=_PANEL,
    ),
]
Outputs = Annotated[int, typer.Option("--n", help="Outputs of each prompt.", rich_help_panel=_PANEL)]
JsonSchema = Annotated[
    Path | None,
    typer.Option(
        "--json-schema", metavar="FILE", help="The output is JSON that fits this schema.", rich_help_panel=_PANEL
    ),
]
Regex = Annotated[
    str | None, typer.Option("--regex", help="The output matches this expression.", rich_help_panel=_PANEL)
]
Choice = Annotated[
    list[str] | None,
    typer.Option("--choice", help="The output is one of these; give it several times.", rich_help_panel=_PANEL),
]


def read_guide(json_schema: Path | None, regex: str | None, choice: list[str] | None) -> Guide | None:
    """The guide that the options ask for.

    Raises:
        InputError: several are given, or the schema's file cannot be read.
    """
    if json_schema is None and regex is None and not choice:
        return None
    schema = None
    if json_schema is not None:
        try:
            schema = json_schema.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise InputError(f"The schema {str(json_schema)!r} cannot be read: {reason}.") from None
    return Guide(json_schema=schema, regex=regex, choice=tuple(choice) if choice else None)
