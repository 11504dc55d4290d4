"""A timed policy decides as the one inside does."""

from __future__ import annotations

import math

from smartree import LLM, SamplingParams
from smartree.bench.stopwatch import TimedPolicy
from smartree.policies.smart import SmartPolicy
from tests.tiny import random_prompts


def test_it_is_the_policy_with_a_clock(llm: LLM) -> None:
    cost = llm.knowledge.cost_model()
    assert cost is not None
    inner = SmartPolicy(cost)
    timed = TimedPolicy(inner)
    assert (timed.name, timed.inspects_tokens, timed.speculates) == ("smart", True, True)
    assert math.isnan(timed.predicted_seconds)
    engine = llm.make_engine(timed, max_batch=2)
    prompts = random_prompts([10, 14])
    outputs = llm.generate(prompts, SamplingParams(max_tokens=12), engine=engine)
    assert [output.token_ids for output in outputs] == [
        output.token_ids for output in llm.generate(prompts, SamplingParams(max_tokens=12))
    ]
    assert 0 < timed.seconds <= engine.stats.seconds
    assert timed.predicted_seconds == inner.predicted_seconds > 0
    assert timed.price == inner.price  # what only some policies have
    assert engine.stats.compared_steps > 0
