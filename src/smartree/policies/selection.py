"""Which nodes to verify once all are drafted: the exact scan, for packed, padded and unevenly priced passes."""

from __future__ import annotations

import numpy as np

from smartree.cost.model import CostModel
from smartree.policies.base import pads, uneven_seconds
from smartree.policies.price import Savings
from smartree.policies.scan import Choice, by_width, falling, likeliest, likeliest_per_group, scan, scan_capped
from smartree.policies.smart_options import SmartOptions
from smartree.policies.step_costs import StepCosts
from smartree.tree.forest import Floats, Forest, Ints

_PLANTED_GAIN = 0.05  # of a plain step's tokens


class Selection:
    """Chooses the nodes of a step; where none pays, a few if the savings for looks cover them.

    Attributes:
        last_count: nodes of the last step.
    """

    def __init__(self, model: CostModel, options: SmartOptions, costs: StepCosts, looks: Savings) -> None:
        """Args:
        model: the costs of the setup.
        options: bounds of the search.
        costs: of the step at hand.
        looks: seconds saved up for verifying what does not seem to pay.
        """
        self._model, self._options, self._costs, self._looks = model, options, costs, looks
        self.last_count = 0

    def of(self, forest: Forest, known: Choice | None, drafted: bool) -> tuple[Ints, Choice]:
        """The best nodes of all requests together, and the scan's choice.

        Args:
            forest: every node drafted, at least one.
            known: the scan over all of them, if it has been made already.
            drafted: False if all were planted.
        """
        if self._options.padded:
            order, choice = self.scan_widths(forest)
        elif pads(self._model, forest):
            order, choice = self._scan_uneven(forest)
        else:
            return self._of_packed(forest, known, drafted)
        self.last_count = choice.count or self._look(forest, order)
        return order[: self.last_count], choice

    def _of_packed(self, forest: Forest, known: Choice | None, drafted: bool) -> tuple[Ints, Choice]:
        batch, most = forest.batch, self._options.max_nodes
        paths, nodes = forest.path[batch:], None
        if len(paths) > most:
            nodes, known = self._within_cap(forest), None
            paths = forest.path[nodes]
        choice = known if known is not None and not self._options.hysteresis else self._scan(paths)
        if forest.planted and not drafted:
            choice = self._worth_having(choice)
        count = choice.count
        if not count and self._looks.seconds > 0:
            places = likeliest(paths, self._options.explore_nodes)
            count = self._look(forest, nodes[places] if nodes is not None else places + batch)
        self.last_count = count
        places = likeliest(paths, count)
        return nodes[places] if nodes is not None else places + batch, choice

    def _scan(self, paths: Floats) -> Choice:
        """The best number of nodes with these path probabilities, or the last one if that is hardly worse."""
        costs, ranked = self._costs, np.sort(paths)[::-1]
        seconds = costs.seconds(len(ranked))
        return self._steady(scan(ranked, seconds, costs.state.batch, costs.price), ranked, seconds)

    def _worth_having(self, choice: Choice) -> Choice:
        """The choice if it brings a few percent more than plain decoding, else that.

        Of many nodes that were found for nothing the best are chosen, and they are those that were thought too well of.
        """
        plain = self._costs.plain_choice()
        price = self._costs.price or choice.tokens / choice.seconds
        more = choice.tokens - plain.tokens - price * (choice.seconds - plain.seconds)
        return choice if more > _PLANTED_GAIN * plain.tokens else plain

    def _steady(self, choice: Choice, paths: Floats, seconds: Floats) -> Choice:
        """The last size again if the best one is hardly better."""
        kept, hysteresis = min(self.last_count, len(paths)), self._options.hysteresis
        if not hysteresis or kept == choice.count:
            return choice
        price = self._costs.price or choice.tokens / choice.seconds
        tokens = self._costs.state.batch + float(paths[:kept].sum())
        better = choice.tokens - tokens - price * (choice.seconds - float(seconds[kept]))
        return choice if better > hysteresis * choice.tokens else Choice(kept, tokens, float(seconds[kept]))

    def _within_cap(self, forest: Forest) -> Ints:
        """Nodes below the roots, without those that are beyond `max_nodes` of their request."""
        nodes, batch = np.arange(forest.batch, len(forest)), forest.batch
        requests, most = forest.request[batch:], self._options.max_nodes
        if len(nodes) <= most or int(np.bincount(requests).max()) <= most:
            return nodes
        return np.sort(nodes[likeliest_per_group(forest.path[batch:], requests, batch, most)])

    def scan_widths(self, forest: Forest) -> tuple[Ints, Choice]:
        """The best width, every request padded to it: nodes by width, and how many of them."""
        costs, batch = self._costs, forest.batch
        nodes = self._within_cap(forest)
        order = nodes[falling(forest.path[nodes])]
        places, gains, counts = by_width(forest.request[order], forest.path[order], batch)
        seconds = costs.seconds(batch * len(gains))[::batch]
        choice = scan(gains, seconds, batch, costs.price)
        return order[places], Choice(int(counts[choice.count]), choice.tokens, choice.seconds)

    def _scan_uneven(self, forest: Forest) -> tuple[Ints, Choice]:
        """The best number of nodes and the most for one request, where attention pads: nodes, and how many of them."""
        costs, model, batch, context = self._costs, self._model, forest.batch, self._costs.state.context
        nodes = self._within_cap(forest)
        price, passes = costs.price, costs.passes(len(nodes))
        if price is not None and len(nodes):
            # What is not even worth its row beside padding that it saves is in no choice: most of what was drafted.
            saved = model.padding.seconds_of(1, context) - model.padding.seconds
            least = max(float((passes[1:] - passes[:-1]).min()) - saved, 0.0)
            nodes = nodes[forest.path[nodes] > price * least]
        order = nodes[falling(forest.path[nodes])]
        rows, even = np.arange(batch, batch + len(order) + 1), costs.seconds(len(order))
        beyond = model.beyond_padding(batch, rows, context)

        def seconds(widths: Ints) -> Floats:
            size = len(widths)
            places = batch * (widths + 1) - rows[:size]
            return even[:size] + model.padded(places, beyond[:size], context)

        kept, choice = scan_capped(forest.request[order], forest.path[order], seconds, batch, price)
        return order[kept], choice

    def carried(self, forest: Forest, selected: Ints) -> int:
        """Nodes that the pass pays for: padding too, if the engine pads."""
        if not self._options.padded:
            return len(selected)
        widths = np.bincount(forest.request[selected], minlength=1)
        return self._costs.state.batch * int(widths.max())

    def _look(self, forest: Forest, nodes: Ints) -> int:
        """How many of `nodes`, the best first, to verify although they do not pay, out of what is saved for looks."""
        costs, looks = self._costs, self._looks
        if looks.seconds <= 0:
            return 0
        for count in range(min(len(nodes), self._options.explore_nodes), 0, -1):
            front = nodes[:count]
            carried = self.carried(forest, front)
            passes = costs.passes(carried)
            extra = float(passes[carried] - passes[0])
            extra += uneven_seconds(self._model, forest, front, carried, costs.state.context)
            if looks.pay(extra):
                return count
        return 0
