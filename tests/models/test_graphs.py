"""Recorded passes, with a recorder that does on the CPU what a CUDA graph does: always the same output tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smartree import LLM, SamplingParams
from smartree.engine.engine import Engine
from smartree.models.graphs import GraphedPasses, Run
from smartree.models.load import prepare_model
from smartree.models.runner import ModelRunner
from smartree.models.taps import LayerTaps
from tests.models.test_buckets import trees
from tests.tiny import flat_profile, random_prompts, tiny_model

PROMPTS = random_prompts([3, 30, 12, 21, 8])


class Recorder:
    """Runs again where a graph would be launched; outputs and tapped states stay where they were."""

    def __init__(self, taps: LayerTaps | None = None) -> None:
        self.launches, self.taps = 0, taps

    def __call__(self, run: Run) -> Run:
        output = run().clone()
        states = self.taps.states() if self.taps else {}

        def launch() -> torch.Tensor:
            self.launches += 1
            output.copy_(run())
            for layer, state in (self.taps.states() if self.taps else {}).items():
                states[layer].copy_(state)
            return output

        return launch


def record(engine: Engine) -> Recorder:
    """Turns recording on, which only a CUDA device does by itself."""
    runner = engine.runner
    recorder = Recorder(runner.taps)
    runner.graphs = GraphedPasses(runner.model, runner.cache, runner.taps, recorder)
    return recorder


@pytest.mark.parametrize("policy", ["none", "static", "smart"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.usefixtures("still_clock")
def test_recorded_passes_give_the_same_tokens(policy: str, temperature: float) -> None:
    llm = LLM(tiny_model(), drafter="ngram", policy="none", profile=flat_profile(), max_batch=3)
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=3)
    expected = [output.token_ids for output in llm.generate(PROMPTS, params)]
    engine = llm.make_engine(policy)
    recorder = record(engine)
    assert [output.token_ids for output in llm.generate(PROMPTS, params, engine=engine)] == expected
    assert recorder.launches > engine.stats.steps / 4


def test_a_cache_that_grows_forgets_its_recordings() -> None:
    llm = LLM(tiny_model(window=1200), drafter="none", policy="none", max_batch=1)
    params = SamplingParams(max_tokens=560, ignore_eos=True)
    expected = [output.token_ids for output in llm.generate(PROMPTS[:1], params)]
    engine = llm.make_engine("none")
    recorder, rows = record(engine), engine.runner.cache.rows
    assert [output.token_ids for output in llm.generate(PROMPTS[:1], params, engine=engine)] == expected
    assert engine.runner.cache.rows > rows
    assert engine.runner.graphs is not None
    assert len(engine.runner.graphs) < 3  # of the cache as it was nothing is left
    assert recorder.launches > 500


@torch.inference_mode()
def test_tapped_states_are_those_of_the_pass_that_was_launched() -> None:
    draw = np.random.default_rng(0)
    loaded = prepare_model(tiny_model(), None, "tiny")
    plain, graphed = (ModelRunner(loaded, 2, 128, (0, 2)) for _ in range(2))
    graphed.graphs = GraphedPasses(loaded.model, graphed.cache, graphed.taps, Recorder(graphed.taps))
    for sizes in ([2, 3], [2, 3], [2, 3], [2, 3], [1, 3], [1, 1], [2, 3], [1, 3]):
        group, again = (trees(sizes, [0, 0], np.random.default_rng(4)) for _ in range(2))
        tokens = draw.integers(0, 97, sum(sizes))
        index = torch.arange(sum(sizes))
        torch.testing.assert_close(graphed.forward([group], tokens), plain.forward([again], tokens), rtol=0, atol=1e-10)
        assert graphed.taps is not None
        assert plain.taps is not None
        torch.testing.assert_close(graphed.taps.rows(index), plain.taps.rows(index), rtol=0, atol=1e-10)
    assert len(graphed.graphs) >= 1


def test_a_cpu_records_nothing() -> None:
    llm = LLM(tiny_model(), drafter="none", policy="none", cuda_graphs=True)
    assert llm.engine.runner.graphs is None
