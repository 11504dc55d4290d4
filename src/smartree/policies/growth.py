"""How much the next level brings: learned per depth and sibling rank; and how wide it should be."""

from __future__ import annotations

import numpy as np

from smartree.tree.forest import Floats, Forest, Ints

_RANKS = 4
_PRIOR = np.array([0.6, 0.1, 0.05, 0.02])
_PRIOR_STEPS = 3  # steps that the prior is worth


class Growth:
    """Running mean of the acceptance probability of a node's children by rank, for parents at each depth.

    At first the plain mean of what was seen, the prior counting as three steps, so that a drafter that is much worse
    or better than the prior is known after some ten steps; from `window` steps on, a mean that forgets.
    """

    def __init__(self, window: float = 50.0) -> None:
        """Args:
        window: steps over which the mean forgets.
        """
        self._rate = 1 / window
        self._means = np.empty((0, _RANKS))
        self._steps = np.empty(0)

    def at(self, depth: int) -> Floats:
        """[ranks] acceptance probability of the children of a node at `depth`, given that the node is accepted."""
        known = len(self._means)
        return np.asarray(self._means[min(depth, known - 1)]) if known else _PRIOR

    def gains(self, paths: Floats, depth: int) -> Floats:
        """Expected path probabilities of the children of nodes at `depth` with these path probabilities."""
        return np.multiply.outer(paths, self.at(depth)).ravel()

    def observe(self, forest: Forest, expanded: Ints) -> None:
        """Learns from the nodes that were expanded, those that got no child included; planted children do not count."""
        if len(expanded) == 0:
            return
        depths = forest.depth[expanded]
        levels = int(depths.max()) + 1
        self._reach(levels)
        above = np.bincount(depths, weights=forest.left(expanded), minlength=levels)
        below = slice(forest.batch + forest.planted, None)
        ranks, cells = forest.rank[below], (forest.depth[below] - 1) * _RANKS + forest.rank[below]
        paths = np.where((ranks < _RANKS) & (ranks >= 0), forest.path[below], 0.0)
        mass = np.bincount(cells, weights=paths, minlength=levels * _RANKS)[: levels * _RANKS].reshape(levels, _RANKS)
        known = np.flatnonzero(above > 0)
        rates = np.maximum(self._rate, 1 / (self._steps[known] + _PRIOR_STEPS + 1))
        self._means[known] += rates[:, None] * (mass[known] / above[known, None] - self._means[known])
        self._steps[known] = np.minimum(self._steps[known] + 1, 1 / self._rate)
        self._steps[levels:] *= 1 - self._rate  # not reached: old news, which the next look may overrule

    def _reach(self, levels: int) -> None:
        """Makes room for parents at depths below `levels`."""
        missing = levels - len(self._means)
        if missing > 0:
            self._means = np.concatenate([self._means, np.tile(self.at(levels - 1), (missing, 1))])
            self._steps = np.concatenate([self._steps, np.zeros(missing)])


def best_width(paths: Floats, rates: Floats, row_price: float, level_prices: Floats) -> int:
    """How many of a level's nodes to expand, the likeliest first.

    A node is worth what its children are expected to bring above the price of verifying them; the level costs what its
    rows take to draft. The width with the largest difference wins, the smallest one on ties, 0 if none has any.

    Args:
        paths: [W] falling path probabilities.
        rates: [ranks] acceptance probabilities of their children.
        row_price: tokens that one more verified row is worth.
        level_prices: [W] tokens that drafting 1, 2, ... W of them is worth.
    """
    if len(paths) == 0:
        return 0
    brought = np.maximum(np.multiply.outer(rates, paths) - row_price, 0.0).sum(axis=0)
    value = np.cumsum(brought) - level_prices
    width = int(np.argmax(value))
    return width + 1 if value[width] > 0 else 0
