"""Prompt and output lookup: what followed the same words before may follow them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smartree.drafters.acceptance import AcceptanceTable, Trust
from smartree.drafters.base import BaseDrafter, DraftRequest
from smartree.drafters.suffix_index import Match, SuffixIndex
from smartree.tree.forest import Candidates, Forest, Ints

_HIGHEST_RATE = 0.99  # nothing looked up is certain


@dataclass(frozen=True, slots=True)
class _Found:
    """Candidates that are gathered one by one."""

    parents: list[int]
    tokens: list[int]
    rates: list[float]
    ranks: list[int]
    handles: list[int]
    cells: list[int]

    def add(self, parent: int, token: int, rate: float, rank: int, handle: int, cell: int) -> None:
        """One more."""
        self.parents.append(parent)
        self.tokens.append(token)
        self.rates.append(rate)
        self.ranks.append(rank)
        self.handles.append(handle)
        self.cells.append(cell)

    def candidates(self) -> Candidates:
        """All of them; the cell is what is remembered of a node."""
        return Candidates(
            np.array(self.parents, np.int64),
            np.array(self.tokens, np.int64),
            np.array(self.rates, np.float64),
            np.array(self.ranks, np.int64),
            np.array(self.handles, np.int64),
            np.array(self.cells, np.float64),
        )


class NgramDrafter(BaseDrafter):
    """Looks the latest tokens up in the request's own text and merges the continuations of several matches into a tree.

    A node's probability is the acceptance rate learned for its match length, depth and rank. Nodes that were drafted
    but not verified are learned from too, as long as their parent was accepted: the target's token there is known.
    """

    name = "ngram"
    calibrated = True

    def __init__(self, max_depth: int = 16, max_matches: int = 4, shortest_match: int = 1) -> None:
        """Args:
        max_depth: longest continuation.
        max_matches: most places whose continuations are merged.
        shortest_match: tokens that must agree, 1 to 3.
        """
        self.max_depth, self.max_matches, self.shortest_match = max_depth, max_matches, shortest_match
        self.acceptance = AcceptanceTable()
        self._texts: dict[int, SuffixIndex] = {}
        self._trust: dict[int, Trust] = {}
        self._batch: list[Trust] = []
        # Trie nodes of the step: children by token, and length of the longest match through the node.
        self._children: list[dict[int, int]] = []
        self._lengths: list[int] = []

    @property
    def fingerprint(self) -> str:
        """Lookup costs the same whatever its bounds."""
        return "lookup"

    def fresh(self) -> NgramDrafter:
        """A lookup with the same bounds that has learned nothing."""
        return NgramDrafter(self.max_depth, self.max_matches, self.shortest_match)

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        """Reads the newly committed tokens and looks the end of each text up."""
        self._children = [{} for _ in requests]
        self._lengths = [0] * len(requests)
        self._batch = [self._trust.setdefault(request.id, Trust()) for request in requests]
        for root, request in enumerate(requests):
            text = self._texts.get(request.id)
            if text is None:
                text = self._texts[request.id] = SuffixIndex(self.shortest_match)
            text.extend(request.tokens[len(text) :])
            for match in text.matches(self.max_matches):
                self._insert(root, text.tokens, match)

    def trees(self, limits: Ints, least: float, least_deeper: float) -> Candidates:
        """All that was found and is likely enough, at once: what `expand` would give level by level.

        Args:
            limits: [B] depth of the deepest node of each request.
            least: path probability of the least likely root's child.
            least_deeper: of other nodes.

        Returns:
            Parents come before their children, which name them by their place behind the roots.
        """
        batch = len(self._batch)
        found = _Found([], [], [], [], [], [])
        for root, limit in enumerate(limits.tolist()):
            level, depth, wanted = [(root, root, 1.0)] if self._children[root] else [], 1, least
            while level and depth <= limit:
                deeper = []
                for parent, place, path in level:
                    for rank, (token, child) in enumerate(self._children[place].items()):
                        cell = self.acceptance.cell(self._lengths[child], depth, rank)
                        rate = self._rate(cell, self._batch[root])
                        if path * rate >= wanted:
                            deeper.append((batch + len(found.parents), child, path * rate))
                            found.add(parent, token, rate, rank, child, cell)
                level, depth, wanted = deeper, depth + 1, least_deeper
        return found.candidates()

    def _rate(self, cell: int, trust: Trust) -> float:
        """Acceptance of a request's node in this cell."""
        return min(_HIGHEST_RATE, self.acceptance.rate(cell) * trust.factor(cell))

    def _insert(self, root: int, tokens: Sequence[int], match: Match) -> None:
        """Adds one continuation to the trie; matches come longest first, so a node keeps its best length."""
        node = root
        for token in tokens[match.position : match.position + self.max_depth]:
            child = self._children[node].get(token)
            if child is None:
                child = len(self._children)
                self._children[node][token] = child
                self._children.append({})
                self._lengths.append(match.length)
            node = child

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """The trie's children of the frontier; dict order is best match first."""
        found = _Found([], [], [], [], [], [])
        depths = (forest.depth[frontier] + 1).tolist()
        places = np.where(frontier < forest.batch, frontier, forest.handle[frontier]).tolist()
        owners = forest.request[frontier].tolist()
        for node, place, depth, owner in zip(frontier.tolist(), places, depths, owners, strict=True):
            trust = self._batch[owner]
            for rank, (token, child) in enumerate(self._children[place].items()):
                cell = self.acceptance.cell(self._lengths[child], depth, rank)
                found.add(node, token, self._rate(cell, trust), rank, child, cell)
        return found.candidates()

    def learn(self, forest: Forest, nodes: Ints, accepted: NDArray[np.bool_]) -> None:
        """Counts outcomes by cell, for the engine and for each request."""
        cells = forest.feature[nodes].astype(np.int64)
        owners = forest.request[nodes].tolist()
        for owner, cell, hit in zip(owners, cells.tolist(), accepted.tolist(), strict=True):
            self._batch[owner].learn(cell, self.acceptance.rate(cell), hit)
        self.acceptance.learn(cells, accepted)

    def release(self, request_id: int) -> None:
        """Forgets a request's text."""
        self._texts.pop(request_id, None)
        self._trust.pop(request_id, None)
