"""Selected trees laid out as rows of one pass: segments, depths, ancestor masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smartree.tree.forest import Forest, Ints


@dataclass(frozen=True, slots=True)
class PackedTrees:
    """The rows that a target pass carries for a batch of trees: per request its root, then its nodes.

    Attributes:
        nodes: [N] forest node id of each row.
        starts: [B + 1] first row of each request's segment.
        parents: [N] row of the parent, -1 for roots.
        depths: [N] 0 for roots; a row's position is its request's cached length plus its depth.
        tokens: [N] token ids.
    """

    nodes: Ints
    starts: Ints
    parents: Ints
    depths: Ints
    tokens: Ints

    @property
    def sizes(self) -> Ints:
        """[B] rows of each request, root included."""
        return np.diff(self.starts)

    def above(self) -> Ints:
        """[B, n] with n the largest segment: place of each row's parent within the segment, negative for none."""
        sizes = self.sizes
        request = np.repeat(np.arange(len(sizes)), sizes)
        found = np.full((len(sizes), int(sizes.max(initial=0))), -1)
        # What has no parent has -1 less a start, which is as negative.
        found[request, np.arange(len(self.nodes)) - self.starts[request]] = self.parents - self.starts[request]
        return found

    def ancestor_mask(self) -> NDArray[np.bool_]:
        """[B, n, n] with n the largest segment: entry (b, i, j) says that j is i or an ancestor of i.

        For engines whose attention takes masks; ours asks for parents. Rows and columns past a request's own segment
        are False.
        """
        above = self.above()
        batch, width = above.shape
        mask = np.zeros((batch, width, width), bool)
        request, row = np.nonzero(np.arange(width) < self.sizes[:, None])
        standing = row
        while len(standing):
            mask[request, row, standing] = True
            standing = above[request, standing]
            kept = standing >= 0
            request, row, standing = request[kept], row[kept], standing[kept]
        return mask


def pack(forest: Forest, selected: Ints) -> PackedTrees:
    """Lays the selected nodes out request by request, keeping their order within a request.

    `selected` must be closed under ancestors with parents before children. Best-first order puts the likely path
    first, so that committing it moves few cache rows.
    """
    batch = forest.batch
    if len(selected) == 0:  # most steps where speculation does not pay
        roots = np.arange(batch + 1)
        return PackedTrees(roots[:-1], roots, np.full(batch, -1), np.zeros(batch, np.int64), forest.token[:batch])
    nodes = np.concatenate([np.arange(batch), selected])
    request = forest.request[nodes]
    order = np.argsort(request, kind="stable")
    nodes, request = nodes[order], request[order]
    starts = np.zeros(batch + 1, np.int64)
    np.cumsum(np.bincount(request, minlength=batch), out=starts[1:])
    row_of = np.full(len(forest), -1, np.int64)
    row_of[nodes] = np.arange(len(nodes))
    above = forest.parent[nodes]
    parents = np.where(above >= 0, row_of[above], -1)
    return PackedTrees(nodes, starts, parents, forest.depth[nodes], forest.token[nodes])
