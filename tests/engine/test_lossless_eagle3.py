"""The promise (design 4) with EAGLE-3 heads, good and bad: every policy gives the tokens of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smartree import LLM, SamplingParams
from smartree.drafters.eagle3.checkpoint import write_checkpoint
from smartree.drafters.eagle3.drafter import Eagle3Drafter
from smartree.drafters.eagle3.spec import Eagle3Spec
from smartree.drafters.joint import JointDrafter
from smartree.drafters.ngram import NgramDrafter
from smartree.engine.engine import Engine
from smartree.engine.measure import measure, profile_key
from smartree.engine.request import Request
from smartree.policies import POLICY_NAMES
from smartree.policies.base import StepState
from smartree.policies.eagle2 import Eagle2Policy
from smartree.tree.forest import Forest, Ints
from tests.drafters.eagle3.heads import LLAMA3, random_table, random_weights, tiny_spec
from tests.tiny import VOCAB, flat_profile, steep_profile, tiny_model
from tests.train import small

pytestmark = pytest.mark.usefixtures("still_clock")
EVERY = tuple(name for name in POLICY_NAMES if name != "none")
MAIN = ("smart", "eagle2")
TOKENS = 9
PROMPTS = small.PROMPTS[:6]
SAMPLED = [
    SamplingParams(max_tokens=TOKENS, seed=7, temperature=temperature, top_k=top_k, top_p=top_p)
    for temperature, top_k, top_p in [
        (1.0, 0, 1.0),
        (1.0, 5, 1.0),
        (0.7, 0, 1.0),
        (1.0, 3, 0.9),
        (0.3, 0, 1.0),
        (1.5, 20, 0.95),
    ]
]
PARAMS = {
    "greedy": [SamplingParams(max_tokens=TOKENS)] * len(PROMPTS),
    "sampled": SAMPLED,
    "mixed": [SAMPLED[place] if place % 2 else SamplingParams(max_tokens=TOKENS) for place in range(len(PROMPTS))],
}
EVERYTHING: dict[str, Any] = {
    "norm_before_residual": True,
    "fc_norm": True,
    "norm_output": True,
    "qk_norm": True,
    "attention_bias": True,
    "layers": 2,
    "rope": LLAMA3,
    "borrowed": frozenset[str](),
}
RANDOM: dict[str, Eagle3Spec] = {
    "random": tiny_spec(),
    "every token": tiny_spec(draft_vocab_size=VOCAB, borrowed=frozenset({"embed_tokens", "lm_head"})),
    "all switches": tiny_spec(**EVERYTHING),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of heads by name."""
    made = {"learnt": small.learnt_head()}
    for name, spec in RANDOM.items():
        made[name] = tmp_path_factory.mktemp("heads") / "head"
        write_checkpoint(made[name], spec, random_weights(spec), random_table(spec), 64)
    return made


def make_llm(head: Path, architecture: str = "llama", **settings: Any) -> LLM:
    """The target in float64 with a head."""
    return LLM(
        tiny_model(architecture), drafter=str(head), policy="none", profile=flat_profile(levels=True), **settings
    )


@cache
def plain(architecture: str, kind: str) -> tuple[list[int], ...]:
    """Outputs of plain decoding, one request at a time."""
    llm = LLM(tiny_model(architecture), drafter="none", policy="none", max_batch=1)
    return tuple(output.token_ids for output in llm.generate(PROMPTS, PARAMS[kind]))


def assert_nothing_is_kept(engine: Engine) -> None:
    """No rows, no features, no seats."""
    assert engine.runner.seating.rows_in_use() == 0
    assert isinstance(engine.drafter, Eagle3Drafter)
    assert engine.drafter.runner.seating.rows_in_use() == 0
    assert len(engine.drafter.runner.seating) == 0
    assert len(engine.drafter._backlog) == 0


def speculate(llm: LLM, architecture: str, kind: str, batch: int, policies: Sequence[str]) -> dict[str, int]:
    """Checks policies; returns the accepted nodes by policy."""
    accepted = {}
    for policy in policies:
        engine = llm.make_engine(policy, batch)
        outputs = llm.generate(PROMPTS, PARAMS[kind], engine=engine)
        assert tuple(output.token_ids for output in outputs) == plain(architecture, kind), policy
        assert sum(output.stats.verified for output in outputs) > 0, policy
        assert_nothing_is_kept(engine)
        accepted[policy] = sum(output.stats.accepted for output in outputs)
    return accepted


LEAST = {"greedy": 3 * len(PROMPTS), "mixed": 2 * len(PROMPTS), "sampled": len(PROMPTS)}
"""Nodes that a good head gets accepted at the least, so that equality says something."""


