"""Tree rows that a drafter has cached in a step, level by level: which node is where, and what each row sees."""

from __future__ import annotations

import numpy as np

from smartree.models.packed_pass import RowGroup
from smartree.tree.forest import Forest, Ints

_FIRST_ROWS, _FIRST_NODES = 32, 256


class TreeRows:
    """Cached tree rows of a step: which node is where, and what each row sees.

    Attributes:
        counts: [b] tree rows of each request.
    """

    def __init__(self, batch: int) -> None:
        self.counts = np.zeros(batch, np.int64)
        self._above = np.full((batch, _FIRST_ROWS), -1)
        self._row_of = np.full(_FIRST_NODES, -1)

    def row_of(self, nodes: Ints) -> Ints:
        """[n] place behind the committed rows of each of these nodes, -1 where it was not fed."""
        known = np.minimum(nodes, len(self._row_of) - 1)
        return np.where(nodes < len(self._row_of), self._row_of[known], -1)

    def group(self, forest: Forest, nodes: Ints, base: Ints) -> RowGroup:
        """The rows of one level, ordered by request, behind the tree rows already cached.

        Args:
            forest: where the nodes are.
            nodes: of the level, ordered by request.
            base: [b] committed rows of each request.
        """
        requests, cached = forest.request[nodes], base + self.counts
        sizes = np.bincount(requests, minlength=len(base))
        places = np.arange(len(nodes)) + (self.counts - np.cumsum(sizes) + sizes)[requests]
        self.counts = self.counts + sizes
        columns = int(self.counts.max())
        self._reach(columns, len(forest))
        self._above[requests, places] = self._row_of[forest.parent[nodes]]
        self._row_of[nodes] = places
        above = self._above[:, :columns]
        return RowGroup(range(len(base)), base, cached, sizes, forest.depth[nodes] - 1, above=above)

    def _reach(self, columns: int, nodes: int) -> None:
        """Makes room for so many rows of a request and nodes of the forest."""
        more = columns - self._above.shape[1]
        if more > 0:
            self._above = np.pad(self._above, ((0, 0), (0, 2 * more)), constant_values=-1)
        if nodes > len(self._row_of):
            self._row_of = np.pad(self._row_of, (0, 2 * nodes - len(self._row_of)), constant_values=-1)
