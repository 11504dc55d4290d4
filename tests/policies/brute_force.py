"""The best forest by trying every subset of nodes that is closed under ancestors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from smartree.tree import DraftTree
from smartree.tree.forest import Floats

MOST_NODES = {1: 12, 2: 6, 3: 4}  # per request, so that a forest never has more than 2^12 subsets


@dataclass(frozen=True)
class Pool:
    """Draft trees of a batch, and every closed selection of their nodes."""

    trees: tuple[DraftTree, ...]

    @property
    def batch(self) -> int:
        return len(self.trees)

    @property
    def paths(self) -> Floats:
        return np.concatenate([np.empty(0), *(tree.paths for tree in self.trees)])

    @property
    def parents(self) -> list[int]:
        """Index of each node's parent among the nodes of all trees, -1 below a root."""
        parents: list[int] = []
        for tree in self.trees:
            offset = len(parents)
            parents += [parent + offset if parent >= 0 else -1 for parent in tree.parents.tolist()]
        return parents

    def closed_subsets(self) -> NDArray[np.bool_]:
        """[S, n] every subset of the nodes, as a bitmask, that holds the parent of each of its nodes."""
        parents = self.parents
        chosen = (np.arange(1 << len(parents))[:, None] >> np.arange(len(parents)) & 1).astype(bool)
        closed = np.ones(len(chosen), bool)
        for node, parent in enumerate(parents):
            if parent >= 0:
                closed &= ~chosen[:, node] | chosen[:, parent]
        return chosen[closed]

    def outcomes(self) -> tuple[NDArray[np.int64], Floats]:
        """Of every closed subset: its size, and the tokens it is expected to commit."""
        chosen = self.closed_subsets()
        return chosen.sum(axis=1), self.batch + chosen @ self.paths

    def widths(self) -> NDArray[np.int64]:
        """The most nodes of one request in every closed subset, in the order of `outcomes`."""
        chosen, ends = self.closed_subsets(), np.cumsum([len(tree.paths) for tree in self.trees])
        starts = [0, *ends[:-1].tolist()]
        return np.max([chosen[:, a:b].sum(axis=1) for a, b in zip(starts, ends.tolist(), strict=True)], axis=0)


def pools(
    probabilities: st.SearchStrategy[float], batches: Sequence[int] = (1, 2, 3), most_nodes: int = 12
) -> st.SearchStrategy[Pool]:
    """Random trees of all shapes, each node below the root or below any earlier node, `most_nodes` of a request."""

    @st.composite
    def draw_pool(draw: st.DrawFn) -> Pool:
        batch = draw(st.sampled_from(batches))
        trees = []
        for _ in range(batch):
            size = draw(st.integers(0, min(MOST_NODES[batch], most_nodes)))
            parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
            trees.append(DraftTree.of(parents, [draw(probabilities) for _ in range(size)]))
        return Pool(tuple(trees))

    return draw_pool()


def all_seconds(sizes: int, kind: str, rises: Sequence[float], floor: float) -> Floats:
    """[sizes] seconds of steps with 0, 1, ... nodes: convex, a staircase, or whatever the rises say."""
    steps = np.resize(np.asarray(rises, np.float64), sizes)
    if kind == "convex":
        steps = np.sort(steps)
    if kind == "staircase":
        steps = np.where(np.arange(sizes) % 3 == 2, 3 * steps, 0.0)
    steps[0] = floor
    return np.cumsum(steps)


def costs(sizes: int, seconds: st.SearchStrategy[float]) -> st.SearchStrategy[Floats]:
    """Costs of 0, 1, ... sizes - 1 nodes: positive, and never falling."""
    return st.builds(
        all_seconds,
        st.just(sizes),
        st.sampled_from(["convex", "staircase", "any"]),
        st.lists(seconds, min_size=1, max_size=sizes),
        seconds.map(lambda floor: max(floor, 0.125)),
    )
