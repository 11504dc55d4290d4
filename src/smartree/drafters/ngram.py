"""Prompt and output lookup: what followed the same words before may follow them again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smartree.drafters.acceptance import AcceptanceTable, Trust
from smartree.drafters.base import BaseDrafter, DraftRequest
from smartree.drafters.suffix_index import Match, SuffixIndex
from smartree.tree.forest import Candidates, Forest, Ints

_HIGHEST_RATE = 0.99  # nothing looked up is certain


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

    def found(self) -> Ints:
        """The roots for which something was found."""
        return np.array([root for root in range(len(self._batch)) if self._children[root]], np.int64)

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
        parents: list[int] = []
        tokens: list[int] = []
        handles: list[int] = []
        ranks: list[int] = []
        cells: list[int] = []
        depths = (forest.depth[frontier] + 1).tolist()
        places = np.where(frontier < forest.batch, frontier, forest.handle[frontier]).tolist()
        rates: list[float] = []
        owners = forest.request[frontier].tolist()
        for node, place, depth, owner in zip(frontier.tolist(), places, depths, owners, strict=True):
            trust = self._batch[owner]
            for rank, (token, child) in enumerate(self._children[place].items()):
                parents.append(node)
                tokens.append(token)
                handles.append(child)
                ranks.append(rank)
                cell = self.acceptance.cell(self._lengths[child], depth, rank)
                cells.append(cell)
                rates.append(min(_HIGHEST_RATE, self.acceptance.rate(cell) * trust.factor(cell)))
        return Candidates(
            np.array(parents, np.int64),
            np.array(tokens, np.int64),
            np.array(rates, np.float64),
            np.array(ranks, np.int64),
            np.array(handles, np.int64),
            np.array(cells, np.float64),
        )

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
