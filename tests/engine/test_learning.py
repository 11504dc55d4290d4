"""What a step teaches: accepted, rejected, and unobserved nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.drafters.base import BaseDrafter, DraftRequest
from smartree.engine.drafting import Draft
from smartree.engine.learning import Lessons, observed_nodes, telling_nodes
from smartree.engine.request import Request
from smartree.policies.calibration import Calibration
from smartree.sampling_params import SamplingParams
from smartree.tree import DraftTree, Forest, forest_of, pack
from smartree.tree.forest import Candidates
from smartree.verify.shaper import Shaper
from smartree.verify.walk import Walk, walk


def taught(forest: Forest, selected: list[int], says: list[list[int]]) -> dict[int, bool]:
    """Forest ids of the observed nodes, and whether each was right, for a target that says says[request][depth]."""
    packed = pack(forest, np.array(selected, np.int64))
    walks: list[Walk] = walk(
        packed, lambda requests, rows: [says[i][packed.depths[row]] for i, row in zip(requests, rows, strict=True)]
    )
    nodes, accepted = observed_nodes(forest, packed, walks)
    return dict(zip(nodes.tolist(), accepted.tolist(), strict=True))


def test_children_of_accepted_nodes_are_observed_and_no_others() -> None:
    # root(0) - 1:token 5 - 3:token 7 - 5:token 9
    #         `- 2:token 6 - 4:token 8
    forest = forest_of([DraftTree.of([-1, -1, 0, 1, 2], [0.5] * 5, [5, 6, 7, 8, 9])])
    assert taught(forest, [1, 2, 3, 4, 5], [[5, 7, 1, 0]]) == {1: True, 2: False, 3: True, 5: False}
    assert taught(forest, [1, 2, 3, 4, 5], [[6, 1, 0, 0]]) == {1: False, 2: True, 4: False}
    assert taught(forest, [1, 2, 3, 4, 5], [[1, 0, 0, 0]]) == {1: False, 2: False}
    assert taught(forest, [1, 2, 3, 4, 5], [[5, 7, 9, 3]]) == {1: True, 2: False, 3: True, 5: True}


def test_nodes_that_were_drafted_but_not_verified_are_observed_through_the_bonus_token() -> None:
    forest = forest_of([DraftTree.of([-1, -1, 0, 1, 2], [0.5] * 5, [5, 6, 7, 8, 9])])
    # Only node 1 is verified; the target goes on with 7 after it, as node 3 said.
    assert taught(forest, [1], [[5, 7, 9, 0]]) == {1: True, 2: False, 3: True}
    assert taught(forest, [], [[6, 0, 0, 0]]) == {1: False, 2: True}


def test_every_request_has_its_own_truth() -> None:
    tree = DraftTree.of([-1, 0], [0.5] * 2, [5, 7])
    forest = forest_of([tree, DraftTree.of([], []), tree])
    first, second = (np.flatnonzero((forest.request == request) & (forest.depth > 0)).tolist() for request in (0, 2))
    assert taught(forest, [*first, *second], [[5, 7, 1], [3], [7, 5, 1]]) == {
        first[0]: True,
        first[1]: True,
        second[0]: False,
    }


def test_nothing_drafted_nothing_learned() -> None:
    assert taught(forest_of([DraftTree.of([], [])]), [], [[1]]) == {}


def test_requests_whose_logits_are_changed_are_left_out() -> None:
    tree = DraftTree.of([-1, 0], [0.5] * 2, [5, 7])
    forest = forest_of([tree, tree, tree])
    shaper = Shaper(None, 9, frozenset(), torch.device("cpu"))
    requests = [
        Request(number, [1], 1, params, 0, frozenset(), shaping=shaper.shaping(params, [1], ()))
        for number, params in enumerate(
            [SamplingParams(), SamplingParams(logit_bias={5: 1.0}), SamplingParams(top_k=2)]
        )
    ]
    nodes = np.flatnonzero(forest.depth > 0)
    accepted = nodes % 2 == 0
    left, fates = telling_nodes(requests, forest, nodes, accepted)
    assert left.tolist() == [node for node in nodes.tolist() if forest.request[node] != 1]
    assert fates.tolist() == [node % 2 == 0 for node in left.tolist()]
    assert telling_nodes(requests[:1] * 3, forest, nodes, accepted)[0] is nodes


class Listening(BaseDrafter):
    """Counts what it hears."""

    def __init__(self, calibrated: bool) -> None:
        self.calibrated = calibrated
        self.lessons = self.commits = 0

    def fresh(self) -> Listening:
        return Listening(self.calibrated)

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        raise AssertionError("nobody drafts here")

    def expand(self, forest: Forest, frontier: NDArray[np.int64]) -> Candidates:
        raise AssertionError("nobody drafts here")

    def learn(self, forest: Forest, nodes: NDArray[np.int64], accepted: NDArray[np.bool_]) -> None:
        self.lessons += 1

    def commit(self, forest: Forest, accepted: NDArray[np.int64]) -> None:
        self.commits += 1


class Counting(Calibration):
    """Counts its lessons."""

    def __init__(self) -> None:
        super().__init__()
        self.lessons = 0

    def learn(
        self, forest: Forest, nodes: NDArray[np.int64], accepted: NDArray[np.bool_], sampled: NDArray[np.bool_]
    ) -> None:
        self.lessons += 1


def counts(calibrated: bool, levels: int, steps: int) -> tuple[int, int, int]:
    """Lessons of the drafter, of the calibration, and commits, of steps with a node each."""
    drafter, calibration = Listening(calibrated), Counting()
    lessons = Lessons(drafter, calibration)
    forest = forest_of([DraftTree.of([-1], [0.5], [5])])
    selected = np.array([1])
    packed = pack(forest, selected)
    walks = walk(packed, lambda _, rows: [5] * len(rows))
    request = Request(0, [1], 1, SamplingParams(), 0, frozenset())
    for _ in range(steps):
        lessons.step([request], Draft(forest, selected, levels, 0.0), packed, walks)
    return drafter.lessons, calibration.lessons, drafter.commits


def test_every_step_teaches_at_first_and_a_quarter_later() -> None:
    assert counts(calibrated=False, levels=1, steps=64) == (0, 64, 64)
    assert counts(calibrated=False, levels=1, steps=164) == (0, 64 + 25, 164)


def test_drafters_that_know_acceptance_rates_hear_of_every_step() -> None:
    assert counts(calibrated=True, levels=1, steps=164) == (164, 0, 164)


def test_a_step_without_drafts_teaches_nothing() -> None:
    assert counts(calibrated=False, levels=0, steps=3) == (0, 0, 0)
