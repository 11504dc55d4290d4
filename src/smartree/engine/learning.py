"""What a step teaches: which drafted nodes the target would have accepted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smartree.engine.request import Request
from smartree.tree.forest import Forest, Ints
from smartree.tree.packed import PackedTrees
from smartree.verify.walk import Walk


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
