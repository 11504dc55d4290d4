"""The promise (design 4) in bfloat16, where the native kernels run: the same tokens, exactly.

With torch's products a row rounds differently beside other rows, so in bfloat16 outputs may part at near-ties. In the
kernels every sum of a row has one order, whatever rows are beside it: with and without speculation, alone and in a
batch, with any drafter, at every temperature, the tokens are those of plain decoding of each request alone. No
tolerance.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from smartree import LLM, SamplingParams
from smartree.drafters.base import Drafter
from smartree.drafters.eagle3.checkpoint import write_checkpoint
from smartree.drafters.eagle3.drafter import Eagle3Drafter
from smartree.drafters.joint import JointDrafter
from smartree.drafters.ngram import NgramDrafter
from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner
from smartree.policies import Eagle2Policy
from tests.drafters.eagle3.heads import random_table, random_weights, tiny_spec
from tests.models.native.small import NATIVE_KINDS, NATIVE_SIZES, native_model, needs_kernels, threads
from tests.tiny import VOCAB, ScriptedDrafter, Truth, flat_profile, random_prompts

pytestmark = [pytest.mark.usefixtures("still_clock"), needs_kernels]
PROMPTS = random_prompts([1, 2, 5, 8, 13, 30, 3], seed=2)  # on both sides of the sliding window of 6
TOKENS = 8
GREEDY = [SamplingParams(max_tokens=TOKENS + place) for place in range(len(PROMPTS))]
SAMPLED = [
    SamplingParams(max_tokens=TOKENS + place, seed=7, temperature=temperature, top_k=top_k, top_p=top_p)
    for place, (temperature, top_k, top_p) in enumerate(
        [(1.0, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.8), (0.7, 0, 1.0), (1.0, 3, 0.9), (1.5, 20, 0.95), (0.3, 0, 1.0)]
    )
]
MIXED = [one if place % 2 else other for place, (one, other) in enumerate(zip(GREEDY, SAMPLED, strict=True))]
PARAMS = {"greedy": GREEDY, "sampled": SAMPLED, "mixed": MIXED}
DRAFTERS = ("ngram", "itself", "independent", "head", "head and lookup", "branching", "wrong")


@cache
def plain(kind: str, params: str) -> tuple[tuple[int, ...], ...]:
    """Outputs of plain decoding, one request at a time."""
    llm = LLM(native_model(kind), drafter="none", policy="none", max_batch=1)
    assert llm.target.kernels == "native"
    return tuple(
        tuple(llm.generate(prompt, one)[0].token_ids) for prompt, one in zip(PROMPTS, PARAMS[params], strict=True)
    )


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_logits_are_written_down_where_somebody_samples(
    params: list[SamplingParams], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(native_model(NATIVE_KINDS[0]), drafter="ngram", policy=Eagle2Policy(), max_batch=4)
    written: set[int] = set()
    run = ModelRunner.forward

    def noted(self: ModelRunner, *args: Any, **settings: Any) -> torch.Tensor:
        logits = run(self, *args, **settings)
        written.add(min(len(logits), 1))
        return logits

    monkeypatch.setattr(ModelRunner, "forward", noted)
    llm.generate(PROMPTS, params)
    assert written == {0} if params is GREEDY else 1 in written


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for these models that proposes any token, so that some of its many nodes are accepted."""
    spec = tiny_spec(**NATIVE_SIZES, draft_vocab_size=VOCAB, borrowed=frozenset({"embed_tokens", "lm_head"}))
    folder = tmp_path_factory.mktemp("native") / "head"
    write_checkpoint(folder, spec, random_weights(spec), random_table(spec), 64)
    return folder


def make_llm(drafter: str, kind: str, params: str, head: Path, **settings: Any) -> LLM:
    """A native target with a drafter of that name."""
    chosen: str | PreTrainedModel | Drafter = drafter
    if drafter == "itself":
        chosen = native_model(kind)
    elif drafter == "independent":
        chosen = native_model("qwen3", seed=5)
    elif drafter.startswith("head"):
        chosen = str(head)
    elif drafter in ("branching", "wrong"):
        texts = [prompt + list(output) for prompt, output in zip(PROMPTS, plain(kind, params), strict=True)]
        chosen = ScriptedDrafter(getattr(Truth(texts), drafter))
    levels = drafter not in ("ngram", "branching", "wrong")
    llm = LLM(native_model(kind), drafter=chosen, policy="none", profile=flat_profile(levels), **settings)
    if drafter.startswith("head"):
        assert isinstance(llm.drafter, Eagle3Drafter)
        assert llm.drafter.loaded.native
    if drafter == "head and lookup":
        assert llm.drafter is not None
        llm.drafter = JointDrafter(llm.drafter, NgramDrafter(shortest_match=1))
    return llm


