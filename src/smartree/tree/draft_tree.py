"""One request's draft tree, read only: for showing, storing and embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smartree.errors import InputError
from smartree.tree.forest import Candidates, Floats, Forest, Ints, Proposal


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Nodes below the root of one request, parents before children.

    Attributes:
        tokens: [n] token ids.
        parents: [n] index of the parent, -1 for children of the root.
        probabilities: [n] acceptance probability given the parent's, in (0, 1].
        proposal: how the tokens were chosen.

    Raises:
        InputError: the arrays differ in length, a parent is not before its child, or a probability is not
            in (0, 1].
    """

    tokens: Ints
    parents: Ints
    probabilities: Floats
    proposal: Proposal = Proposal.POINT_MASS

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if len(self.parents) != count or len(self.probabilities) != count:
            raise InputError("A draft tree needs one token, one parent and one probability per node.")
        late = np.flatnonzero((self.parents >= np.arange(count)) | (self.parents < -1))
        if len(late):
            node = int(late[0])
            raise InputError(f"Node {node} has parent {self.parents[node]}: a parent must come before its child.")
        if count and not np.all((self.probabilities > 0) & (self.probabilities <= 1)):
            node = int(np.flatnonzero(~((self.probabilities > 0) & (self.probabilities <= 1)))[0])
            raise InputError(f"Node {node} has probability {self.probabilities[node]}; it must be in (0, 1].")

    @staticmethod
    def of(parents: Sequence[int], probabilities: Sequence[float], tokens: Sequence[int] | None = None) -> DraftTree:
        """A tree from plain lists; without tokens every node gets its own index as token."""
        ids = range(len(parents)) if tokens is None else tokens
        return DraftTree(
            np.asarray(list(ids), np.int64),
            np.asarray(parents, np.int64),
            np.asarray(probabilities, np.float64),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> Ints:
        """[n] distance from the root, 1 for its children."""
        depths = np.ones(len(self), np.int64)
        for node in range(len(self)):
            if self.parents[node] >= 0:
                depths[node] = depths[self.parents[node]] + 1
        return depths

    @property
    def paths(self) -> Floats:
        """[n] path probabilities."""
        paths = self.probabilities.copy()
        for node in range(len(self)):
            if self.parents[node] >= 0:
                paths[node] *= paths[self.parents[node]]
        return paths


def forest_of(trees: Sequence[DraftTree]) -> Forest:
    """Packs whole trees into a forest, level by level, as a drafter would have grown it.

    Node `i` of tree `r` gets the forest id that `forest.handle == offset[r] + i` names, offsets being the
    cumulative tree sizes.
    """
    forest = Forest(np.zeros(len(trees), np.int64))
    offsets = np.concatenate([[0], np.cumsum([len(tree) for tree in trees])]).astype(np.int64)
    ids = np.full(int(offsets[-1]), -1, np.int64)
    depths = [tree.depths for tree in trees]
    for depth in range(1, max((int(d.max()) for d in depths if len(d)), default=0) + 1):
        for request, tree in enumerate(trees):
            nodes = np.flatnonzero(depths[request] == depth)
            parents = tree.parents[nodes]
            above = np.where(parents >= 0, ids[offsets[request] + np.maximum(parents, 0)], request)
            ids[offsets[request] + nodes] = forest.append(
                Candidates(
                    above,
                    tree.tokens[nodes],
                    tree.probabilities[nodes],
                    np.zeros(len(nodes), np.int64),
                    offsets[request] + nodes,
                    np.zeros(len(nodes)),
                )
            )
    return forest
