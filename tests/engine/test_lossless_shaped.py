"""The promise (design 4) with logits processors: the tokens of plain decoding, whatever the policy and the drafter."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from smartree import LLM, RequestOutput, SamplingParams
from smartree.drafters.base import Drafter
from smartree.drafters.eagle3.checkpoint import write_checkpoint
from tests.drafters.eagle3.heads import random_table, random_weights, tiny_spec
from tests.tiny import VOCAB, ScriptedDrafter, Truth, flat_profile, random_prompts, reference_model, tiny_model

pytestmark = pytest.mark.usefixtures("still_clock")
TOKENS = 12
EOS = 40
PROMPTS = random_prompts([2, 5, 9, 14, 21])
ALONE: dict[str, dict[str, Any]] = {
    "min_p": {"min_p": 0.1},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 2.0},
    "repetition": {"repetition_penalty": 1.4},
    "rewards": {"frequency_penalty": -1.2, "presence_penalty": -0.7, "repetition_penalty": 0.8},
    "bias": {"logit_bias": dict.fromkeys(range(0, VOCAB, 5), 4.0) | {3: -100.0}},
    "min_tokens": {"min_tokens": 7, "logit_bias": {EOS: 100.0}},
}
TOGETHER: dict[str, Any] = {
    "min_p": 0.02,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.2,
    "logit_bias": {7: 2.0, 8: -3.0, EOS: 6.0},
    "min_tokens": 5,
    "top_k": 30,
    "top_p": 0.95,
    "logprobs": 3,
}
WARM: dict[str, Any] = {"temperature": 1.0, "seed": 7}
KINDS: dict[str, list[SamplingParams]] = {
    **{name: [SamplingParams(max_tokens=TOKENS, **settings)] * len(PROMPTS) for name, settings in ALONE.items()},
    **{
        f"{name}, sampled": [SamplingParams(max_tokens=TOKENS, **WARM, **settings)] * len(PROMPTS)
        for name, settings in ALONE.items()
    },
    "together": [SamplingParams(max_tokens=TOKENS, **TOGETHER)] * len(PROMPTS),
    "together, sampled": [SamplingParams(max_tokens=TOKENS, **WARM, **TOGETHER)] * len(PROMPTS),
    # Requests with and without share a batch, each with its own settings.
    "mixed": [
        SamplingParams(max_tokens=TOKENS),
        SamplingParams(max_tokens=TOKENS, **WARM, **ALONE["frequency"]),
        SamplingParams(max_tokens=TOKENS, **WARM),
        SamplingParams(max_tokens=TOKENS, **TOGETHER),
        SamplingParams(max_tokens=TOKENS, **ALONE["repetition"]),
    ],
}
MAIN = ("smart", "eagle2")


@cache
def plain(kind: str, dtype: torch.dtype = torch.float64) -> tuple[RequestOutput, ...]:
    """Outputs of plain decoding, one request at a time."""
    llm = LLM(tiny_model(eos=EOS, dtype=dtype), drafter="none", policy="none", max_batch=1)
    return tuple(llm.generate(PROMPTS, KINDS[kind]))


def tokens(outputs: Any) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def make_llm(drafter: Any, dtype: torch.dtype = torch.float64, levels: bool = False, **settings: Any) -> LLM:
    model = tiny_model(eos=EOS, dtype=dtype)
    return LLM(model, drafter=drafter, policy="none", profile=flat_profile(levels=levels), max_batch=3, **settings)


def check(llm: LLM, kind: str, policies: tuple[str, ...], dtype: torch.dtype = torch.float64) -> int:
    """Checks policies; returns the fewest accepted nodes."""
    accepted = []
    for policy in policies:
        engine = llm.make_engine(policy, 3)
        outputs = llm.generate(PROMPTS, KINDS[kind], engine=engine)
        assert tokens(outputs) == tokens(plain(kind, dtype)), policy
        assert sum(output.stats.verified for output in outputs) > len(PROMPTS), policy
        assert engine.runner.seating.rows_in_use() == 0
        accepted.append(sum(output.stats.accepted for output in outputs))
    return min(accepted)


def scripted(name: str, kind: str, dtype: torch.dtype = torch.float64) -> Drafter:
    truth = Truth([prompt + output for prompt, output in zip(PROMPTS, tokens(plain(kind, dtype)), strict=True)])
    return ScriptedDrafter(getattr(truth, name))


@pytest.mark.parametrize("kind", KINDS)
def test_accepted_paths_carry_their_own_history(kind: str) -> None:
    """The true path is scattered over a tree, so that most tokens are drawn below accepted nodes."""
    accepted = check(make_llm(scripted("branching", kind)), kind, MAIN)
    assert accepted > sum(len(output) for output in tokens(plain(kind))) // 2


@pytest.mark.parametrize("drafter", ["ngram", "independent", "itself", "wrong"])
@pytest.mark.parametrize("kind", ["together", "together, sampled", "mixed"])
def test_every_drafter(drafter: str, kind: str) -> None:
    made: Any = drafter
    if drafter in ("independent", "itself"):
        made = tiny_model(seed=5 if drafter == "independent" else 0)
    elif drafter == "wrong":
        made = scripted("wrong", kind)
    check(make_llm(made, levels=drafter in ("independent", "itself")), kind, ("smart", "paper", "static"))


@pytest.mark.parametrize("kind", ["together", "mixed"])
def test_a_head_that_reads_hidden_states(kind: str, tmp_path: Path) -> None:
    spec = tiny_spec(draft_vocab_size=VOCAB, borrowed=frozenset({"embed_tokens", "lm_head"}))
    write_checkpoint(tmp_path / "head", spec, random_weights(spec), random_table(spec), 64)
    check(make_llm(str(tmp_path / "head"), levels=True), kind, ("eagle2", "chain"))


@pytest.mark.parametrize("kind", ["together", "together, sampled"])
def test_single_precision_and_prompts_in_chunks(kind: str) -> None:
    dtype = torch.float32
    check(make_llm(scripted("branching", kind, dtype), dtype, prefill_tokens=4), kind, MAIN, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_these_settings_change_these_outputs(kind: str) -> None:
    # Otherwise equality above would say nothing of them.
    free = [SamplingParams(max_tokens=TOKENS, temperature=one.temperature, seed=one.seed) for one in KINDS[kind]]
    llm = LLM(tiny_model(eos=EOS), drafter="none", policy="none")
    changed = [old != new for old, new in zip(tokens(llm.generate(PROMPTS, free)), tokens(plain(kind)), strict=True)]
    if kind == "min_p":
        assert not any(changed)  # the likeliest token stays the likeliest
    else:
        assert any(changed)


@pytest.mark.parametrize("kind", ["presence", "frequency", "repetition", "rewards", "bias", "min_tokens"])
def test_plain_decoding_is_what_the_definitions_say(kind: str) -> None:
    """Token by token with the model that transformers runs, the definitions written out."""
    model = reference_model(eos=EOS)
    for prompt, params, mine in zip(PROMPTS, KINDS[kind], tokens(plain(kind)), strict=True):
        output: list[int] = []
        while len(output) < TOKENS and output[-1:] != [EOS]:
            with torch.no_grad():
                row = model(input_ids=torch.tensor([prompt + output])).logits[0, -1].tolist()
            for token in range(VOCAB):
                row[token] += params.biases.get(token, 0.0)
                if token in prompt or token in output:
                    row[token] *= params.repetition_penalty ** (-1 if row[token] > 0 else 1)
                row[token] -= params.frequency_penalty * output.count(token)
                row[token] -= params.presence_penalty * (token in output)
            if len(output) < params.min_tokens:
                row[EOS] = float("-inf")
            output.append(max(range(VOCAB), key=row.__getitem__))
        assert mine == output


# Ends


@pytest.mark.parametrize("sampled", ["", ", sampled"])
def test_the_end_comes_after_the_least_length_and_not_before(sampled: str) -> None:
    outputs = tokens(plain(f"min_tokens{sampled}"))
    assert {output.index(EOS) for output in outputs} == {7}  # the bias makes it the likeliest from there on
    assert {len(output) for output in outputs} == {8}


def test_stop_ids_wait_for_the_least_length_too() -> None:
    free = make_llm("none").generate(PROMPTS[0], SamplingParams(max_tokens=TOKENS))[0].token_ids
    llm = make_llm(scripted("branching", "mixed"))
    for least in (0, 3, 6):
        params = SamplingParams(max_tokens=TOKENS, stop_token_ids=tuple(free), min_tokens=least)
        for policy in ("none", *MAIN):
            (output,) = llm.generate(PROMPTS[0], params, engine=llm.make_engine(policy))
            assert not set(output.token_ids[:least]) & set(free)
            if least == 0:
                assert output.token_ids == free[:1]


@pytest.mark.parametrize("policy", ["none", "eagle2"])
def test_a_step_that_was_cut_short_is_done_again(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between drawing and committing, while a stream goes on later: nothing is counted twice."""
    engine = make_llm(scripted("branching", "together, sampled")).make_engine(policy, 3)
    requests = [engine.add(prompt, one) for prompt, one in zip(PROMPTS, KINDS["together, sampled"], strict=True)]

    def interrupt(*step: Any) -> None:
        raise KeyboardInterrupt

    while engine.unfinished:
        with monkeypatch.context() as patch:
            patch.setattr(engine._lessons, "step", interrupt)
            with pytest.raises(KeyboardInterrupt):
                engine.step()
        engine.step()
    assert [request.output for request in requests] == tokens(plain("together, sampled"))


