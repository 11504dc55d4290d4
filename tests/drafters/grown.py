"""Growing a whole tree with a drafter, without a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smartree.drafters.base import Drafter
from smartree.tree.forest import Forest


@dataclass
class Text:
    """A request as drafters see it."""

    id: int
    tokens: list[int]
    temperature: float = 0.0


def grow_all(drafter: Drafter, requests: Sequence[Text], levels: int = 3, width: int | None = None) -> Forest:
    """Expands everything, or the `width` most likely nodes of each request, for some levels."""
    forest = Forest(np.array([request.tokens[-1] for request in requests]), drafter.proposal)
    drafter.begin(requests, forest)
    frontier = np.arange(len(requests))
    for _ in range(levels):
        candidates = drafter.expand(forest, frontier)
        if len(candidates) == 0:
            break
        frontier = forest.append(candidates)
        if width is not None:
            best = frontier[np.argsort(-forest.path[frontier], kind="stable")]
            kept = [node for request in range(len(requests)) for node in best[forest.request[best] == request][:width]]
            frontier = np.array(sorted(kept))
    return forest


def branches(forest: Forest, request: int = 0) -> dict[tuple[int, ...], float]:
    """Every node of a request as its tokens below the root, with its conditional probability."""
    found = {}
    for node in range(forest.batch, len(forest)):
        if forest.request[node] != request:
            continue
        path, above = [], node
        while above >= forest.batch:
            path.append(int(forest.token[above]))
            above = int(forest.parent[above])
        found[tuple(reversed(path))] = float(forest.probability[node])
    return found
