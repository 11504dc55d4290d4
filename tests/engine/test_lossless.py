"""The promise (design 4): every policy gives the tokens of plain decoding, and plain decoding those of transformers."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

from smartree import LLM, SamplingParams
from smartree.drafters.base import Drafter
from tests.tiny import (
    ARCHITECTURES,
    ScriptedDrafter,
    Truth,
    flat_profile,
    random_prompts,
    tiny_model,
)

LENGTHS = [1, 2, 3, 5, 8, 13, 21, 30]  # on both sides of the sliding window of 6
PROMPTS = random_prompts(LENGTHS)
TOKENS = 14
GREEDY = [SamplingParams(max_tokens=TOKENS)] * len(PROMPTS)
SAMPLED = [
    SamplingParams(max_tokens=TOKENS, seed=7, temperature=temperature, top_k=top_k, top_p=top_p)
    for temperature, top_k, top_p in [
        (1.0, 0, 1.0),
        (1.0, 5, 1.0),
        (1.0, 0, 0.8),
        (0.7, 0, 1.0),
        (1.0, 3, 0.9),
        (1.5, 20, 0.95),
        (1.0, 0, 1.0),
        (1.0, 0, 0.9),
    ]
]
MIXED = [one for pair in zip(GREEDY[::2], SAMPLED[::2], strict=True) for one in pair]
PARAMS = {"greedy": GREEDY, "sampled": SAMPLED, "mixed": MIXED}
SPECULATIVE = ("smart", "paper", "eagle2")


@cache
def plain(architecture: str, kind: str) -> tuple[tuple[int, ...], ...]:
    """Outputs of plain decoding, one request at a time."""
    llm = LLM(tiny_model(architecture), drafter="none", policy="none", max_batch=1)
    return tuple(tuple(output.token_ids) for output in llm.generate(PROMPTS, PARAMS[kind]))


def truth(architecture: str, kind: str) -> Truth:
    return Truth([prompt + list(output) for prompt, output in zip(PROMPTS, plain(architecture, kind), strict=True)])


def make_drafter(name: str, architecture: str, kind: str) -> str | PreTrainedModel | Drafter:
    """An independent model, the target's own weights, or a script that knows the output."""
    if name == "independent":
        return tiny_model("llama", seed=5)
    if name == "itself":
        return tiny_model(architecture)
    if name in ("branching", "wrong"):
        return ScriptedDrafter(getattr(truth(architecture, kind), name))
    return name


def speculate(
    drafter: str, architecture: str, kind: str, batches: tuple[int, ...], prefill_tokens: int = 512
) -> dict[str, int]:
    """Checks all policies at all batch sizes; returns the accepted nodes by policy."""
    llm = LLM(
        tiny_model(architecture),
        drafter=make_drafter(drafter, architecture, kind),
        policy="none",
        profile=flat_profile(levels=drafter in ("independent", "itself")),
        max_batch=max(batches),
        prefill_tokens=prefill_tokens,
    )
    expected = [list(tokens) for tokens in plain(architecture, kind)]
    accepted = {}
    for batch in batches:
        engine = llm.make_engine("none", batch)
        assert [output.token_ids for output in llm.generate(PROMPTS, PARAMS[kind], engine=engine)] == expected
        for policy in SPECULATIVE:
            engine = llm.make_engine(policy, batch)
            outputs = llm.generate(PROMPTS, PARAMS[kind], engine=engine)
            assert [output.token_ids for output in outputs] == expected, (policy, batch)
            # Equality says something only if speculation took place.
            assert sum(output.stats.verified for output in outputs) > 2 * len(PROMPTS), (policy, batch)
            assert engine.runner.seating.rows_in_use() == 0
            accepted[policy] = sum(output.stats.accepted for output in outputs)
    return accepted


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["ngram", "independent", "itself", "branching", "wrong"])
def test_every_policy_gives_the_plain_tokens_at_every_batch_size(drafter: str, kind: str) -> None:
    accepted = speculate(drafter, "llama", kind, batches=(1, 3, 8))
    if drafter in ("itself", "branching"):
        assert min(accepted.values()) > 3 * len(PROMPTS)
    if drafter == "wrong":
        assert max(accepted.values()) == 0


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["ngram", "itself", "branching"])
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "llama"])
def test_every_policy_gives_the_plain_tokens_on_every_architecture(architecture: str, drafter: str, kind: str) -> None:
    accepted = speculate(drafter, architecture, kind, batches=(3,))
    if drafter != "ngram":
        assert min(accepted.values()) > 3 * len(PROMPTS)


@pytest.mark.parametrize("drafter", ["ngram", "itself", "branching"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_requests_with_and_without_temperature_share_a_batch(architecture: str, drafter: str) -> None:
    speculate(drafter, architecture, "mixed", batches=(8,))


@pytest.mark.parametrize("drafter", ["ngram", "itself", "branching"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3"])
def test_prompts_that_join_in_chunks_beside_decoding_requests(architecture: str, drafter: str) -> None:
    speculate(drafter, architecture, "sampled", batches=(3, 8), prefill_tokens=5)


@pytest.mark.parametrize("eos", [None, 40])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plain_decoding_gives_the_tokens_of_transformers(architecture: str, eos: int | None) -> None:
    theirs = tiny_model(architecture, eos=eos)
    llm = LLM(tiny_model(architecture, eos=eos), drafter="none", policy="none", max_batch=3, prefill_tokens=16)
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=24))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = theirs.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0)
        assert output.token_ids == expected[0, len(prompt) :].tolist()
        assert output.finish_reason == ("stop" if output.token_ids[-1] == eos else "length")


def test_the_probe_of_this_file_sees_attention() -> None:
    # With uniform or constant outputs every test above would pass; these outputs depend on far tokens.
    changed = [[(prompt[0] + 1) % 97, *prompt[1:]] for prompt in PROMPTS if len(prompt) > 5]
    llm = LLM(tiny_model("llama"), drafter="none", policy="none")
    outputs = [output.token_ids for output in llm.generate(changed, SamplingParams(max_tokens=TOKENS))]
    differing = sum(list(old) != new for old, new in zip(plain("llama", "greedy")[-len(changed) :], outputs, strict=True))
    assert differing >= len(changed) - 1
