"""Tree rows that a drafter has cached in a step, level by level: which node is where, and what each row sees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smartree.models.packed_pass import RowGroup
from smartree.tree.forest import Forest, Ints


class TreeRows:
    """Cached tree rows of a step: which node is where, and what each row sees."""

    def __init__(self, batch: int) -> None:
        self.counts = np.zeros(batch, np.int64)
        self.row_of: dict[int, int] = {}
        self._sees = np.zeros((batch, 0, 0), bool)
        self._depths = np.zeros((batch, 0), np.int64)

    def group(self, forest: Forest, nodes: Ints, base: Ints) -> RowGroup:
        """The rows of one level, ordered by request, behind the tree rows already cached.

        Args:
            forest: where the nodes are.
            nodes: of the level, ordered by request.
            base: [b] committed rows of each request.
        """
        cached = base + self.counts
        mask, column_depths, sizes = self.add(forest, nodes)
        slots = list(range(len(base)))
        return RowGroup(slots, base, cached, sizes, forest.depth[nodes] - 1, mask, column_depths)

    def add(self, forest: Forest, nodes: Ints) -> tuple[NDArray[np.bool_], Ints, Ints]:
        """Adds nodes, ordered by request.

        Returns:
            [b, n, m] visibility of all tree rows for the new ones, [b, m] depths of the rows, [b] new rows.
        """
        batch = len(self.counts)
        requests = forest.request[nodes]
        sizes = np.bincount(requests, minlength=batch)
        total = int((self.counts + sizes).max())
        room = total - self._sees.shape[1]
        if room > 0:
            self._sees = np.pad(self._sees, ((0, 0), (0, room), (0, room)))
            self._depths = np.pad(self._depths, ((0, 0), (0, room)))
        mask = np.zeros((batch, int(sizes.max()), total), bool)
        starts = np.cumsum(sizes) - sizes
        local = np.arange(len(nodes)) - starts[requests]
        rows = self.counts[requests] + local
        above = np.array([self.row_of.get(parent, -1) for parent in forest.parent[nodes].tolist()])
        self._sees[requests, rows] = np.where(above[:, None] >= 0, self._sees[requests, above], False)
        self._sees[requests, rows, rows] = True
        self._depths[requests, rows] = forest.depth[nodes] - 1
        mask[requests, local] = self._sees[requests, rows, :total]
        self.row_of.update(zip(nodes.tolist(), rows.tolist(), strict=True))
        self.counts = self.counts + sizes
        return mask, self._depths[:, :total], sizes
