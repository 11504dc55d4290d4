"""The public entry: prompts in, texts out; seeds, stops, streams, chats, interruptions, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smartree import LLM, InputError, RequestOutput, SamplingParams
from smartree.cost.key import ProfileKey
from smartree.cost.profile import Profile
from smartree.drafters.ngram import NgramDrafter
from smartree.engine.measure import profile_key
from smartree.engine.request import Request
from smartree.errors import ProfileMismatchError
from smartree.models.load import quiet_transformers
from smartree.policies import Eagle2Policy, SmartPolicy
from smartree.policies.calibration import Calibration
from smartree.tree.forest import Forest, Proposal
from tests.tiny import (
    CHARACTERS,
    ScriptedDrafter,
    Truth,
    character_tokenizer,
    flat_profile,
    random_prompts,
    steep_profile,
    tiny_model,
)
from tests.tree.forests import candidates_of

pytestmark = pytest.mark.usefixtures("still_clock")
TEXTS = ["What is 2 + 2?", "Hello.", "Repeat: abc abc abc abc", "x"]


def make_llm(**settings: object) -> LLM:
    defaults = {"tokenizer": character_tokenizer(), "drafter": "ngram", "policy": "smart", "profile": flat_profile()}
    model = settings.pop("model", None) or tiny_model("llama")
    return LLM(model, **(defaults | settings))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return make_llm(max_batch=8)


def ids(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def assert_empty(llm: LLM) -> None:
    assert llm.engine.unfinished == 0
    assert llm.engine.runner.seating.rows_in_use() == 0


# Outputs


def test_outputs_come_in_the_order_of_the_prompts_with_all_their_facts(llm: LLM) -> None:
    outputs = llm.generate(TEXTS, [SamplingParams(max_tokens=most, seed=most) for most in (9, 3, 12, 1)])
    for text, most, output in zip(TEXTS, (9, 3, 12, 1), outputs, strict=True):
        assert output.prompt == text
        assert output.prompt_token_ids == llm.encode(text)
        assert len(output.token_ids) == most
        assert output.text == character_tokenizer().decode(output.token_ids, skip_special_tokens=True)
        assert output.finish_reason == "length"
        assert output.seed == most
        assert output.stats.tokens == most - 1
    assert_empty(llm)


def test_one_prompt_or_many_text_or_tokens(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5)
    (one,) = llm.generate(TEXTS[0], params)
    assert ids(llm.generate([TEXTS[0]], params)) == [one.token_ids]
    (tokens,) = llm.generate(llm.encode(TEXTS[0]), params)
    assert (tokens.token_ids, tokens.prompt) == (one.token_ids, None)
    both: list[str | Sequence[int]] = [TEXTS[0], llm.encode(TEXTS[0])]
    assert ids(llm.generate(both, params)) == [one.token_ids] * 2
    assert llm.generate([], params) == []
    (default,) = llm.generate("x")
    assert ids(llm.generate("x", SamplingParams())) == [default.token_ids]


def test_token_ids_of_numpy_and_torch_are_token_ids(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4)
    expected = ids(llm.generate([5, 6, 7], params))
    assert ids(llm.generate([np.array([5, 6, 7])], params)) == expected  # type: ignore[arg-type]
    assert ids(llm.generate(np.array([5, 6, 7]), params)) == expected  # type: ignore[arg-type]
    assert ids(llm.generate(torch.tensor([5, 6, 7]), params)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_one_set_of_parameters_for_all_or_one_each(llm: LLM, count: int) -> None:
    with pytest.raises(InputError, match=f"2 prompts came with {count} sampling parameters"):
        llm.generate(TEXTS[:2], [SamplingParams()] * count)


# Randomness


def test_the_same_seed_gives_the_same_tokens_alone_and_in_any_batch(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=10, temperature=1.0, seed=seed) for seed in (1, 2, 3, 1)]
    together = ids(llm.generate(TEXTS, params))
    alone = [llm.generate(text, one)[0].token_ids for text, one in zip(TEXTS, params, strict=True)]
    assert together == alone
    backwards = ids(llm.generate(TEXTS[::-1], params[::-1], engine=llm.make_engine("eagle2", 3)))
    assert backwards == alone[::-1]


def test_outputs_vary_with_the_seed_and_unseeded_ones_every_time(llm: LLM) -> None:
    def tokens(seed: int | None) -> tuple[int, ...]:
        return tuple(llm.generate("Hello.", SamplingParams(max_tokens=12, temperature=1.0, seed=seed))[0].token_ids)

    assert len({tokens(seed) for seed in range(8)}) >= 6
    assert len({tokens(None) for _ in range(8)}) >= 6
    (output,) = llm.generate("Hello.", SamplingParams(max_tokens=12, temperature=1.0))
    assert tokens(output.seed) == tuple(output.token_ids)  # an unseeded output can be had again
    cold = {llm.generate("Hello.", SamplingParams(max_tokens=12, seed=seed))[0].text for seed in range(4)}
    assert len(cold) == 1


def test_an_output_goes_on_as_before_from_any_of_its_tokens(llm: LLM) -> None:
    # The noise belongs to the position, not to the step: what was cut off comes again.
    (whole,) = llm.generate(TEXTS[2], SamplingParams(max_tokens=12, temperature=1.0, seed=8, ignore_eos=True))
    for cut in (1, 5, 11):
        params = SamplingParams(max_tokens=12 - cut, temperature=1.0, seed=8, ignore_eos=True)
        (rest,) = llm.generate(whole.prompt_token_ids + whole.token_ids[:cut], params)
        assert rest.token_ids == whole.token_ids[cut:]


def test_different_temperatures_share_a_batch(llm: LLM) -> None:
    params = [
        SamplingParams(max_tokens=10, temperature=one, seed=4, top_p=p) for one, p in ((0, 1), (1, 0.9), (0, 1), (2, 1))
    ]
    assert ids(llm.generate(TEXTS, params)) == [
        llm.generate(text, one, engine=llm.make_engine("none"))[0].token_ids
        for text, one in zip(TEXTS, params, strict=True)
    ]


# Ends


def told(llm: LLM, text: str, params: SamplingParams) -> tuple[str, Truth]:
    """A long plain output, and what a scripted drafter needs to know of it."""
    (output,) = llm.generate(text, params, engine=llm.make_engine("none"))
    return output.text, Truth([output.prompt_token_ids + output.token_ids])


@pytest.mark.parametrize("span", ["inside an accepted path", "over two steps", "many steps"])
def test_stop_strings_are_found_and_cut_wherever_they_lie(llm: LLM, span: str) -> None:
    free = SamplingParams(max_tokens=60, temperature=1.0, seed=11)
    whole, truth = told(llm, TEXTS[0], free)
    assert len(whole) == 60  # no special tokens in it: characters are tokens
    # The prompt's pass commits token 0; an oracle of depth 4 then commits tokens 1-5, 6-10, 11-15, ...
    start, end = {"inside an accepted path": (12, 14), "over two steps": (14, 18), "many steps": (13, 28)}[span]
    stop = whole[start:end]
    assert whole.find(stop) == start
    steps = llm.make_engine("none").target, ScriptedDrafter(truth.oracle, max_depth=4)
    oracle = make_llm(drafter=steps[1])
    for engine in (oracle.engine, oracle.make_engine("none"), oracle.make_engine("eagle2")):
        params = SamplingParams(max_tokens=60, temperature=1.0, seed=11, stop=("never there", stop))
        (output,) = oracle.generate(TEXTS[0], params, engine=engine)
        assert output.finish_reason == "stop"
        assert output.text == whole[:start]
        assert len(output.token_ids) == end  # the token that completed it included, none after it
        assert engine.runner.seating.rows_in_use() == 0


def test_the_end_of_sequence_has_no_text_and_may_be_ignored() -> None:
    free = make_llm().generate(TEXTS[0], SamplingParams(max_tokens=30, ignore_eos=True))[0]
    place = next(place for place in range(3, 30) if free.token_ids.index(free.token_ids[place]) == place)
    end = free.token_ids[place]
    assert 1 not in free.token_ids[: place + 1]  # the tokenizer's own
    llm = make_llm(model=tiny_model("llama", eos=end))
    (output,) = llm.generate(TEXTS[0], SamplingParams(max_tokens=30))
    assert (output.token_ids, output.finish_reason) == (free.token_ids[: place + 1], "stop")
    (ignoring,) = llm.generate(TEXTS[0], SamplingParams(max_tokens=30, ignore_eos=True))
    assert (ignoring.token_ids, ignoring.finish_reason) == (free.token_ids, "length")
    (own,) = llm.generate(TEXTS[0], SamplingParams(max_tokens=30, ignore_eos=True, stop_token_ids=(end,)))
    assert (own.token_ids, own.finish_reason) == (output.token_ids, "stop")


def test_an_empty_prompt_starts_from_the_start_token(llm: LLM) -> None:
    assert llm.encode("") == [0]
    assert ids(llm.generate(["", "Hello."], SamplingParams(max_tokens=6))) == ids(
        llm.generate([[0], llm.encode("Hello.")], SamplingParams(max_tokens=6), engine=llm.make_engine("none"))
    )
    without = make_llm(tokenizer=character_tokenizer(bos=False))
    with pytest.raises(InputError, match="empty"):
        without.generate("")
    with pytest.raises(InputError, match="empty"):
        llm.generate([[]])


def test_the_window_limits_prompts_and_outputs() -> None:
    llm = make_llm(max_model_len=30)
    assert llm.window == 30
    two_short = random_prompts([28])[0]
    outputs = llm.generate([two_short, [1, 2]], SamplingParams(max_tokens=99))
    assert [len(output.token_ids) for output in outputs] == [2, 28]
    assert {output.finish_reason for output in outputs} == {"length"}
    for length in (30, 31, 500):
        with pytest.raises(InputError, match=f"{length} tokens, but the window is 30: shorten it to 29"):
            llm.generate([random_prompts([length])[0]])
    assert_empty(llm)


# Interruptions


def test_a_bad_prompt_among_good_ones_decodes_nothing(llm: LLM) -> None:
    before = llm.engine.stats.steps
    with pytest.raises(InputError, match="not in the vocabulary"):
        llm.generate([llm.encode("Hello."), [1, 2, 500], [3]])
    assert llm.engine.stats.steps == before
    assert_empty(llm)


@pytest.mark.parametrize("drafter", ["ngram", "model"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_nothing_behind(drafter: str, error: type[BaseException]) -> None:
    llm = make_llm(
        drafter=tiny_model("llama", seed=5) if drafter == "model" else "ngram",
        profile=flat_profile(levels=drafter == "model"),
        max_batch=2,
    )
    params = [SamplingParams(max_tokens=most) for most in (2, 20, 20, 20)]
    expected = ids(llm.generate(TEXTS, params, engine=llm.make_engine("none")))

    def interrupt(request: Request) -> None:
        raise error

    with pytest.raises(error):
        llm.generate(TEXTS, params, done=interrupt)
    assert_empty(llm)
    assert ids(llm.generate(TEXTS, params)) == expected
    assert_empty(llm)


def test_done_hears_of_every_request_once(llm: LLM) -> None:
    heard: list[Request] = []
    outputs = llm.generate(TEXTS, [SamplingParams(max_tokens=most) for most in (9, 1, 5, 7)], done=heard.append)
    assert sorted(request.output for request in heard) == sorted(ids(outputs))
    assert all(request.finish_reason == "length" for request in heard)


# Streams and chats


@pytest.mark.parametrize("stop", [(), ("never there",), ("q", "!x"), ("cut",)])
def test_a_stream_is_the_text_of_the_output(llm: LLM, stop: tuple[str, ...]) -> None:
    free = SamplingParams(max_tokens=40, temperature=1.0, seed=3)
    if stop == ("cut",):
        stop = (llm.generate(TEXTS[2], free)[0].text[20:23],)
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=3, stop=stop)
    pieces = list(llm.stream(TEXTS[2], params))
    (output,) = llm.generate(TEXTS[2], params)
    assert "".join(pieces) == output.text
    assert len(pieces) > 5  # as it comes, not at the end
    assert_empty(llm)


def test_a_stream_left_alone_gives_its_place_back(llm: LLM) -> None:
    stream = llm.stream(TEXTS[0], SamplingParams(max_tokens=50))
    next(stream)
    assert llm.engine.unfinished == 1
    assert isinstance(stream, Generator)
    stream.close()
    assert_empty(llm)


def test_a_stream_and_a_call_share_an_engine(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30)
    whole = "".join(llm.stream(TEXTS[0], params))
    stream = llm.stream(TEXTS[0], params)
    start = next(stream)
    (other,) = llm.generate(TEXTS[1], params)
    assert start + "".join(stream) == whole
    assert other.token_ids == llm.generate(TEXTS[1], params)[0].token_ids
    assert_empty(llm)


def test_a_stream_without_tokenizer_is_refused_and_leaves_nothing_behind() -> None:
    llm = make_llm(tokenizer=None)
    with pytest.raises(InputError, match="tokenizer"):
        list(llm.stream([1, 2, 3], SamplingParams(max_tokens=5)))
    assert_empty(llm)


def test_chats_are_what_the_template_makes_of_them() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }};{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    llm = make_llm(tokenizer=tokenizer)
    one = [{"role": "user", "content": "Hi"}]
    two = [*one, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Bye"}]
    assert llm.apply_chat_template(two) == "<user>Hi;<assistant>Yes?;<user>Bye;>"
    params = SamplingParams(max_tokens=6)
    (single,) = llm.chat(one, params)
    both = llm.chat([one, two], params)
    assert single.prompt == both[0].prompt == "<user>Hi;>"
    assert single.token_ids == both[0].token_ids == llm.generate("<user>Hi;>", params)[0].token_ids
    with pytest.raises(InputError, match="no chat template"):
        make_llm().chat(one)


# Engines


def test_a_fresh_engine_runs_another_policy_on_the_same_model(llm: LLM) -> None:
    engine = llm.make_engine("eagle2", 2)
    assert engine.policy.name == "eagle2"
    assert engine is not llm.engine
    assert llm.make_engine("none").drafter is None
    own = llm.make_engine(Eagle2Policy(total=5, depth=1, top_k=2))
    (output,) = llm.generate(TEXTS[2], SamplingParams(max_tokens=12), engine=own)
    assert max(output.stats.sizes) <= 4
    assert output.token_ids == llm.generate(TEXTS[2], SamplingParams(max_tokens=12))[0].token_ids


def test_more_prompts_than_the_batch_holds_wait_their_turn() -> None:
    llm = make_llm(max_batch=2)
    texts = [f"Question {number}?" for number in range(7)]
    outputs = llm.generate(texts, SamplingParams(max_tokens=6))
    assert ids(outputs) == [llm.generate(text, SamplingParams(max_tokens=6))[0].token_ids for text in texts]


# What is refused


def refusal(**settings: object) -> str:
    with pytest.raises(InputError) as error:
        make_llm(**settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_unknown_names_and_impossible_sizes() -> None:
    assert "'best' is unknown" in refusal(policy="best")
    assert "'int4' is unknown" in refusal(dtype="int4")
    assert "batch is 0" in refusal(max_batch=0)
    assert "max_model_len is 1" in refusal(max_model_len=1)
    assert "prefill_tokens is 0" in refusal(prefill_tokens=0)
    with pytest.raises(InputError, match="does not exist"):
        LLM("./no/such/model")


def test_sampled_proposals_do_not_go_with_a_policy_that_looks_at_tokens() -> None:
    sampled = ScriptedDrafter(lambda text: [], proposal=Proposal.SAMPLED)
    for policy in ("smart", "paper", "eagle2"):
        assert "biases the output" in refusal(drafter=sampled, policy=policy)
    make_llm(drafter=sampled, policy="none")


def test_a_draft_model_with_another_vocabulary() -> None:
    with quiet_transformers():
        other = tiny_model("llama", vocab=60)
    assert "vocabulary" in refusal(tokenizer=None, drafter=other) or "tokens" in refusal(tokenizer=None, drafter=other)


def test_a_drafter_folder_with_a_permuted_vocabulary(tmp_path: Path) -> None:
    with quiet_transformers():
        tiny_model("llama", seed=4, dtype=torch.float64).save_pretrained(tmp_path / "draft")
    character_tokenizer(order=CHARACTERS[::-1]).save_pretrained(tmp_path / "draft")
    assert "differently from the target" in refusal(drafter=str(tmp_path / "draft"))


def test_text_without_a_tokenizer() -> None:
    llm = make_llm(tokenizer=None)
    assert len(llm.generate([1, 2, 3], SamplingParams(max_tokens=3))[0].token_ids) == 3
    assert llm.generate([1, 2, 3], SamplingParams(max_tokens=3))[0].text == ""
    for attempt in (lambda: llm.generate("Hello."), lambda: llm.chat([{"role": "user", "content": "Hi"}])):
        with pytest.raises(InputError, match="has no tokenizer"):
            attempt()
    with pytest.raises(InputError, match="Stop strings need a tokenizer"):
        llm.generate([1, 2, 3], SamplingParams(stop=("x",)))
    assert_empty(llm)


def test_a_profile_of_another_setup_or_no_profile_at_all(tmp_path: Path) -> None:
    llm = make_llm()
    here = profile_key(llm.target, llm.drafter)
    there = ProfileKey(**(here.to_json() | {"threads": here.threads + 64, "dtype": "bfloat16"}))  # type: ignore[arg-type]
    points = flat_profile().verify
    make_llm(profile=Profile(here, points))
    with pytest.raises(ProfileMismatchError, match="dtype") as error:
        make_llm(profile=Profile(there, points))
    assert "threads" in str(error.value)
    Profile(there, points).save(tmp_path / "there.json")
    assert "another setup" in refusal(profile=tmp_path / "there.json")
    assert "cannot be read" in refusal(profile=tmp_path / "missing.json")
    (tmp_path / "text.json").write_text("not JSON")
    assert "is not JSON" in refusal(profile=str(tmp_path / "text.json"))


def test_names_of_the_public_contract() -> None:
    import smartree

    for name in smartree.__all__:
        assert getattr(smartree, name) is not None
    assert re.fullmatch(r"\d+\.\d+\.\d+", smartree.__version__)


def test_every_engine_gets_a_drafter_that_has_seen_nothing() -> None:
    # Request ids begin anew with every engine: a shared lookup would take another request's text for its own.
    llm = make_llm(drafter="ngram", policy="eagle2")
    first, second = llm.make_engine("eagle2"), llm.make_engine("eagle2")
    untouched = NgramDrafter().acceptance.rates().tolist()
    llm.generate([[5, 6, 7, 5, 6, 7, 5, 6]], SamplingParams(max_tokens=12), engine=first)
    assert isinstance(first.drafter, NgramDrafter)
    assert isinstance(second.drafter, NgramDrafter)
    assert first.drafter.acceptance.rates().tolist() != untouched
    assert second.drafter.acceptance.rates().tolist() == untouched


def test_what_was_learned_of_the_drafter_is_there_at_the_next_start(own_cache: Path) -> None:
    settings: dict[str, object] = {"policy": "eagle2", "max_batch": 8}
    first = make_llm(drafter=tiny_model("llama", seed=3), profile=None, **settings)
    first.knowledge.profile = Profile(profile_key(first.target, first.drafter), flat_profile(levels=True).verify)
    untouched = first.engine.calibration.to_json()
    first.generate([[5, 6, 7]], SamplingParams(max_tokens=12))
    assert first.save_learned()
    learned = first.engine.calibration.to_json()
    assert learned != untouched
    second = make_llm(drafter=tiny_model("llama", seed=3), profile=first.knowledge.saved_profile(), **settings)
    assert second.engine.calibration.to_json() == learned
    assert first.make_engine("eagle2").calibration.to_json() == learned


def test_without_a_profile_of_this_very_setup_nothing_is_saved(llm: LLM, own_cache: Path) -> None:
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4))
    assert not llm.save_learned()


def test_what_a_policy_has_learned_is_there_at_the_next_start(own_cache: Path) -> None:
    settings: dict[str, Any] = {"policy": "smart", "max_batch": 8}
    first = make_llm(drafter=tiny_model("llama", seed=3), profile=flat_profile(levels=True), **settings)
    first.knowledge.profile = replace(flat_profile(levels=True), key=profile_key(first.target, first.drafter))
    assert first.make_engine("smart").policy.learned()["price"] == {"plain": [], "found": []}
    first.generate([[5, 6, 7]] * 3, SamplingParams(max_tokens=30, ignore_eos=True))
    learned = first.engine.policy.learned()
    assert learned["price"]["plain"]
    assert first.save_learned()
    second = make_llm(drafter=tiny_model("llama", seed=3), profile=first.knowledge.saved_profile(), **settings)
    for policy in (second.engine.policy, first.knowledge.make_policy("smart")):
        assert policy.learned()["price"] == learned["price"]
        assert policy.learned()["growth"]["means"] == learned["growth"]["means"]
    assert "smart" not in second.make_engine("eagle2").policy.learned()


def test_an_own_policy_on_another_table_teaches_nothing() -> None:
    llm = make_llm(drafter=tiny_model("llama", seed=3), profile=flat_profile(levels=True), max_batch=8)
    llm.knowledge.profile = replace(flat_profile(levels=True), key=profile_key(llm.target, llm.drafter))
    own = llm.make_engine(SmartPolicy(steep_profile(levels=True).cost_model()))
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=12, ignore_eos=True), engine=own)
    assert llm.learn_from(own)  # of the drafter
    assert llm.knowledge.profile.learned == {}


def test_learned_things_that_are_malformed_are_refused_with_the_way_out() -> None:
    bad = replace(flat_profile(), learned={"smart": {"growth": []}})
    with pytest.raises(InputError, match="What 'smart' has learned is malformed in the cost profile; delete it"):
        make_llm(profile=bad)


def test_without_a_drafter_or_a_profile_nothing_is_learned() -> None:
    assert not make_llm(drafter="none", policy="none").learn_from()
    assert not make_llm(drafter="ngram", policy="eagle2", profile=None).learn_from()


def test_what_is_known_of_a_drafter_is_where_engines_begin() -> None:
    teacher = Calibration()
    forest = Forest(np.zeros(1, np.int64))
    nodes = forest.append(teacher(forest, candidates_of([0], [0.5]), np.array([False])))
    for index in range(200):
        teacher.learn(forest, nodes, np.array([index % 10 < 9]), np.array([False]))

    class Known(ScriptedDrafter):
        by_level, calibrated, experience = True, False, teacher.to_json()

    llm = make_llm(drafter=Known(lambda _text: []), profile=flat_profile(levels=True))
    policy = llm.knowledge.make_policy("smart")
    assert isinstance(policy, SmartPolicy)
    assert policy._growth.at(0)[0] == pytest.approx(0.9, abs=0.01)
    assert Calibration.rates_of(llm.engine.calibration.to_json())[0][0] == pytest.approx(0.9, abs=0.01)


def test_what_the_cache_may_hold_reaches_every_engine() -> None:
    settings: dict[str, Any] = {"drafter": "none", "policy": "none", "cache_tokens": 64, "prefix_reuse": False}
    small = LLM(tiny_model("llama"), **settings)
    text, params = list(range(40)), SamplingParams(max_tokens=4)
    with pytest.raises(InputError, match="but there are 64"):
        small.generate([text], SamplingParams(max_tokens=60))
    for engine, reused in ((small.engine, 0), (small.make_engine("none", prefix_reuse=True), 39)):
        assert engine.budget.rows == 64
        for _ in range(2):
            small.generate([text], params, engine=engine)
        assert engine.stats.reused_tokens == reused
    with pytest.raises(InputError, match="cache_tokens is 3"):
        LLM(tiny_model("llama"), drafter="none", policy="none", cache_tokens=3)
