"""Counts of steps and what is derived from them."""

from __future__ import annotations

import json
import math

import pytest

from smartree.engine.stats import EngineStats, RequestStats


def test_requests_count_steps_nodes_and_depths() -> None:
    stats = RequestStats()
    stats.add_step(drafted=5, verified_depth=3, verified=4, accepted=2, tokens=3)
    stats.add_step(drafted=2, verified_depth=1, verified=2, accepted=0, tokens=1)
    stats.add_step(drafted=0, verified_depth=0, verified=0, accepted=0, tokens=1)
    assert (stats.steps, stats.tokens, stats.drafted, stats.verified, stats.accepted) == (3, 5, 7, 6, 2)
    assert stats.tau == pytest.approx(5 / 3)
    # Depth 2 was tried once: what was not put to the test is not rejected.
    assert stats.observed_by_depth == [2, 1, 1]
    assert stats.accepted_by_depth == [1, 1, 0]
    assert stats.sizes == {4: 1, 2: 1, 0: 1}


def test_nothing_done_is_no_division_by_zero() -> None:
    assert RequestStats().tau == 0
    assert EngineStats().tau == 0


def test_both_are_json() -> None:
    stats = RequestStats()
    stats.add_step(drafted=5, verified_depth=3, verified=4, accepted=2, tokens=3)
    assert json.loads(json.dumps(stats.to_json()))["sizes"] == {"4": 1}
    assert json.loads(json.dumps(EngineStats().to_json()))["steps"] == 0


def step(stats: EngineStats, *, requests: int, predicted: float = math.nan) -> None:
    stats.add_step(
        requests=requests,
        rows=3 * requests,
        levels=2,
        seconds=1.0,
        target_seconds=0.6,
        draft_seconds=0.3,
        predicted_seconds=predicted,
    )


def test_time_is_divided_between_the_models_and_the_rest() -> None:
    stats = EngineStats()
    step(stats, requests=2)
    step(stats, requests=0)
    assert stats.steps == 2
    assert (stats.decode_steps, stats.requests_decoded, stats.verified_rows, stats.draft_levels) == (1, 2, 6, 2)
    assert stats.bookkeeping_seconds == pytest.approx(0.2)


def test_only_predicted_passes_are_compared() -> None:
    stats = EngineStats()
    step(stats, requests=1, predicted=0.5)
    step(stats, requests=1)
    assert (stats.compared_steps, stats.compared_seconds, stats.predicted_seconds) == (1, 0.6, 0.5)


def test_the_first_token_of_a_prompt_is_not_speculations_doing() -> None:
    stats = EngineStats(tokens=12, first_tokens=2, requests_decoded=4)
    assert stats.tau == 2.5
