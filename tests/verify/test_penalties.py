"""Penalties against the definitions written out token by token."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.sampling_params import SamplingParams
from smartree.verify.penalties import Penalties

VOCAB = 11
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=30)
penalties = st.builds(
    SamplingParams,
    presence_penalty=st.sampled_from([0.0, 0.7, -1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.6]),
)


def by_the_book(
    row: Sequence[float], prompt: Sequence[int], output: Sequence[int], params: SamplingParams
) -> list[float]:
    """Repetition over prompt and output, then frequency and presence over the output, for every token."""
    counts, changed = Counter(output), []
    for token, logit in enumerate(row):
        if token in prompt or token in output:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        logit -= params.frequency_penalty * counts[token]
        logit -= params.presence_penalty if counts[token] else 0.0
        changed.append(logit)
    return changed


@settings(deadline=None)
@given(tokens, tokens, penalties)
def test_logits_are_changed_as_the_definitions_say(
    prompt: list[int], output: list[int], params: SamplingParams
) -> None:
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(len(output)), dtype=torch.float64)
    grown = Penalties(params, prompt)
    for token in output:
        grown.push(token)
    mine = row.clone()
    grown.apply(mine)
    assert mine.tolist() == pytest.approx(by_the_book(row.tolist(), prompt, output, params), abs=1e-12)


def test_a_text_of_many_distinct_tokens() -> None:
    params = SamplingParams(frequency_penalty=0.5, repetition_penalty=1.2)
    draw = random.Random(0)
    prompt, output = ([draw.randrange(700) for _ in range(500)] for _ in range(2))
    grown, row = Penalties(params, prompt), torch.randn(700, dtype=torch.float64)
    for token in output:
        grown.push(token)
    mine = row.clone()
    grown.apply(mine)
    assert mine.tolist() == pytest.approx(by_the_book(row.tolist(), prompt, output, params), abs=1e-12)


def test_infinite_logits_stay() -> None:
    row = torch.tensor([-torch.inf, 1.0])
    Penalties(SamplingParams(repetition_penalty=2.0), [0, 1]).apply(row)
    assert row.tolist() == [-torch.inf, 0.5]
