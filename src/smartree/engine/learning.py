"""What a step teaches: which drafted nodes the target would have accepted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smartree.drafters.base import Drafter
from smartree.engine.drafting import Draft
from smartree.engine.request import Request
from smartree.policies.calibration import Calibration
from smartree.tree.forest import Forest, Ints
from smartree.tree.packed import PackedTrees
from smartree.verify.walk import Walk

_AT_FIRST = 64  # steps, each of which teaches; later ones change what is known only slowly
_LATER = 4  # one step in so many, whatever came of it: a fair sample


class Lessons:
    """Teaches the calibration or the drafter, and tells the drafter which nodes stay."""

    def __init__(self, drafter: Drafter | None, calibration: Calibration) -> None:
        """Args:
        drafter: what drafts; None if nothing does.
        calibration: of a drafter whose probabilities are no acceptance rates.
        """
        self._drafter, self._calibration = drafter, calibration
        self._steps = 0

    def step(self, requests: Sequence[Request], draft: Draft, packed: PackedTrees, walks: Sequence[Walk]) -> None:
        """Learns from a verified step, if its turn has come.

        Drafters that know acceptance rates themselves, or plant nodes, follow a text step by step and hear of each.
        """
        drafter, forest = self._drafter, draft.forest
        if drafter is None or (draft.levels == 0 and not forest.planted):
            return
        self._steps += 1
        turn = self._steps <= _AT_FIRST or self._steps % _LATER == 0
        if turn or drafter.calibrated or forest.planted:
            self._teach(drafter, requests, forest, *observed_nodes(forest, packed, walks), turn)
        if draft.levels:
            drafter.commit(forest, packed.nodes[[row for walked in walks for row in walked.rows]])

    def _teach(
        self,
        drafter: Drafter,
        requests: Sequence[Request],
        forest: Forest,
        nodes: Ints,
        accepted: NDArray[np.bool_],
        turn: bool,
    ) -> None:
        nodes, accepted = telling_nodes(requests, forest, nodes, accepted)
        own = nodes < forest.batch + forest.planted
        if drafter.calibrated or own.any():
            mine = slice(None) if drafter.calibrated else own
            drafter.learn(forest, nodes[mine], accepted[mine])
        if turn and not drafter.calibrated and not own.all():  # beside a lookup too its sample is to be fair
            sampled = np.array([request.temperature > 0 for request in requests])
            self._calibration.learn(forest, nodes[~own], accepted[~own], sampled)


def observed_nodes(forest: Forest, packed: PackedTrees, walks: Sequence[Walk]) -> tuple[Ints, NDArray[np.bool_]]:
    """Every drafted node whose ancestors were all accepted, and whether its token is the target's.

    That includes nodes that were drafted but not verified: below the last accepted node the target's token is the
    bonus token. Nodes further down are unobserved, which is not the same as rejected.
    """
    target = np.full(len(forest), -1, np.int64)
    for start, walked in zip(packed.starts[:-1].tolist(), walks, strict=True):
        target[packed.nodes[[start, *walked.rows]]] = walked.tokens
    nodes = np.arange(forest.batch, len(forest))
    expected = target[forest.parent[nodes]]
    nodes, expected = nodes[expected >= 0], expected[expected >= 0]
    return nodes, forest.token[nodes] == expected


def telling_nodes(
    requests: Sequence[Request], forest: Forest, nodes: Ints, accepted: NDArray[np.bool_]
) -> tuple[Ints, NDArray[np.bool_]]:
    """The observed nodes without those of requests whose logits are changed: they say nothing about the drafter."""
    if all(request.shaping is None for request in requests):
        return nodes, accepted
    telling = np.array([request.shaping is None for request in requests])[forest.request[nodes]]
    return nodes[telling], accepted[telling]
