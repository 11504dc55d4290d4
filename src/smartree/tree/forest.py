"""The draft trees of a batch, as flat arrays that grow level by level."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Proposal(Enum):
    """How a drafter chose its tokens; decides which policies keep the output exact (design 4)."""

    POINT_MASS = "point_mass"
    """A deterministic function of draft information (top-k, lookup): any selection keeps the law."""
    SAMPLED = "sampled"
    """Drawn at random: the tree must not be pruned by looking at the tokens drawn."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Children that a drafter proposes for the nodes of a frontier.

    Attributes:
        parents: [C] node ids in the forest.
        tokens: [C] token ids, distinct among the children of one parent.
        probabilities: [C] probability that the child is accepted, given that its parent is; in [0, 1].
        ranks: [C] place among the siblings, 0 for the drafter's first choice.
        handles: [C] the drafter's own name for the node, handed back by the forest; unused if negative.
        features: [C] what the drafter wants remembered of the node, for its own learning.
    """

    parents: Ints
    tokens: Ints
    probabilities: Floats
    ranks: Ints
    handles: Ints
    features: Floats

    @staticmethod
    def empty() -> Candidates:
        """No candidate at all."""
        ints, floats = np.empty(0, np.int64), np.empty(0)
        return Candidates(ints, ints, floats, ints, ints, floats)

    def __len__(self) -> int:
        return len(self.parents)

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Candidates:
        """The candidates at `index`, in that order."""
        return Candidates(
            self.parents[index],
            self.tokens[index],
            self.probabilities[index],
            self.ranks[index],
            self.handles[index],
            self.features[index],
        )


class Forest:
    """Draft trees of B requests in one set of flat arrays.

    Node ids 0 .. B-1 are the roots (the last committed tokens); children follow their parents, so
    `parent[i] < i` for every node below a root. Invariants (tested): a node's request is its parent's,
    its depth one more, its path probability at most its parent's.

    Nodes B .. B + planted - 1 were there before anything was decided, for nothing (`plant`).
    """

    __slots__ = ("_floats", "_ints", "_size", "batch", "planted", "proposal")

    def __init__(self, root_tokens: Ints, proposal: Proposal = Proposal.POINT_MASS, capacity: int = 256) -> None:
        self.batch = len(root_tokens)
        self.proposal = proposal
        self.planted = 0
        self._size = self.batch
        capacity = max(capacity, 2 * self.batch)
        self._ints = np.zeros((6, capacity), np.int64)
        self._floats = np.zeros((3, capacity))
        self._ints[:, : self.batch] = -1
        self.request[:] = np.arange(self.batch)
        self.token[:] = root_tokens
        self.depth[:] = 0
        self.probability[:] = 1.0
        self.path[:] = 1.0

    @property
    def request(self) -> Ints:
        """[M] index of the request each node belongs to."""
        return self._ints[0, : self._size]

    @property
    def parent(self) -> Ints:
        """[M] node id of the parent, -1 for roots."""
        return self._ints[1, : self._size]

    @property
    def token(self) -> Ints:
        """[M] token ids."""
        return self._ints[2, : self._size]

    @property
    def depth(self) -> Ints:
        """[M] distance from the root, 0 for roots."""
        return self._ints[3, : self._size]

    @property
    def rank(self) -> Ints:
        """[M] place among the drafter's siblings, -1 for roots."""
        return self._ints[4, : self._size]

    @property
    def handle(self) -> Ints:
        """[M] the drafter's own name for each node, -1 for roots."""
        return self._ints[5, : self._size]

    @property
    def probability(self) -> Floats:
        """[M] acceptance probability given that the parent is accepted."""
        return self._floats[0, : self._size]

    @property
    def path(self) -> Floats:
        """[M] path probability p_u: that the node and all its ancestors are accepted."""
        return self._floats[1, : self._size]

    @property
    def feature(self) -> Floats:
        """[M] what the drafter wanted remembered of each node."""
        return self._floats[2, : self._size]

    def __len__(self) -> int:
        return self._size

    def append(self, candidates: Candidates) -> Ints:
        """Adds candidates as nodes and returns their ids, in the order given."""
        start, end = self._size, self._size + len(candidates)
        if end > self._ints.shape[1]:
            room = max(end, 2 * self._ints.shape[1]) - self._ints.shape[1]
            self._ints = np.pad(self._ints, ((0, 0), (0, room)))
            self._floats = np.pad(self._floats, ((0, 0), (0, room)))
        self._size = end
        parents, ints, floats = candidates.parents, self._ints[:, start:end], self._floats[:, start:end]
        ints[0] = self._ints[0].take(parents)
        ints[1] = parents
        ints[2] = candidates.tokens
        np.add(self._ints[3].take(parents), 1, out=ints[3])
        ints[4] = candidates.ranks
        ints[5] = candidates.handles
        floats[0] = candidates.probabilities
        np.multiply(self._floats[1].take(parents), candidates.probabilities, out=floats[1])
        floats[2] = candidates.features
        return np.arange(start, end)

    def plant(self, candidates: Candidates) -> Ints:
        """Adds candidates that cost nothing, before any other; returns their ids.

        Whole trees at once: a parent may be an earlier candidate, named by the id that it gets.
        """
        assert len(self) == self.batch + self.planted, "planting comes before drafting"
        self.planted += len(candidates)
        start = len(self)
        added = self.append(candidates)
        if len(added) and int(candidates.parents.max()) >= start:
            self._hang_up(start)
        return added

    def _hang_up(self, start: int) -> None:
        """Works out request, depth and path of the nodes from `start` on, some of which are each other's children."""
        request, depth, path = self.request.tolist(), self.depth.tolist(), self.path.tolist()
        rows = zip(self.parent[start:].tolist(), self.probability[start:].tolist(), strict=True)
        for node, (parent, probability) in enumerate(rows, start):
            request[node], depth[node], path[node] = request[parent], depth[parent] + 1, path[parent] * probability
        self.request[start:], self.depth[start:], self.path[start:] = request[start:], depth[start:], path[start:]

    def revise(self, nodes: Ints, probabilities: Floats) -> None:
        """Changes what is thought of planted nodes, and with it the paths of all that is planted below them.

        Args:
            nodes: [n] planted ones.
            probabilities: [n] that each is accepted, given that its parent is. Nothing has been drafted below them.
        """
        self.probability[nodes] = probabilities
        path, planted = self.path[: self.batch + self.planted].tolist(), slice(self.batch, self.batch + self.planted)
        rows = zip(self.parent[planted].tolist(), self.probability[planted].tolist(), strict=True)
        for node, (parent, probability) in enumerate(rows, self.batch):
            path[node] = path[parent] * probability
        self.path[planted] = path[self.batch :]

    def planted_below(self, parents: Ints) -> Ints:
        """[n] planted children of these nodes, in rising order."""
        chosen = np.zeros(self._size, bool)
        chosen[parents] = True
        planted = slice(self.batch, self.batch + self.planted)
        return np.asarray(self.batch + chosen[self.parent[planted]].nonzero()[0])

    def left(self, nodes: Ints) -> Floats:
        """[n] path probability of `nodes` that none of their planted children takes."""
        if not self.planted:
            return self.path[nodes]
        planted = slice(self.batch, self.batch + self.planted)
        taken = np.bincount(self.parent[planted], weights=self.path[planted], minlength=len(self))
        return np.maximum(self.path[nodes] - taken[nodes], 0.0)

    def best_first(self) -> Ints:
        """[M - B] ids of all nodes below the roots by falling path probability, parents before children.

        A child's path probability is at most its parent's and its id is larger, so a stable sort puts the
        parent first even on ties: every prefix is closed under ancestors (design 3.2, statement 1).
        """
        return self.batch + np.argsort(-self.path[self.batch :], kind="stable")

    def is_closed(self, selected: Ints) -> bool:
        """True if every selected node's parent is selected or a root."""
        chosen = np.zeros(self._size, bool)
        chosen[: self.batch] = True
        chosen[selected] = True
        return bool(np.all(chosen[self.parent[selected]]))
