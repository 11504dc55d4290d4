"""The promise (design 4): every policy gives the tokens of plain decoding, and plain decoding those of transformers."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from scipy import stats
from transformers import PreTrainedModel

from smartree import LLM, SamplingParams
from smartree.drafters.base import Drafter
from smartree.policies import POLICY_NAMES
from tests.tiny import (
    ARCHITECTURES,
    ScriptedDrafter,
    Truth,
    flat_profile,
    random_prompts,
    reference_model,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("still_clock")
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
MAIN = ("smart", "paper", "eagle2")
EVERY = tuple(name for name in POLICY_NAMES if name != "none")


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
    drafter: str,
    architecture: str,
    kind: str,
    batches: tuple[int, ...],
    policies: tuple[str, ...] = MAIN,
    prefill_tokens: int = 512,
) -> dict[str, int]:
    """Checks policies at all batch sizes; returns the accepted nodes by policy."""
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
        for policy in policies:
            engine = llm.make_engine(policy, batch)
            outputs = llm.generate(PROMPTS, PARAMS[kind], engine=engine)
            assert [output.token_ids for output in outputs] == expected, (policy, batch)
            # Equality says something only if speculation took place.
            verified = sum(output.stats.verified for output in outputs)
            assert verified > (len(PROMPTS) if policy in MAIN else 0), (policy, batch)
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
    accepted = speculate(drafter, architecture, kind, batches=(3,), policies=EVERY)
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
    theirs = reference_model(architecture, eos=eos)
    llm = LLM(tiny_model(architecture, eos=eos), drafter="none", policy="none", max_batch=3, prefill_tokens=16)
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=24))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = torch.tensor([prompt])
        expected = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0
        )
        assert output.token_ids == expected[0, len(prompt) :].tolist()
        assert output.finish_reason == ("stop" if output.token_ids[-1] == eos else "length")


def test_these_outputs_depend_on_tokens_far_back() -> None:
    # Otherwise every test above would pass with a wrong mask or a wrong cache row, too.
    changed = [[(prompt[0] + 1) % 97, *prompt[1:]] for prompt in PROMPTS if len(prompt) > 5]
    llm = LLM(tiny_model("llama"), drafter="none", policy="none")
    outputs = [output.token_ids for output in llm.generate(changed, SamplingParams(max_tokens=TOKENS))]
    differing = sum(
        list(old) != new for old, new in zip(plain("llama", "greedy")[-len(changed) :], outputs, strict=True)
    )
    assert differing >= len(changed) - 1


@pytest.fixture
def running_clock(still_clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes the still clock of this file: step times correct the costs, as in real use."""
    monkeypatch.undo()


@pytest.mark.parametrize("drafter", ["ngram", "itself"])
def test_costs_that_change_while_decoding_change_the_trees_not_the_tokens(drafter: str, running_clock: None) -> None:
    llm = LLM(
        tiny_model("llama"),
        drafter=make_drafter(drafter, "llama", "sampled"),
        policy="smart",
        profile=flat_profile(levels=drafter == "itself"),
    )
    expected = [list(tokens) for tokens in plain("llama", "sampled")]
    for _ in range(8):
        assert [output.token_ids for output in llm.generate(PROMPTS, PARAMS["sampled"])] == expected
    assert llm.engine.stats.steps > 20  # more than the costs wait before they move
    assert llm.engine.stats.verified_rows > llm.engine.stats.requests_decoded


def test_sequences_of_a_speculating_engine_follow_the_law_of_the_model() -> None:
    """3,000 requests of two tokens: p(t1) * p(t2 | t1) of the model that transformers runs."""
    prompt, vocab, count = [1, 3, 1, 2, 1], 4, 3000
    original = reference_model(vocab=vocab, peak=1.0)
    with torch.no_grad():
        texts = torch.tensor([[*prompt, token] for token in range(vocab)])
        logits = original(input_ids=texts).logits
    first = torch.softmax(logits[0, -2], 0)
    expected = first[:, None] * torch.softmax(logits[:, -1], 1)
    # Every token is always proposed, so that the second one comes from a tree, accepted.
    everything = ScriptedDrafter(lambda text: [(token, 0.9) for token in range(vocab)], max_depth=2)
    llm = LLM(
        tiny_model("llama", vocab=vocab, peak=1.0),
        drafter=everything,
        policy="smart",
        profile=flat_profile(),
        max_batch=64,
    )
    params = [SamplingParams(max_tokens=4, temperature=1.0, seed=seed) for seed in range(count)]
    outputs = llm.generate([prompt] * count, params)
    assert min(output.stats.accepted for output in outputs) >= 1
    counts = torch.zeros(vocab, vocab)
    for output in outputs:
        counts[output.token_ids[0], output.token_ids[1]] += 1
    assert stats.chisquare(counts.flatten().numpy(), count * expected.flatten().numpy()).pvalue > 1e-4
