"""How much the next level brings: learned per depth and sibling rank; and how wide it should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smartree.tree.forest import Floats, Forest, Ints

_RANKS = 4
_PRIOR = np.array([0.6, 0.1, 0.05, 0.02])
_PRIOR_STEPS = 3  # steps that the prior is worth
_STEPS_BEFORE = 10.0  # steps at most that another engine's means are worth: its texts were others


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
        # Lists: a few single numbers are what every step changes.
        self._means: list[list[float]] = []
        self._steps: list[float] = []
        self._rates = np.empty((0, _RANKS))

    @property
    def known(self) -> bool:
        """True once more was seen of first levels than the prior is worth."""
        return bool(self._steps) and self._steps[0] > _PRIOR_STEPS

    def at(self, depth: int) -> Floats:
        """[ranks] acceptance probability of the children of a node at `depth`, given that the node is accepted."""
        known = len(self._means)
        return np.asarray(self._rates[min(depth, known - 1)]) if known else _PRIOR

    def highest(self, depth: int) -> float:
        """The best rank's `at`."""
        known = len(self._means)
        return max(self._means[min(depth, known - 1)] if known else _PRIOR.tolist())

    def gains(self, paths: Floats, depth: int) -> Floats:
        """Expected path probabilities of the children of nodes at `depth` with these path probabilities."""
        return (paths[:, None] * self.at(depth)).ravel()

    def observe(self, forest: Forest, expanded: Ints) -> None:
        """Learns from the nodes that were expanded, those that got no child included; planted children do not count."""
        if len(expanded) == 0:
            return
        above = np.bincount(forest.depth[expanded], weights=forest.left(expanded)).tolist()
        levels = len(above)
        self._reach(levels)
        for depth, (paths, brought) in enumerate(zip(above, _mass(forest, levels), strict=True)):
            if paths > 0:
                self._follow(depth, [mass / paths for mass in brought])
        for depth in range(levels, len(self._steps)):
            self._steps[depth] *= 1 - self._rate  # not reached: old news, which the next look may overrule
        self._rates = np.array(self._means)

    def expect(self, rates: Sequence[Sequence[float]]) -> None:
        """What to believe before anything was seen, worth as much as what another engine has learned.

        Args:
            rates: [depths][ranks] acceptance rates of the children of nodes at each depth, given the node's.

        Raises:
            ValueError: a depth has fewer ranks than are followed.
        """
        self.load_json({"means": [row[:_RANKS] for row in rates], "steps": [_STEPS_BEFORE] * len(rates)})

    def to_json(self) -> dict[str, Any]:
        """What was learned, as a JSON object."""
        return {"means": [[round(mean, 4) for mean in row] for row in self._means], "steps": list(self._steps)}

    def load_json(self, data: Any) -> None:
        """Begins with what another engine with this drafter has learned.

        Raises:
            KeyError, TypeError, ValueError: it is not what `to_json` writes.
        """
        means = [[float(mean) for mean in row] for row in data["means"]]
        steps = [min(float(count), _STEPS_BEFORE) for count in data["steps"]]
        if len(means) != len(steps) or any(len(row) != _RANKS for row in means):
            raise ValueError("growth of another shape")
        self._means, self._steps = means, steps
        self._rates = np.array(means) if means else np.empty((0, _RANKS))

    def _follow(self, depth: int, seen: list[float]) -> None:
        """Moves the means at one depth towards what was seen there."""
        rate, means = max(self._rate, 1 / (self._steps[depth] + _PRIOR_STEPS + 1)), self._means[depth]
        self._means[depth] = [mean + rate * (value - mean) for mean, value in zip(means, seen, strict=True)]
        self._steps[depth] = min(self._steps[depth] + 1, 1 / self._rate)

    def _reach(self, levels: int) -> None:
        """Makes room for parents at depths below `levels`."""
        while len(self._means) < levels:
            self._means.append(list(self._means[-1]) if self._means else _PRIOR.tolist())
            self._steps.append(0.0)


def _mass(forest: Forest, levels: int) -> list[list[float]]:
    """[levels][ranks] path probabilities of all drafted nodes, by their parents' depth and their own rank."""
    below, columns = slice(forest.batch + forest.planted, None), _RANKS + 1  # the last one is for further ranks
    cells = forest.depth[below] * columns
    cells += np.minimum(forest.rank[below], _RANKS)
    sums = np.bincount(cells, weights=forest.path[below], minlength=(levels + 1) * columns)
    table: list[list[float]] = sums[columns : (levels + 1) * columns].reshape(levels, columns)[:, :_RANKS].tolist()
    return table


def above_price(paths: Floats, rates: Floats, row_price: float) -> Floats:
    """[W] what the children of nodes are expected to bring above the price of verifying them.

    Args:
        paths: [W] path probabilities of the nodes.
        rates: [ranks] acceptance probabilities of their children.
        row_price: tokens that one more verified row is worth.
    """
    children = rates[:, None] * paths
    children -= row_price
    np.maximum(children, 0.0, out=children)
    return np.asarray(np.add.reduce(children))


def best_width(brought: Floats, level_prices: Floats) -> int:
    """How many of a level's nodes to expand, the likeliest first.

    A node is worth what its children bring `above_price`; the level costs what its rows take to draft. The width with
    the largest difference wins, the smallest one on ties, 0 if none has any.

    Args:
        brought: [W] what each node brings, the likeliest first.
        level_prices: [W] tokens that drafting 1, 2, ... W of them is worth.
    """
    if len(brought) == 0:
        return 0
    value = brought.cumsum()
    value -= level_prices
    width = int(value.argmax())
    return width + 1 if value[width] > 0 else 0
