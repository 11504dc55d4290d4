"""Small models, drafters and prompts that share beginnings, for tests of the engine under load."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from smartree import SamplingParams
from smartree.drafters.base import Drafter
from smartree.drafters.eagle3.drafter import Eagle3Drafter
from smartree.drafters.joint import JointDrafter
from smartree.drafters.model import ModelDrafter
from smartree.drafters.ngram import NgramDrafter
from smartree.engine.engine import Engine
from smartree.engine.request import Request
from smartree.models.load import LoadedModel, prepare_model
from smartree.policies import Eagle2Policy, NonePolicy, Policy, make_policy
from tests.drafters.eagle3.heads import tiny_head
from tests.tiny import flat_profile, random_prompts, tiny_model

WINDOW = 96
BATCH = 3
SYSTEM = random_prompts([40], seed=8)[0]
PROMPTS = [
    *(SYSTEM + tail for tail in random_prompts([1, 5, 12], seed=1)),
    SYSTEM[:20] + random_prompts([9], seed=2)[0],
    SYSTEM[:16],
    *random_prompts([1, 3, 30], seed=3),
]
PARAMS = [
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=9),
    SamplingParams(max_tokens=30, temperature=1.0, seed=4),
    SamplingParams(max_tokens=40),
]
DRAFTERS = ("none", "ngram", "model", "head", "head+ngram")


@cache
def target() -> LoadedModel:
    """The target in float64."""
    return prepare_model(tiny_model("llama", window=WINDOW), None, "target")


@cache
def _drafter(name: str) -> Drafter | None:
    if name == "none":
        return None
    if name == "ngram":
        return NgramDrafter()
    if name == "model":
        return ModelDrafter(
            prepare_model(tiny_model("llama", seed=5, window=WINDOW), None, "draft"), 97, BATCH, WINDOW, 3
        )
    head = Eagle3Drafter(tiny_head(target()), BATCH, WINDOW, 3)
    return head if name == "head" else JointDrafter(head, NgramDrafter())


def drafter(name: str) -> Drafter | None:
    """One of DRAFTERS, having seen nothing."""
    made = _drafter(name)
    return None if made is None else made.fresh()


def policy(drafting: str) -> Policy:
    """What speculates enough with a drafter for its rows to matter."""
    if drafting == "none":
        return NonePolicy()
    if drafting in ("model", "head"):
        return Eagle2Policy(total=10, depth=2, top_k=3)
    return make_policy("smart", flat_profile(levels=drafting == "head+ngram").cost_model())


@cache
def solo(prompt: tuple[int, ...], params: SamplingParams) -> list[int]:
    """What plain decoding gives for one request alone."""
    engine = Engine(target(), None, NonePolicy(), max_batch=1, prefix_reuse=False)
    request = engine.add(prompt, params)
    while engine.unfinished:
        engine.step()
    return request.output


def assert_like_solo(request: Request) -> None:
    """A complete output is that of the request alone, one cut short the beginning of it."""
    prompt, output = tuple(request.tokens[: request.prompt_length]), request.output
    expected = solo(prompt, request.params)
    assert output == (expected if request.finish_reason in ("stop", "length") else expected[: len(output)])


def run(engine: Engine, requests: Sequence[Request] = ()) -> None:
    """Steps until nobody is left."""
    steps = 0
    while engine.unfinished:
        engine.step()
        steps += 1
        assert steps < 3000, "no progress"
    for request in requests:
        assert request.finish_reason in ("stop", "length")
        assert_like_solo(request)


def assert_nothing_is_held(engine: Engine) -> None:
    """No rows, no blocks, no features of requests that are over."""
    seating = engine.runner.seating
    assert engine.unfinished == seating.rows_in_use() == len(seating) == 0
    assert engine.scheduler.free_blocks == engine.budget.total
    own = engine.drafter.levels if isinstance(engine.drafter, JointDrafter) else engine.drafter
    if isinstance(own, ModelDrafter | Eagle3Drafter):
        assert own.runner.seating.rows_in_use() == len(own.runner.seating) == 0
    if isinstance(own, Eagle3Drafter):
        assert len(own._backlog) == 0