# What the engine learns


def test_changed_logits_teach_nothing_about_the_drafter() -> None:
    params = {
        "free": SamplingParams(max_tokens=TOKENS),
        "changed": SamplingParams(max_tokens=TOKENS, logit_bias={7: 9}),
    }

    def taught(*names: str) -> list[Any]:
        llm = make_llm(tiny_model(seed=5), levels=True)
        engine = llm.make_engine("static", 3)
        llm.generate(PROMPTS[: len(names)], [params[name] for name in names], engine=engine)
        return engine.calibration.to_json()["seen"]  # type: ignore[no-any-return]

    assert taught("changed", "changed") == []
    assert taught("free", "changed") == taught("free")
    assert taught("free", "free") != taught("free")


def test_lookup_and_drafters_of_their_own_learn_nothing_of_them_either() -> None:
    free = SamplingParams(max_tokens=TOKENS)
    drafter = scripted("branching", "mixed")
    assert isinstance(drafter, ScriptedDrafter)
    llm = make_llm(drafter)
    engine = llm.make_engine("eagle2", 3)
    llm.generate(PROMPTS, replace(free, presence_penalty=1.0), engine=engine)
    assert drafter.learned == 0
    llm.generate(PROMPTS, free, engine=engine)
    assert drafter.learned > 0


