"""How much the next level brings: learned per depth and sibling rank."""

from __future__ import annotations

import numpy as np

from smartree.tree.forest import Floats, Forest

_RANKS = 4
_PRIOR = np.array([0.6, 0.1, 0.05, 0.02])


class Growth:
    """Running mean of the acceptance probability of a node's children by rank, for parents at each depth."""

    def __init__(self, window: float = 50.0) -> None:
        """Args:
        window: steps over which the mean forgets.
        """
        self._rate = 1 / window
        self._means: dict[int, Floats] = {}

    def gains(self, paths: Floats, depth: int) -> Floats:
        """Expected path probabilities of the children of nodes at `depth` with these path probabilities, best first."""
        expected = np.outer(paths, self._means.get(depth, _PRIOR)).ravel()
        return np.sort(expected)[::-1]

    def observe(self, forest: Forest) -> None:
        """Learns from the levels that were drafted."""
        deepest = int(forest.depth.max(initial=0))
        if deepest == 0:
            return
        nodes = np.flatnonzero((forest.depth > 0) & (forest.rank < _RANKS))
        if len(nodes) == 0:
            return
        parents = forest.parent[nodes]
        cell = forest.depth[parents] * _RANKS + forest.rank[nodes]
        mass = np.bincount(cell, weights=forest.path[nodes], minlength=deepest * _RANKS).reshape(-1, _RANKS)
        expanded = np.unique(parents)
        above = np.bincount(forest.depth[expanded], weights=forest.path[expanded], minlength=deepest)
        for depth in np.flatnonzero(above > 0):
            old = self._means.get(int(depth), _PRIOR)
            self._means[int(depth)] = old + self._rate * (mass[depth] / above[depth] - old)
