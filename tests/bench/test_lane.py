"""The window of a policy: a batch that is always full, every measured prompt once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smartree import LLM, SamplingParams
from smartree.bench.cell import make_lane, measure_cell
from smartree.bench.lane import Lane, Load
from smartree.engine.measure import profile_key
from tests.tiny import flat_profile, random_prompts, tiny_model

PROMPTS = random_prompts([5, 12, 7, 9, 15])


def lane_and_load(llm: LLM, batch: int, temperature: float = 0.0, max_tokens: int = 12) -> tuple[Lane, Load]:
    return make_lane(llm, "smart", batch), Load(PROMPTS, max_tokens, temperature, 40)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_outputs_are_those_of_generate_with_the_prompts_seeds(llm: LLM, batch: int, temperature: float) -> None:
    lane, load = lane_and_load(llm, batch, temperature)
    params = [SamplingParams(max_tokens=12, temperature=temperature, seed=40 + number) for number in range(5)]
    expected = [output.token_ids for output in llm.generate(PROMPTS, params)]
    for _ in range(2):  # the second window begins where the first one ended
        lane.open(load)
        lane.advance(1.0)
        measures = lane.close(expected)
        assert lane.outputs == expected
        assert measures.differing == ()
        assert lane.engine.unfinished == 0


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_the_batch_is_full_in_every_step(llm: LLM, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lane, load = lane_and_load(llm, batch)
    lane.open(load)
    step, sizes, tokens = lane.engine.step, [], []

    def watched() -> object:
        sizes.append(lane.engine.unfinished)
        result = step()
        tokens.append(lane.engine.stats.tokens)
        return result

    monkeypatch.setattr(lane.engine, "step", watched)
    lane.advance(1.0)
    measures = lane.close()
    assert set(sizes) == {batch}
    assert measures.tokens == tokens[-1]
    if batch == 1:  # nothing but the measured prompts is in the window then
        assert measures.tokens == sum(len(output) for output in lane.outputs)


def test_progress_is_by_measured_work(llm: LLM) -> None:
    lane, load = lane_and_load(llm, 2)
    lane.open(load)
    assert lane.outputs == []
    lane.advance(0.5)
    half = sum(len(output) for output in lane.outputs)
    assert 0.5 * 60 <= half < 60
    lane.advance(0.5)
    assert sum(len(output) for output in lane.outputs) == half
    lane.advance(1.0)
    assert [len(output) for output in lane.outputs] == [12] * 5
    lane.close()


def test_places_become_free_one_after_another(llm: LLM) -> None:
    lane, load = lane_and_load(llm, 4, max_tokens=40)
    lane.open(load)
    lane.close()
    lane.open(load)  # warm now, so the window opens with the first free place
    left = sorted(request.remaining for request in lane._running)
    assert len(left) == 3
    assert len(set(left)) == 3
    lane.close()


@pytest.mark.parametrize("batch", [1, 4])
def test_outputs_of_one_token_end(llm: LLM, batch: int) -> None:
    lane, load = lane_and_load(llm, batch, max_tokens=1)
    lane.open(load)
    lane.advance(1.0)
    measures = lane.close()
    assert [len(output) for output in lane.outputs] == [1] * 5
    assert measures.steps == 0
    assert measures.first_tokens == measures.tokens


def test_differences_are_told(llm: LLM) -> None:
    lane, load = lane_and_load(llm, 2)
    lane.open(load)
    lane.advance(1.0)
    other = [list(output) for output in lane.outputs]
    other[3][-1] += 1
    assert lane.close(other).differing == (3,)


def test_counts_fit_together(llm: LLM) -> None:
    lane, load = lane_and_load(llm, 2)
    lane.open(load)
    lane.advance(1.0)
    measures = lane.close()
    assert measures.tokens - measures.first_tokens >= measures.requests  # every request and step gives one
    assert measures.rows >= measures.requests
    assert 0 < measures.compared_steps <= measures.steps
    assert measures.predicted_seconds > 0
    assert measures.policy_seconds > 0
    assert measures.bookkeeping_seconds >= measures.policy_seconds
    assert measures.seconds >= measures.decoding_seconds > 0
    assert measures.path_levels >= measures.levels


def test_later_lanes_begin_with_what_earlier_ones_have_learned() -> None:
    """As engines in a server do; those whose policy learns nothing teach nothing."""
    llm = LLM(tiny_model("llama"), drafter=tiny_model("llama", seed=1), profile=flat_profile(levels=True), max_batch=4)
    llm.knowledge.profile = replace(flat_profile(levels=True), key=profile_key(llm.target, llm.drafter))
    load, lanes = Load(PROMPTS, 12, 0.0, 40), [make_lane(llm, policy, 2) for policy in ("none", "smart")]
    assert llm.knowledge.make_policy("smart").learned()["price"] == {"plain": [], "found": []}
    measure_cell(llm, lanes, load, lambda name, share: None)
    assert list(llm.knowledge.profile.learned) == ["smart"]
    assert [row["batch"] for row in make_lane(llm, "smart", 2).policy.learned()["price"]["plain"]] == [2]