# Log-probabilities


@pytest.mark.parametrize("kind", ["together", "together, sampled"])
@pytest.mark.parametrize("drafter", ["branching", "ngram"])
def test_logprobs_are_those_of_plain_decoding(kind: str, drafter: str) -> None:
    llm = make_llm(scripted("branching", kind) if drafter == "branching" else drafter)
    for policy in MAIN:
        for mine, theirs in zip(
            llm.generate(PROMPTS, KINDS[kind], engine=llm.make_engine(policy)), plain(kind), strict=True
        ):
            assert mine.logprobs is not None
            assert theirs.logprobs is not None
            assert [one.token_id for one in mine.logprobs] == mine.token_ids
            for one, other in zip(mine.logprobs, theirs.logprobs, strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=1e-9)
                assert [token for token, _ in one.top] == [token for token, _ in other.top]
                assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-9)


def test_logprobs_are_those_of_the_model_itself() -> None:
    model = reference_model(eos=EOS)
    for prompt, output in zip(PROMPTS, plain("together, sampled"), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + output.token_ids])).logits[0]
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        assert output.logprobs is not None
        for row, token, one in zip(rows, output.token_ids, output.logprobs, strict=True):
            assert one.logprob == pytest.approx(float(row[token]), abs=1e-5)
            assert [token for token, _ in one.top] == row.topk(3).indices.tolist()


def test_logprobs_end_where_the_output_ends() -> None:
    """An oracle's path goes on behind the token that ends the request."""
    free = make_llm("none").generate(PROMPTS, SamplingParams(max_tokens=TOKENS))
    truth = Truth([prompt + output.token_ids for prompt, output in zip(PROMPTS, free, strict=True)])
    llm = make_llm(ScriptedDrafter(truth.oracle, max_depth=6))
    for most in range(1, TOKENS):
        for output in llm.generate(PROMPTS, SamplingParams(max_tokens=most, logprobs=0)):
            assert output.logprobs is not None
            assert [one.token_id for one in output.logprobs] == output.token_ids
            assert all(one.top == () for one in output.logprobs)
    assert llm.generate(PROMPTS[0])[0].logprobs is None
