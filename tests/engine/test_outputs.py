"""Several outputs of one prompt, and stop strings that stay or wait."""

from __future__ import annotations

from typing import Any

import pytest

from smartree import LLM, InputError, SamplingParams
from smartree.verify.noise import derived_seed
from tests.tiny import ScriptedDrafter, Truth, character_tokenizer, flat_profile, tiny_model

pytestmark = pytest.mark.usefixtures("still_clock")
TEXTS = ["What is 2 + 2?", "Hello.", "Repeat: abc abc abc abc"]
WARM: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(
        tiny_model(),
        tokenizer=character_tokenizer(),
        drafter="ngram",
        policy="smart",
        profile=flat_profile(),
        max_batch=4,
    )


def test_the_first_of_several_is_the_one_of_one(llm: LLM) -> None:
    several = llm.generate(TEXTS, SamplingParams(**WARM, seed=5, n=3))
    single = llm.generate(TEXTS, SamplingParams(**WARM, seed=5))
    assert len(several) == len(TEXTS)
    for many, one in zip(several, single, strict=True):
        assert (many.text, many.token_ids, many.seed) == (one.text, one.token_ids, 5)
        assert one.outputs == (one,)
        assert len(many.outputs) == 3
        assert many.outputs[0] is many
        assert len({tuple(output.token_ids) for output in many.outputs}) == 3
        assert {output.prompt for output in many.outputs} == {one.prompt}


def test_each_can_be_had_again_alone_and_without_speculation(llm: LLM) -> None:
    (many,) = llm.generate(TEXTS[0], SamplingParams(**WARM, seed=5, n=4))
    plain = llm.make_engine("none", 1)
    again = llm.generate(TEXTS[0], SamplingParams(**WARM, seed=5, n=4), engine=plain)[0]
    assert [one.token_ids for one in again.outputs] == [one.token_ids for one in many.outputs]
    for output in many.outputs:
        (alone,) = llm.generate(TEXTS[0], SamplingParams(**WARM, seed=output.seed), engine=plain)
        assert alone.token_ids == output.token_ids


def test_without_a_seed_all_differ_from_each_other_and_every_time(llm: LLM) -> None:
    outputs = [one for _ in range(2) for one in llm.generate(TEXTS[1], SamplingParams(**WARM, n=3))[0].outputs]
    assert len({one.seed for one in outputs}) == 6
    assert len({tuple(one.token_ids) for one in outputs}) >= 5


def test_derived_seeds_are_distinct_and_valid() -> None:
    seeds = {derived_seed(seed, number) for seed in (0, 1, 2, 2**63 - 1) for number in range(50)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_chats_name_the_conversation_in_every_output() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }};{% endfor %}"
    llm = LLM(tiny_model(), tokenizer=tokenizer, drafter="none", policy="none")
    (output,) = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=2, n=2))
    assert [one.prompt for one in output.outputs] == ["Hi;", "Hi;"]


def test_a_stream_and_a_request_are_one_output(llm: LLM) -> None:
    with pytest.raises(InputError, match="n is 2, but a request is one output"):
        list(llm.stream(TEXTS[0], SamplingParams(n=2)))
    assert llm.engine.unfinished == 0


def test_more_logprobs_than_tokens_are_refused(llm: LLM) -> None:
    with pytest.raises(InputError, match="logprobs is 98; the vocabulary has 97 tokens"):
        llm.generate(TEXTS[0], SamplingParams(logprobs=98))


# Stop strings


@pytest.fixture(scope="module")
def told() -> tuple[LLM, str]:
    """A model whose drafter knows a text of 40 characters, one a token, and that text."""
    tokenizer = character_tokenizer()
    plain = LLM(tiny_model(), tokenizer=tokenizer, drafter="none", policy="none")
    (output,) = plain.generate(TEXTS[0], SamplingParams(max_tokens=40, temperature=1.0, seed=11, ignore_eos=True))
    assert len(output.text) == 40
    oracle = ScriptedDrafter(Truth([output.prompt_token_ids + output.token_ids]).oracle, max_depth=4)
    llm = LLM(tiny_model(), tokenizer=tokenizer, drafter=oracle, policy="eagle2", profile=flat_profile())
    return llm, output.text


@pytest.mark.parametrize("policy", ["none", "eagle2"])
def test_a_stop_string_may_stay_in_the_text(told: tuple[LLM, str], policy: str) -> None:
    llm, whole = told
    for start, end in ((12, 14), (14, 18), (13, 28)):
        params = SamplingParams(
            max_tokens=40, temperature=1.0, seed=11, stop=(whole[start:end],), include_stop_str_in_output=True
        )
        (output,) = llm.generate(TEXTS[0], params, engine=llm.make_engine(policy))
        assert (output.text, output.finish_reason) == (whole[:end], "stop")
    assert "".join(llm.stream(TEXTS[0], params)) == whole[:end]


@pytest.mark.parametrize("policy", ["none", "eagle2"])
def test_stop_strings_wait_for_the_least_length(told: tuple[LLM, str], policy: str) -> None:
    llm, whole = told
    first, later = whole[3:5], whole[20:23]
    assert whole.count(first) == 1
    for least, end in ((4, 3), (5, 20), (22, 20), (23, 40)):
        params = SamplingParams(
            max_tokens=40, temperature=1.0, seed=11, ignore_eos=True, stop=(first, later), min_tokens=least
        )
        (output,) = llm.generate(TEXTS[0], params, engine=llm.make_engine(policy))
        assert output.text == whole[:end]
        assert output.finish_reason == ("length" if end == 40 else "stop")
