"""What was decided in a step and why, for `smartree explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smartree.engine.drafting import Draft
from smartree.engine.request import Request
from smartree.policies.base import Policy
from smartree.tree.packed import PackedTrees
from smartree.verify.walk import Walk


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """One drafted node.

    Attributes:
        token: token id.
        parent: index of the parent among the request's nodes, -1 for the root.
        probability: acceptance probability given the parent's.
        path: path probability.
        verified: whether it was selected.
        accepted: whether the target agreed; only verified nodes can be.
    """

    token: int
    parent: int
    probability: float
    path: float
    verified: bool
    accepted: bool


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step of one request.

    Attributes:
        request_id: whose.
        root: last committed token.
        nodes: drafted nodes, parents first.
        tokens: tokens the step committed.
        price: tokens per second that time was worth; None if the policy has no price.
        predicted_seconds: what the cost model said of the pass.
    """

    request_id: int
    root: int
    nodes: tuple[NodeTrace, ...]
    tokens: tuple[int, ...]
    price: float | None
    predicted_seconds: float


def trace_step(
    requests: Sequence[Request], draft: Draft, packed: PackedTrees, walks: Sequence[Walk], policy: Policy
) -> list[StepTrace]:
    """The traces of a step, one per decoding request."""
    forest = draft.forest
    verified = np.zeros(len(forest), bool)
    verified[draft.selected] = True
    accepted = np.zeros(len(forest), bool)
    accepted[packed.nodes[[row for walked in walks for row in walked.rows]]] = True
    traces = []
    for index, (request, walked) in enumerate(zip(requests, walks, strict=True)):
        ids = [int(node) for node in np.flatnonzero(forest.request == index) if node >= forest.batch]
        place = {node: position for position, node in enumerate(ids)}
        nodes = tuple(
            NodeTrace(
                int(forest.token[node]),
                place.get(int(forest.parent[node]), -1),
                float(forest.probability[node]),
                float(forest.path[node]),
                bool(verified[node]),
                bool(accepted[node]),
            )
            for node in ids
        )
        price = getattr(policy, "price", None)
        tokens = tuple(walked.tokens)
        traces.append(StepTrace(request.id, request.tokens[-1], nodes, tokens, price, policy.predicted_seconds))
    return traces
