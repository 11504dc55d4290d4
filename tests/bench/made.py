"""Measures made by hand."""

from __future__ import annotations

from dataclasses import replace

from smartree.bench.measures import Measures

MEASURES = Measures(
    tokens=100,
    seconds=2.0,
    decoding_tokens=80,
    decoding_seconds=1.0,
    first_tokens=10,
    steps=40,
    requests=60,
    rows=240,
    levels=80,
    path_levels=150,
    draft_seconds=0.2,
    policy_seconds=0.04,
    bookkeeping_seconds=0.08,
    compared_steps=20,
    compared_seconds=0.5,
    predicted_seconds=0.4,
    prediction_error=0.1,
)


def timed(seconds: float, differing: tuple[int, ...] = ()) -> Measures:
    """The same work in other time."""
    return replace(MEASURES, seconds=seconds, differing=differing)
