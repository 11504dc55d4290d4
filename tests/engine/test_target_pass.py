"""The rows of a step: trees first, then prompt chunks, and which logits are wanted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smartree.engine.request import Request
from smartree.engine.scheduler import Chunk, StepPlan
from smartree.engine.target_pass import TargetPass
from smartree.models.seating import Seating
from smartree.sampling_params import SamplingParams
from smartree.tree import DraftTree, forest_of, pack
from smartree.tree.packed import PackedTrees
from smartree.verify.shaping import Shaping


def a_request(request_id: int, tokens: list[int], prompt_length: int) -> Request:
    return Request(request_id, tokens, prompt_length, SamplingParams(), 0, frozenset())


DECODING = [a_request(0, [1, 2, 3, 4], 2), a_request(1, [5, 6], 1)]
JOINING = [a_request(2, [10, 11, 12, 13, 14], 5), a_request(3, [20, 21], 2)]


def seated(requests: list[Request]) -> Seating:
    seating = Seating(6)
    seating.seat([request.id for request in requests])
    seating.cached.update({request.id: len(request.tokens) - 1 for request in requests if request in DECODING})
    return seating


def trees(*sizes: int) -> PackedTrees:
    forest = forest_of([DraftTree.of([-1] * size, [0.5] * size, range(40, 40 + size)) for size in sizes])
    forest.token[: len(sizes)] = [4, 6][: len(sizes)]
    return pack(forest, np.arange(forest.batch, len(forest)))


def test_a_step_without_prompts_wants_every_rows_logits() -> None:
    plan = StepPlan(DECODING, [], DECODING)
    made = TargetPass.of(plan, trees(2, 1), seated(DECODING))
    assert made.tokens.tolist() == [4, 40, 41, 6, 40]
    assert made.keep is None
    (group,) = made.groups
    assert (list(group.slots), group.base.tolist(), group.sizes.tolist()) == ([0, 1], [3, 1], [3, 2])
    assert group.depths.tolist() == [0, 1, 1, 0, 1]


def test_prompt_chunks_follow_the_trees_and_only_complete_prompts_want_logits() -> None:
    seating = seated([*DECODING, *JOINING])
    seating.cached[2] = 1
    chunks = [Chunk(JOINING[0], 1, 4), Chunk(JOINING[1], 0, 2)]
    made = TargetPass.of(StepPlan(DECODING, chunks, [*DECODING, *JOINING]), trees(1, 0), seating)
    assert made.tokens.tolist() == [4, 40, 6, 11, 12, 13, 20, 21]
    assert made.keep is not None
    assert made.keep.tolist() == [0, 1, 2, 7]  # the first prompt is not complete yet
    assert [list(group.slots) for group in made.groups] == [[0, 1], [2], [3]]
    assert [group.base.tolist() for group in made.groups] == [[3, 1], [1], [0]]


def test_a_step_of_unfinished_prompts_only_asks_for_as_little_as_possible() -> None:
    seating = seated(JOINING[:1])
    made = TargetPass.of(StepPlan([], [Chunk(JOINING[0], 0, 3)], JOINING[:1]), trees(), seating)
    assert made.tokens.tolist() == [10, 11, 12]
    assert made.keep is not None
    assert len(made.keep) == 1
    assert len(made.groups) == 1


@pytest.mark.parametrize(
    ("decodes", "completes", "on_its_way", "wanted"),
    [
        (SamplingParams(), SamplingParams(), SamplingParams(temperature=1.0), False),
        (SamplingParams(temperature=1.0), SamplingParams(), SamplingParams(), True),
        (SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(), True),
        (SamplingParams(logprobs=0), SamplingParams(), SamplingParams(), True),
        (SamplingParams(), SamplingParams(logprobs=2), SamplingParams(), True),
    ],
)
def test_logits_are_wanted_if_somebody_who_gets_a_token_needs_more_than_the_largest(
    decodes: SamplingParams, completes: SamplingParams, on_its_way: SamplingParams, wanted: bool
) -> None:
    requests = [
        Request(number, list(range(6)), 4, params, 0, frozenset())
        for number, params in enumerate((decodes, completes, on_its_way))
    ]
    seating = seated(requests)
    seating.cached.update({0: 5, 1: 2, 2: 0})
    chunks = [Chunk(requests[1], 2, 6), Chunk(requests[2], 0, 3)]
    made = TargetPass.of(StepPlan(requests[:1], chunks, requests), trees(1), seating)
    assert made.logits == wanted
    alone = TargetPass.of(StepPlan(requests[:1], [], requests[:1]), trees(1), seating)
    assert alone.logits == (decodes != SamplingParams())


def test_a_request_whose_logits_are_changed_needs_them() -> None:
    request = a_request(0, [1, 2, 3], 2)
    request.shaping = Shaping(SamplingParams(presence_penalty=1.0), [1, 2], frozenset(), 50, torch.device("cpu"))
    made = TargetPass.of(StepPlan([request], [], [request]), trees(1), seated([request]))
    assert made.logits
