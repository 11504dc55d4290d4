"""How many prompt tokens ride on a step beside decoding requests."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.cost.model import CostModel
from smartree.cost.table import CostPoint, CostTable
from smartree.engine.prompt_share import PromptShare
from smartree.engine.request import Request
from smartree.sampling_params import SamplingParams

MOST = 200


def requests(count: int) -> list[Request]:
    params = SamplingParams()
    return [Request(one, [1] * 50, 40, params, 0, frozenset()) for one in range(count)]


def costs(per_row: float, floor: float = 1.0) -> CostModel:
    """Passes that take `floor` and then, beyond 8 rows, `per_row` each."""
    rows = np.array([1, 8, 16, 64, 512])
    seconds = floor + per_row * np.maximum(rows - 8, 0)
    points = [
        CostPoint(batch, max(int(one), batch), 64, float(time))
        for one, time in zip(rows, seconds, strict=True)
        for batch in (1, 4)
    ]
    return CostModel(CostTable(points))


def test_nobody_waits_where_nobody_decodes() -> None:
    assert PromptShare(costs(1.0), MOST).tokens([]) == MOST


def test_without_costs_pieces_are_as_large_as_they_may_be_until_passes_have_told() -> None:
    share = PromptShare(None, MOST)
    share.observe(0, 0, 150, 0, 3.5, 3.4)  # nobody decodes yet
    assert share.tokens(requests(4)) == MOST
    for rows in (4, 154):
        for _ in range(60):
            share.observe(4, 0, rows - 4, 50, 0.5 + 0.02 * rows + 0.1, 0.5 + 0.02 * rows)
    tokens = share.tokens(requests(4))
    alone = 0.5 + 0.02 * 4 + 0.1
    assert 0.5 + 0.02 * (4 + tokens) + 0.1 <= 1.83 * alone
    assert 0.5 + 0.02 * (4 + tokens + 1) + 0.1 > 1.77 * alone


@pytest.mark.parametrize("measured", [True, False])
def test_a_step_may_take_longer_where_more_wait_for_their_first_token(measured: bool) -> None:
    model = costs(0.02)
    share = PromptShare(model if measured else None, MOST)
    for _ in range(100):
        for tokens in (0, 30):
            seconds = float(model.table.seconds(4, 4 + tokens, 50))
            share.observe(4, 0, tokens, 50, seconds, seconds)
    few, many, most = (share.tokens(requests(4), joining) for joining in (3, 6, 12))
    assert few == share.tokens(requests(4), 1) < many < most < MOST
    alone = float(model.table.seconds(4, 4, 50))
    assert 2.4 * alone < float(model.table.seconds(4, 4 + many, 50)) <= 2.7 * alone
    assert 3.8 * alone < float(model.table.seconds(4, 4 + most, 50)) <= 4.5 * alone


@pytest.mark.parametrize("measured", [True, False])
def test_the_first_prompt_after_a_long_time_keeps_its_share_too(measured: bool) -> None:
    """Drafting is part of a step without prompts: what is beside its pass is no room for prompts."""
    model = costs(0.02)
    share = PromptShare(model if measured else None, MOST)
    for tokens in (150, *[0] * 800):
        seconds = float(model.table.seconds(4, 4 + tokens, 50))
        share.observe(4 if tokens == 0 else 0, 0, tokens, 50, seconds + 0.6, seconds)
    tokens = share.tokens(requests(4))
    alone = float(model.table.seconds(4, 4, 50)) + 0.6
    assert 1.6 * alone < float(model.table.seconds(4, 4 + tokens, 50)) + 0.6 <= 1.85 * alone


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("per_row", [0.01, 0.02, 0.05])
def test_a_step_stays_within_its_share_of_a_plain_one(batch: int, per_row: float) -> None:
    model = costs(per_row)
    tokens = PromptShare(model, MOST).tokens(requests(batch))
    plain = model.autoregressive(batch, 50)
    longest = 1 + max(0.8, 1 / batch)  # one joins
    assert 16 < tokens < MOST
    assert float(model.verify(batch, batch + tokens, 50)) <= longest * plain
    assert float(model.verify(batch, batch + tokens + 1, 50)) > longest * plain


def test_who_waits_for_the_end_alone_has_prompts_read_at_once() -> None:
    share = PromptShare(costs(0.02), MOST)
    limited = share.tokens(requests(4))
    share.limited = False
    assert share.tokens(requests(4)) == MOST > limited


def test_prompts_come_to_their_end_however_dear_rows_are() -> None:
    assert PromptShare(costs(10.0), MOST).tokens(requests(4)) == 16
    assert PromptShare(costs(10.0), 5).tokens(requests(4)) == 5


def test_where_rows_are_free_pieces_are_as_large_as_they_may_be() -> None:
    assert PromptShare(costs(0.0), MOST).tokens(requests(4)) == MOST


def test_what_the_clock_says_of_trees_changes_nothing() -> None:
    model = costs(0.02)
    before = PromptShare(model, MOST).tokens(requests(4))
    for _ in range(100):
        model.observe(4, 4, 50, 1.0)
        model.observe(4, 16, 50, 2.0)
    assert float(model.verify(4, 100, 50)) > 1.2 * float(model.table.seconds(4, 100, 50))
    assert PromptShare(model, MOST).tokens(requests(4)) == before


@pytest.mark.parametrize("ever_alone", [True, False])
@pytest.mark.parametrize("nodes", [0, 20])
@pytest.mark.parametrize(("beside", "reading"), [(0.0, 0.8), (0.6, 1.0), (0.6, 1.3), (0.1, 0.7)])
def test_a_step_stays_within_its_share_of_one_without_prompts(
    beside: float, reading: float, nodes: int, ever_alone: bool
) -> None:
    """By the clock: passes with prompts take other times than the profile says, and drafting some `beside` them.

    Under a load of many short requests no step is ever without prompts.
    """
    model = costs(0.02)
    share = PromptShare(model, MOST)

    def pass_seconds(tokens: int) -> float:
        return reading * float(model.table.seconds(4, 4 + nodes + tokens, 50))

    for _ in range(200):
        for tokens in (0, 30) if ever_alone else (30,):
            share.observe(4, nodes, tokens, 50, pass_seconds(tokens) + beside, pass_seconds(tokens))
    tokens = share.tokens(requests(4))
    alone = pass_seconds(0) + beside
    assert 16 < tokens < MOST
    assert pass_seconds(tokens) + beside <= 1.801 * alone
    assert pass_seconds(tokens + 1) + beside > 1.799 * alone


@pytest.mark.parametrize(("measured", "little"), [(True, 1.3), (False, 1.6)])
def test_a_moment_in_which_the_machine_stood_still_changes_little(measured: bool, little: float) -> None:
    share = PromptShare(costs(0.02) if measured else None, MOST)
    for tokens in (0, 30) * 100:
        share.observe(4, 0, tokens, 50, 1.0 + 0.02 * tokens, 1.0 + 0.02 * tokens)
    before = share.tokens(requests(4))
    for tokens in (0, 30):
        share.observe(4, 0, tokens, 50, 100.0, 100.0)
        assert 0.8 * before < share.tokens(requests(4)) < little * before


def test_steps_in_which_nobody_decodes_teach_nothing() -> None:
    share = PromptShare(costs(0.02), MOST)
    before = share.tokens(requests(4))
    for _ in range(20):
        share.observe(0, 0, MOST, 0, 100.0, 100.0)
    assert share.tokens(requests(4)) == before
