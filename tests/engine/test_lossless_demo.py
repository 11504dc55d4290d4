"""The promise on a real model: the demo model in float32 and bfloat16, real prompts with its chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import product

import pytest
import torch
from transformers import AutoModelForCausalLM

from smartree import LLM, SamplingParams
from smartree.drafters.eagle3.drafter import Eagle3Drafter
from smartree.drafters.factory import make_drafter
from smartree.drafters.joint import JointDrafter
from smartree.engine.engine import Engine
from smartree.engine.margin import NEAR_TIE, first_difference_margin
from smartree.models.demo import demo_folder
from smartree.models.load import quiet_transformers
from smartree.policies import SmartOptions, SmartPolicy
from smartree.policies.eagle2 import Eagle2Policy
from tests.tiny import flat_profile

pytestmark = [pytest.mark.demo, pytest.mark.usefixtures("still_clock")]
TOKENS = 32
GREEDY = SamplingParams(max_tokens=TOKENS)
SAMPLED = SamplingParams(max_tokens=24, temperature=1.0, seed=0)
QUESTIONS = [
    "How many legs do three cats and two birds have together?",
    "Write a Python function that returns the larger of two numbers.",
    "Name the days of the week, then name them again.",
    "Translate to French: Good morning, my friend.",
]


def rewriting() -> list[str]:
    """The two shortest prompts of the demo whose answer repeats a given text, where lookup shines."""
    lines = files("smartree.cli").joinpath("demo_prompts.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return sorted((row["prompt"] for row in rows if row["kind"] == "rewrite"), key=len)[:2]


@pytest.fixture(scope="module")
def prompts(demo_llm: LLM) -> list[str]:
    """As the demo model was trained to read them."""
    questions = [*QUESTIONS, *rewriting()]
    assert len(questions) == 6
    return [demo_llm.apply_chat_template([{"role": "user", "content": question}]) for question in questions]


def generate(
    llm: LLM, prompts: Sequence[str], params: SamplingParams, policy: str, batch: int
) -> tuple[list[list[int]], int, int]:
    """Tokens of each output, verified and accepted nodes of all."""
    outputs = llm.generate(prompts, params, engine=llm.make_engine(policy, batch))
    assert llm.engine.runner.seating.rows_in_use() == 0
    return (
        [output.token_ids for output in outputs],
        sum(output.stats.verified for output in outputs),
        sum(output.stats.accepted for output in outputs),
    )


@cache
def plain(llm: LLM, prompts: tuple[str, ...], params: SamplingParams) -> list[list[int]]:
    return generate(llm, prompts, params, "none", 1)[0]


def test_plain_decoding_gives_the_tokens_of_transformers(demo_llm: LLM, prompts: list[str]) -> None:
    with quiet_transformers():
        theirs = AutoModelForCausalLM.from_pretrained(demo_folder(), dtype=torch.float32)
    for prompt, output in zip(prompts, plain(demo_llm, tuple(prompts), GREEDY), strict=True):
        ids = torch.tensor([demo_llm.encode(prompt)])
        expected = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=2
        )
        assert output == expected[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_policy_gives_the_plain_tokens(
    demo_llm: LLM, prompts: list[str], params: SamplingParams, batch: int
) -> None:
    expected = plain(demo_llm, tuple(prompts), params)
    if batch > 1:
        assert generate(demo_llm, prompts, params, "none", batch)[0] == expected
    for policy in ("smart", "paper", "eagle2"):
        tokens, verified, accepted = generate(demo_llm, prompts, params, policy, batch)
        assert tokens == expected, policy
        assert verified > 100, policy
        assert accepted > (20 if params is GREEDY else 5), policy


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_head_that_comes_with_the_package_changes_nothing_but_the_time(
    demo_llm: LLM, prompts: list[str], params: SamplingParams
) -> None:
    expected = plain(demo_llm, tuple(prompts), params)
    drafter = make_drafter("auto", demo_llm.target, 3, demo_llm.window)
    assert isinstance(drafter, JointDrafter)
    assert isinstance(drafter.levels, Eagle3Drafter)
    few = SmartOptions(max_depth=5, max_nodes=16)  # a device as flat as this one would verify hundreds
    costs = flat_profile(levels=True).cost_model()
    for sizing in (SmartPolicy(costs, few), Eagle2Policy(costs, total=16, depth=3, top_k=4)):
        engine = Engine(demo_llm.target, drafter.fresh(), sizing, max_batch=3)
        outputs = demo_llm.generate(prompts, params, engine=engine)
        assert [output.token_ids for output in outputs] == expected, sizing.name
        accepted, tokens = sum(output.stats.accepted for output in outputs), sum(map(len, expected))
        assert accepted > tokens / 4, sizing.name
        assert engine.runner.seating.rows_in_use() == 0


def test_in_bfloat16_outputs_part_only_where_two_tokens_are_nearly_equal(prompts: list[str]) -> None:
    llm = LLM("demo", dtype="bfloat16", drafter="ngram", policy="none", profile=flat_profile(), max_batch=3)
    chosen = [prompts[0], prompts[2], prompts[4]]
    encoded = [llm.encode(prompt) for prompt in chosen]
    expected, _, _ = generate(llm, chosen, GREEDY, "none", 1)
    tokens, verified, _ = generate(llm, chosen, GREEDY, "smart", 3)
    assert verified > 50
    for prompt, one, other in zip(encoded, tokens, expected, strict=True):
        found = first_difference_margin(llm, prompt, one, other)
        assert found is None or found[1] <= NEAR_TIE[torch.bfloat16], found


SUBJECTS = ["a river", "the moon", "an old clock", "my sister", "a red bicycle", "the kitchen", "winter", "a small dog"]
FRAMES = [
    "Write one sentence about {}.",
    "Repeat three times: {} and {}.",
    "What do {} and {} have in common?",
    "Make a list of five words about {}.",
    "Tell a short story about {}.",
    "Write a Python list of ten strings about {}.",
    "Complete: {} is to day as {} is to",
    "Correct the spelling: {} iz veri nise.",
    "Explain {} to a child.",
    "{}, {}, {}, {}:",
    "Translate into German: {} is beautiful.",
    "Count from one to twenty, then write {}.",
    "Write a rhyme with {} and {}.",
]


@pytest.mark.slow
def test_a_hundred_prompts_give_the_plain_tokens(demo_llm: LLM) -> None:
    filled = [
        frame.format(*(SUBJECTS[(start + 3 * place) % len(SUBJECTS)] for place in range(4)))
        for start, frame in product(range(len(SUBJECTS)), FRAMES)
    ][:100]
    assert len(set(filled)) == 100
    prompts = [demo_llm.apply_chat_template([{"role": "user", "content": text}]) for text in filled]
    params = SamplingParams(max_tokens=24)
    expected, _, _ = generate(demo_llm, prompts, params, "none", 8)
    for batch in (1, 8):
        tokens, verified, _ = generate(demo_llm, prompts, params, "smart", batch)
        assert tokens == expected
        assert verified > 1000
