"""What a simulation drafts from: candidates, and what the target would have said of them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from smartree.tree.forest import Candidates, Floats, Forest, Ints

Flags = NDArray[np.bool_]


class Pools(Protocol):
    """A drafter and a target in one, for `batch` requests. The same for every policy: what a step offers depends on the
    step and the nodes asked for only, so policies are compared on common random numbers.

    Attributes:
        name: of the preset or file.
        batch: requests.
        calibrated: True if the probabilities are acceptance rates already; else the loop calibrates as the engine does.
    """

    name: str
    batch: int
    calibrated: bool

    def begin(self, step: int) -> None:
        """Moves to a step."""
        ...

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """Children of the frontier's nodes, grouped by parent in frontier order; the features are their raw
        probabilities.
        """
        ...

    def worth(self, forest: Forest) -> Floats:
        """[M] probability that a node and all its ancestors are accepted, as well as it can be known: 1 for roots."""
        ...

    def accepted(self, forest: Forest) -> Flags:
        """[M] whether a node and all its ancestors are accepted; True for roots."""
        ...


def along_paths(forest: Forest, conditional: Floats) -> Floats:
    """[M] product of a number over a node and its ancestors up to the root, whose own number is 1."""
    product = np.ones(len(forest))
    for depth in range(1, int(forest.depth.max(initial=0)) + 1):
        nodes = np.flatnonzero(forest.depth == depth)
        product[nodes] = product[forest.parent[nodes]] * conditional[nodes]
    return product