@pytest.mark.parametrize("kind", PARAMS)
def test_every_policy_gives_the_plain_tokens_with_a_good_head(kind: str, folders: dict[str, Path]) -> None:
    """Requests join as others end, since there are more than the batch holds."""
    accepted = speculate(make_llm(folders["learnt"]), "llama", kind, 3, EVERY)
    assert min(accepted.values()) > LEAST[kind], accepted


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("batch", [1, 3])
def test_lookup_may_join_the_head(batch: int, kind: str, folders: dict[str, Path]) -> None:
    """Texts that repeat themselves, so that lookup finds something; both kinds of nodes are accepted."""
    prompts = [prompt + prompt + prompt[:3] for prompt in PROMPTS]
    head = make_llm(folders["learnt"], max_batch=batch).drafter
    assert head is not None
    pair = JointDrafter(head, NgramDrafter(shortest_match=1))
    llm = LLM(tiny_model("llama"), drafter=pair, policy="none", profile=flat_profile(levels=True), max_batch=batch)
    expected = [output.token_ids for output in llm.generate(prompts, PARAMS[kind])]
    for policy in MAIN:
        engine = llm.make_engine(policy, batch)
        planted = count_planted(engine)
        outputs = llm.generate(prompts, PARAMS[kind], engine=engine)
        assert [output.token_ids for output in outputs] == expected
        assert sum(output.stats.accepted for output in outputs) > 0
        assert (sum(planted) > 0) == (policy == "smart")  # baselines stay what they are
        assert engine.runner.seating.rows_in_use() == 0


def count_planted(engine: Engine) -> list[int]:
    """Hears how many nodes are planted in every step."""
    counts: list[int] = []
    select = engine.policy.select

    def counting(forest: Forest) -> Ints:
        counts.append(forest.planted)
        return select(forest)

    engine.policy.select = counting  # type: ignore[method-assign]
    return counts


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
@pytest.mark.parametrize("batch", [1, 6])
def test_the_batch_size_does_not_matter(batch: int, kind: str, folders: dict[str, Path]) -> None:
    accepted = speculate(make_llm(folders["learnt"]), "llama", kind, batch, MAIN)
    assert min(accepted.values()) > LEAST[kind], accepted


@pytest.mark.parametrize(
    ("head", "kind", "policies"),
    [
        ("random", "greedy", ("paper", "chain", "static", "opt-tree")),
        ("random", "sampled", MAIN),
        ("every token", "sampled", MAIN),
        ("all switches", "greedy", MAIN),
    ],
)
def test_a_random_head_does_no_harm(head: str, kind: str, policies: tuple[str, ...], folders: dict[str, Path]) -> None:
    accepted = speculate(make_llm(folders[head]), "llama", kind, 3, policies)
    assert sum(accepted.values()) > 0  # many nodes hit now and then


@pytest.mark.parametrize("architecture", ["qwen3", "gemma2"])
def test_other_architectures(architecture: str, folders: dict[str, Path]) -> None:
    speculate(make_llm(folders["all switches"], architecture), architecture, "sampled", 3, ("static",))


@pytest.mark.parametrize("batch", [3, 6])
def test_prompts_that_join_in_chunks_beside_decoding_requests(batch: int, folders: dict[str, Path]) -> None:
    accepted = speculate(make_llm(folders["learnt"], prefill_tokens=3), "llama", "mixed", batch, ("static",))
    assert min(accepted.values()) > LEAST["mixed"]


class NowAndThen(Eagle2Policy):
    """Speculates in some steps only, and then not for every request."""

    name = "now and then"

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.idle, self.draw = 0, 0, np.random.default_rng(0)

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """A random part of the roots, or none."""
        roots = super().begin(state, forest)
        self.steps += 1
        if self.draw.random() < 0.5:
            self.idle += 1
            return roots[:0]
        return roots[self.draw.random(len(roots)) < 0.7]


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_a_policy_that_pauses(kind: str, folders: dict[str, Path]) -> None:
    """What was committed meanwhile is read when drafting goes on, and drafting is as good as ever."""
    llm, policy = make_llm(folders["learnt"]), NowAndThen()
    outputs = llm.generate(PROMPTS, PARAMS[kind], engine=llm.make_engine(policy, 3))
    assert tuple(output.token_ids for output in outputs) == plain("llama", kind)
    assert 3 < policy.idle < policy.steps - 3
    assert sum(output.stats.accepted for output in outputs) > len(PROMPTS)


def test_a_device_on_which_speculation_does_not_pay(folders: dict[str, Path]) -> None:
    llm = LLM(
        tiny_model(), drafter=str(folders["random"]), policy="smart", profile=steep_profile(levels=True), max_batch=8
    )
    outputs = llm.generate(PROMPTS, PARAMS["greedy"])
    assert tuple(output.token_ids for output in outputs) == plain("llama", "greedy")
    assert_nothing_is_kept(llm.engine)


