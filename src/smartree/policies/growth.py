"""How much the next level brings: learned per depth and sibling rank."""

from __future__ import annotations

import numpy as np

from smartree.tree.forest import Floats, Forest, Ints

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
        """Expected path probabilities of the children of nodes at `depth` with these path probabilities."""
        return np.outer(paths, self._means.get(depth, _PRIOR)).ravel()

    def observe(self, forest: Forest, expanded: Ints) -> None:
        """Learns from the nodes that were expanded, those that got no child included."""
        if len(expanded) == 0:
            return
        levels = int(forest.depth[expanded].max()) + 1
        nodes = np.flatnonzero((forest.depth > 0) & (forest.rank < _RANKS))
        cell = (forest.depth[nodes] - 1) * _RANKS + forest.rank[nodes]
        mass = np.bincount(cell, weights=forest.path[nodes], minlength=levels * _RANKS).reshape(-1, _RANKS)
        above = np.bincount(forest.depth[expanded], weights=forest.path[expanded], minlength=levels)
        for depth in np.flatnonzero(above > 0):
            old = self._means.get(int(depth), _PRIOR)
            self._means[int(depth)] = old + self._rate * (mass[depth] / above[depth] - old)
