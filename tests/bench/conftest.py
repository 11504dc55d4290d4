"""A tiny random model in float32 with a hand-made profile, and suites of prompts that repeat themselves."""

from __future__ import annotations

import pytest
import torch

from smartree import LLM
from smartree.bench.suites import EncodedSuite
from tests.tiny import flat_profile, random_prompts, tiny_model

LENGTHS = [9, 14, 6, 21]


@pytest.fixture(scope="session")
def llm() -> LLM:
    model = tiny_model("llama", dtype=torch.float32)
    return LLM(model, drafter="ngram", policy="none", profile=flat_profile(), max_batch=4)


@pytest.fixture(scope="session")
def suites() -> dict[str, EncodedSuite]:
    """Two suites of four measured and two search prompts."""
    return {
        name: EncodedSuite(tuple(random_prompts(LENGTHS, seed=seed)), tuple(random_prompts([8, 12], seed=100 + seed)))
        for seed, name in enumerate(("one", "two"))
    }