def test_a_head_is_as_good_in_a_batch_as_alone(folders: dict[str, Path]) -> None:
    """In a batch as many nodes are accepted as alone: packing costs nothing of the head's skill."""
    accepted = {}
    for batch in (1, 6):
        llm = make_llm(folders["learnt"])
        outputs = llm.generate(PROMPTS, PARAMS["greedy"], engine=llm.make_engine("static", batch))
        accepted[batch] = [output.stats.accepted for output in outputs]
    assert accepted[1] == accepted[6]


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_stop_tokens_inside_an_accepted_path(kind: str, folders: dict[str, Path]) -> None:
    llm = make_llm(folders["learnt"])
    engine = llm.make_engine("static", 4)
    stops = [output[TOKENS // 2] for output in plain("llama", kind)]
    params = [
        SamplingParams(
            max_tokens=TOKENS,
            temperature=one.temperature,
            top_k=one.top_k,
            top_p=one.top_p,
            seed=one.seed,
            stop_token_ids=(stop,),
        )
        for one, stop in zip(PARAMS[kind], stops, strict=True)
    ]
    outputs = llm.generate(PROMPTS, params, engine=engine)
    for output, whole, stop in zip(outputs, plain("llama", kind), stops, strict=True):
        assert output.token_ids == whole[: whole.index(stop) + 1]
        assert output.finish_reason == "stop"
    assert_nothing_is_kept(engine)


def test_exact_counts(folders: dict[str, Path]) -> None:
    llm = make_llm(folders["learnt"])
    engine = llm.make_engine("static", 6)
    for most in range(1, 8):
        outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=most), engine=engine)
        assert [output.token_ids for output in outputs] == [whole[:most] for whole in plain("llama", "greedy")]


@pytest.mark.parametrize("window", [13, 16])
def test_texts_that_reach_the_end_of_the_window(window: int, folders: dict[str, Path]) -> None:
    prompts = [PROMPTS[0], PROMPTS[4], PROMPTS[5]]
    expected = LLM(tiny_model(), drafter="none", policy="none", max_model_len=window).generate(
        prompts, SamplingParams(max_tokens=50)
    )
    llm = make_llm(folders["learnt"], max_model_len=window)
    for policy in ("eagle2", "smart", "static"):
        outputs = llm.generate(prompts, SamplingParams(max_tokens=50), engine=llm.make_engine(policy, 3))
        assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
        assert {output.finish_reason for output in outputs} == {"length"}


def test_requests_that_are_given_up_leave_nothing_behind(folders: dict[str, Path]) -> None:
    """Some before their first step, some in the middle of their prompt, some while decoding; the others go on."""
    llm = make_llm(folders["random"], prefill_tokens=12)
    engine = llm.make_engine("chain", 3)
    requests: list[Request] = [engine.add(prompt, PARAMS["greedy"][0]) for prompt in PROMPTS]
    for place in (5, 1, 0, 4):
        engine.step()
        engine.abort(requests[place])
    while engine.unfinished:
        engine.step()
    for place, request in enumerate(requests):
        if place not in (5, 1, 0, 4):
            assert request.output == plain("llama", "greedy")[place]
    assert_nothing_is_kept(engine)


def test_one_head_serves_several_engines(folders: dict[str, Path]) -> None:
    """Their requests have the same ids; each engine keeps a cache of its own."""
    llm = make_llm(folders["learnt"])
    engines = [llm.make_engine("eagle2", 4), llm.make_engine("chain", 4)]
    running = [[engine.add(prompt, PARAMS["greedy"][0]) for prompt in PROMPTS] for engine in engines]
    while any(engine.unfinished for engine in engines):
        for engine in engines:
            if engine.unfinished:
                engine.step()
    for requests in running:
        assert tuple(request.output for request in requests) == plain("llama", "greedy")


def test_the_profile_key_names_the_head(folders: dict[str, Path]) -> None:
    llms = [make_llm(folders[name]) for name in ("learnt", "random", "random")]
    keys = [profile_key(llm.target, llm.drafter) for llm in llms]
    assert keys[0].drafter != keys[1].drafter
    assert keys[1] == keys[2]
    assert len({keys[0].digest(), keys[1].digest(), profile_key(llms[0].target, None).digest()}) == 3


def test_levels_of_the_head_are_measured(folders: dict[str, Path]) -> None:
    llm = make_llm(folders["learnt"], max_model_len=100)
    profile = measure(llm.target, llm.drafter, 2, llm.window, seconds=0.05)
    assert profile.key == profile_key(llm.target, llm.drafter)
    assert profile.draft.by_level
    assert {(point.batch, point.width) for point in profile.draft.levels} == {
        (batch, batch * rows) for batch in (1, 2) for rows in (1, 4, 10)
    }
    assert all(0 < point.seconds < 5 for point in profile.draft.levels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_element_types_run(dtype: torch.dtype, folders: dict[str, Path]) -> None:
    """Float32 is exact here too; bfloat16 only has to run and to be about as good."""
    llm = LLM(
        tiny_model(dtype=dtype), drafter=str(folders["learnt"]), policy="eagle2", profile=flat_profile(levels=True)
    )
    outputs = llm.generate(PROMPTS, PARAMS["greedy"])
    if dtype == torch.float32:
        assert tuple(output.token_ids for output in outputs) == plain("llama", "greedy")
    assert sum(output.stats.accepted for output in outputs) > len(PROMPTS)


def test_these_prompts_are_what_the_head_has_learnt() -> None:
    """Float64 gives the texts that were trained on, so that a good head is good here."""
    assert [list(text.answer[:TOKENS]) for text in small.texts()[: len(PROMPTS)]] == list(plain("llama", "greedy"))
    assert len({tuple(output) for output in plain("llama", "greedy")}) == len(PROMPTS)
