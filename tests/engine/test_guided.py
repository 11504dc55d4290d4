"""Guided decoding through the engine: outputs match, and speculation changes nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from smartree import LLM, Guide, InputError, RequestOutput, SamplingParams
from tests.byte_tokenizer import BYTES_VOCAB, END, TURN_END, byte_tokenizer
from tests.tiny import ScriptedDrafter, Truth, character_tokenizer, flat_profile, tiny_model

pytest.importorskip("llguidance")
pytestmark = pytest.mark.usefixtures("still_clock")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "true": {"type": "boolean"},
        "sizes": {"type": "array", "items": {"enum": [1, 12, 121]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "true", "sizes"],
    "additionalProperties": False,
}
GUIDES = {
    "schema": Guide(json_schema=SCHEMA),
    "regex": Guide(regex=r"(yes|no), [0-9]{2,5}(\.[0-9]+)?!"),
    "choice": Guide(choice=["yes", "yesterday", "true", 'a "word"', "é"]),
}
PROMPTS = ["What?", "Say it: yes, yes, yes, 12", '{"name": "']
WARM: dict[str, Any] = {"temperature": 1.5, "seed": 3}


def model() -> Any:
    made = tiny_model(vocab=BYTES_VOCAB + 5, peak=2.0)
    made.generation_config.eos_token_id = [END, TURN_END]
    return made


def make_llm(drafter: Any = "none", levels: bool = False) -> LLM:
    return LLM(
        model(), tokenizer=byte_tokenizer(), drafter=drafter, policy="none", profile=flat_profile(levels), max_batch=3
    )


@pytest.fixture(scope="module")
def plain() -> LLM:
    return make_llm()


def params(guide: str, sampled: bool, **more: Any) -> SamplingParams:
    settings: dict[str, Any] = {"max_tokens": 30, "guide": GUIDES[guide]}
    return SamplingParams(**(settings | (WARM if sampled else {}) | more))


def matches(guide: str, output: RequestOutput) -> bool:
    """True if a finished output is what the guide says."""
    if guide == "schema":
        value = json.loads(output.text)
        assert list(value) == ["name", "true", "sizes"]
        return len(value["name"]) <= 5 and isinstance(value["true"], bool) and set(value["sizes"]) <= {1, 12, 121}
    if guide == "regex":
        return re.fullmatch(GUIDES["regex"].regex or "", output.text) is not None
    return output.text in (GUIDES["choice"].choice or ())


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("guide", GUIDES)
def test_speculation_changes_nothing(plain: LLM, guide: str, sampled: bool) -> None:
    expected = plain.generate(PROMPTS, params(guide, sampled))
    truth = Truth([output.prompt_token_ids + output.token_ids for output in expected], BYTES_VOCAB)
    for drafter in (
        ScriptedDrafter(truth.branching),
        ScriptedDrafter(truth.wrong),
        "ngram",
        tiny_model(vocab=BYTES_VOCAB + 5),
    ):
        llm = make_llm(drafter, levels=not isinstance(drafter, str | ScriptedDrafter))
        for policy in ("smart", "eagle2"):
            engine = llm.make_engine(policy, 3)
            outputs = llm.generate(PROMPTS, params(guide, sampled), engine=engine)
            assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
            assert engine.runner.seating.rows_in_use() == 0
            if getattr(drafter, "children", None) == truth.branching:
                assert sum(output.stats.accepted for output in outputs) > len(PROMPTS)


@pytest.mark.parametrize("guide", GUIDES)
def test_finished_outputs_match_their_guide(plain: LLM, guide: str) -> None:
    # Random models like to repeat themselves, white space above all; most outputs should come to their end here.
    long: dict[str, Any] = {"max_tokens": 120, "frequency_penalty": 2.0, "logit_bias": {END: 5.0}}
    made = [plain.generate(PROMPTS[0], params(guide, False, **long))[0]]
    made += plain.generate(PROMPTS[1], params(guide, True, n=8, **long))[0].outputs
    finished = [output for output in made if output.finish_reason == "stop"]
    assert len(finished) >= 6
    for output in finished:
        assert output.token_ids[-1] in (END, TURN_END)
        assert matches(guide, output)


def test_guided_and_free_requests_with_other_settings_share_a_batch(plain: LLM) -> None:
    each = [
        params("choice", True, presence_penalty=0.5, min_p=0.01),
        SamplingParams(max_tokens=9),
        params("schema", False, repetition_penalty=1.3, logit_bias={40: 3.0}),
    ]
    alone = [plain.generate(text, one)[0].token_ids for text, one in zip(PROMPTS, each, strict=True)]
    llm = make_llm("ngram")
    outputs = llm.generate(PROMPTS, each, engine=llm.make_engine("eagle2", 3))
    assert [output.token_ids for output in outputs] == alone
    assert matches("choice", outputs[0])


def test_a_finished_guide_ends_before_the_least_length(plain: LLM) -> None:
    short = SamplingParams(max_tokens=20, min_tokens=10, guide=Guide(choice=["true"]))
    (output,) = plain.generate(PROMPTS[0], short)
    assert (output.text, output.finish_reason) == ("true", "stop")
    longer = SamplingParams(max_tokens=20, min_tokens=10, guide=Guide(regex="a+"))
    (output,) = plain.generate(PROMPTS[0], longer)
    assert len(output.token_ids) > 10


def test_what_cannot_be_guided_is_refused_before_anything_is_decoded(plain: LLM) -> None:
    steps = plain.engine.stats.steps
    with pytest.raises(InputError, match="regex '\\[' cannot be used"):
        plain.generate(PROMPTS, [SamplingParams(), SamplingParams(guide=Guide(regex="[")), SamplingParams()])
    assert (plain.engine.unfinished, plain.engine.stats.steps) == (0, steps)
    other = LLM(tiny_model(), tokenizer=character_tokenizer(), drafter="none", policy="none")
    with pytest.raises(InputError, match="cannot use this model's tokenizer"):
        other.generate("x", SamplingParams(guide=Guide(regex="a")))


class TooComplex:
    """Follows nothing, and gives up behind so many tokens."""

    def __init__(self, most: int) -> None:
        self.most, self.read = most, 0

    def deep_copy(self) -> TooComplex:
        return TooComplex(self.most)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        self.read += len(tokens)
        return len(tokens)

    def compute_bitmask(self) -> bytes:
        return b"\xff" * 64

    def is_error(self) -> bool:
        return self.read > self.most

    def get_error(self) -> str:
        return "too complex"


@pytest.mark.parametrize("most", [-1, 0, 1, 5, 100])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_guide_that_cannot_be_followed_ends_its_own_request_only(
    plain: LLM, sampled: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smartree.verify.grammar._compile", lambda guide, tokenizer: TooComplex(most))
    warm = WARM if sampled else {}
    free = SamplingParams(max_tokens=20, logprobs=1, **warm)
    guided = replace(free, guide=Guide(regex=f"a{{{most + 3}}}"))
    expected = plain.generate(PROMPTS, free)
    llm = make_llm("ngram")
    for engine in [llm.engine, *(llm.make_engine(policy) for policy in ("eagle2", "static"))]:
        outputs = llm.generate(PROMPTS, [free, guided, free], engine=engine)
        assert [one.token_ids for one in outputs[::2]] == [one.token_ids for one in expected[::2]]
        whole, cut = expected[1].token_ids, outputs[1].token_ids
        kept = min(len(whole), most + 1)
        assert cut == whole[:kept]
        assert outputs[1].finish_reason == ("guide" if kept < len(whole) else expected[1].finish_reason)
        assert len(outputs[1].logprobs or []) == kept
        assert engine.unfinished == 0
        assert engine.runner.seating.rows_in_use() == 0