def speculate(llm: LLM, kind: str, params: str, batch: int, policies: tuple[str, ...]) -> dict[str, int]:
    """Checks policies; returns the accepted nodes by policy."""
    accepted = {}
    for policy in policies:
        engine = llm.make_engine(policy, batch)
        outputs = llm.generate(PROMPTS, PARAMS[params], engine=engine)
        assert tuple(tuple(output.token_ids) for output in outputs) == plain(kind, params), (policy, batch)
        assert engine.runner.seating.rows_in_use() == 0
        verified = sum(output.stats.verified for output in outputs)
        assert (verified > 0) == (policy != "none")  # equality says something only if speculation took place
        accepted[policy] = sum(output.stats.accepted for output in outputs)
    return accepted


@pytest.mark.parametrize("params", ["greedy", "sampled"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_policy_gives_the_plain_tokens(drafter: str, params: str, head: Path) -> None:
    """Alone and in a batch that requests join as others end."""
    llm = make_llm(drafter, "llama", params, head, max_batch=4)
    for batch, policies in ((1, ("eagle2", "smart")), (4, ("none", "static", "eagle2", "smart"))):
        accepted = speculate(llm, "llama", params, batch, policies)
        if drafter in ("itself", "branching"):
            assert min(count for policy, count in accepted.items() if policy != "none") > 2 * len(PROMPTS)
        if drafter == "head":
            assert sum(accepted.values()) > 0
        if drafter == "wrong":
            assert sum(accepted.values()) == 0


@pytest.mark.parametrize("drafter", ["itself", "head"])
@pytest.mark.parametrize("kind", [kind for kind in NATIVE_KINDS if kind != "llama"])
def test_every_kind_of_model(kind: str, drafter: str, head: Path) -> None:
    """Trees deeper than the sliding window, and texts longer; requests of all temperatures share a batch."""
    accepted = speculate(make_llm(drafter, kind, "mixed", head), kind, "mixed", 3, ("eagle2", "static", "smart"))
    assert sum(accepted.values()) > (2 * len(PROMPTS) if drafter == "itself" else 0)


@pytest.mark.parametrize("drafter", ["itself", "head and lookup"])
@pytest.mark.parametrize("kind", ["llama", "sliding qwen2"])
def test_prompts_that_join_in_chunks_beside_trees(kind: str, drafter: str, head: Path) -> None:
    speculate(make_llm(drafter, kind, "mixed", head, prefill_tokens=5), kind, "mixed", 4, ("none", "eagle2", "smart"))


@pytest.mark.parametrize("count", [1, 2])
def test_the_number_of_threads_does_not_matter(count: int, head: Path) -> None:
    with threads(count):
        speculate(make_llm("head", "llama", "mixed", head), "llama", "mixed", 7, ("none", "eagle2"))


def test_requests_that_are_given_up_change_nothing_for_the_others(head: Path) -> None:
    """Slots are handed on and rows change places in the middle of it all."""
    llm = make_llm("head", "llama", "greedy", head, prefill_tokens=7, max_batch=3)
    engine = llm.make_engine("eagle2", 3)
    requests = [engine.add(prompt, one) for prompt, one in zip(PROMPTS, GREEDY, strict=True)]
    given_up = (0, 3, 5)
    for place in given_up:
        engine.step()
        engine.abort(requests[place])
    while engine.unfinished:
        engine.step()
    for place, request in enumerate(requests):
        if place not in given_up:
            assert tuple(request.output) == plain("llama", "greedy")[place]


@pytest.mark.parametrize("kind", NATIVE_KINDS)
def test_these_outputs_hold_near_ties(kind: str) -> None:
    """Where the two best logits are at most two steps of bfloat16 apart: a sum in another order would show there."""
    llm = LLM(native_model(kind), drafter="none", policy="none")
    ties = 0
    for prompt, output in zip(PROMPTS, plain(kind, "greedy"), strict=True):
        text = np.array([*prompt, *output])
        logits = ModelRunner(llm.target, 1, 64).forward([causal_group(0, 0, len(text))], text)[len(prompt) - 1 : -1]
        best = logits.float().topk(2, dim=-1).values
        ties += int(((best[:, 0] - best[:, 1]) <= 2 * 2**-7 * best[:, 0].abs()).sum())
    assert ties >= 3
