"""Which nodes of a level are drafted on from: those whose children are expected to be worth a draft row."""

from __future__ import annotations

import numpy as np

from smartree.policies.growth import Growth, above_price, best_width
from smartree.policies.level_costs import LevelCosts
from smartree.policies.price import Savings
from smartree.policies.scan import falling, likeliest_per_group, places_in_group
from smartree.policies.smart_options import SmartOptions
from smartree.tree.forest import Floats, Forest, Ints


class Expansion:
    """Chooses the next frontier among the nodes of the level that was drafted last."""

    def __init__(self, options: SmartOptions, levels: LevelCosts, growth: Growth, deeper: Savings) -> None:
        """Args:
        options: bounds of the search.
        levels: what levels cost.
        growth: what they bring.
        deeper: seconds saved up for one level more than seems to pay.
        """
        self._options, self._levels, self._growth, self._deeper = options, levels, growth, deeper

    def likely(self, forest: Forest, nodes: Ints) -> Ints:
        """The nodes to expand in a level that costs nothing, in rising order: at most `width` of each request."""
        nodes, width = nodes[forest.path[nodes] >= self._options.least_path], self._options.width
        if len(nodes) <= width:
            return nodes
        return np.sort(nodes[likeliest_per_group(forest.path[nodes], forest.request[nodes], forest.batch, width)])

    def worth_a_row(self, forest: Forest, nodes: Ints, depth: int, price: float, row_price: float) -> Ints:
        """The nodes to expand, in rising order: at most `width` of each request, as many as pay for their rows.

        Args:
            forest: where they are.
            nodes: in rising order.
            depth: of all of them.
            price: tokens per second that time is worth.
            row_price: tokens that a drafted node must bring to be worth verifying.
        """
        if len(nodes) == 0:
            return nodes
        rates, highest = self._growth.at(depth), self._growth.highest(depth)
        thinnest, deeper = self._levels.of(1, 1), self._deeper.seconds
        paths = forest.left(nodes)
        order = falling(paths)
        ranked = paths[order]
        able = int(np.count_nonzero(ranked * highest > row_price))  # no other has a child that is worth its row
        brought = above_price(ranked[:able], rates, row_price)
        if np.add.reduce(brought) <= price * thinnest and deeper < thinnest:
            return nodes[:0]
        places, brought = self._within_width(forest, nodes, order[:able], brought)
        wide = best_width(brought, price * self._levels.by_width(len(places)))
        if wide == 0 and deeper >= thinnest:
            return nodes[order[:1]]  # enough to see whether the level below is worth more by now
        expanded = nodes[places[:wide]]
        expanded.sort()
        return expanded

    def _within_width(self, forest: Forest, nodes: Ints, places: Ints, brought: Floats) -> tuple[Ints, Floats]:
        """Of `places` among the nodes, and of what these bring, the first `width` of each request."""
        width = self._options.width
        if len(places) <= width:
            return places, brought
        if forest.batch == 1:
            return places[:width], brought[:width]
        kept = places_in_group(forest.request[nodes[places]], forest.batch) < width
        return places[kept], brought[kept]
