"""What a step costs by the number of nodes it verifies, and what that is worth at a price of time."""

from __future__ import annotations

import numpy as np

from smartree.cost.model import CostModel
from smartree.policies.base import StepState
from smartree.policies.level_costs import LevelCosts
from smartree.policies.scan import Choice, scan
from smartree.tree.forest import Floats

_USUAL_NODES = 512  # below which a step asks the cost model once
_PRICED = 128  # nodes whose passes are priced at least, as more will be asked for
_FEW = 16  # nodes that a loop is faster over than calls on arrays
_ROWS_BESIDE = 16  # over which the price of a row beside prompts is taken
_ROWS_AHEAD = (1, 8, 32, 64, 128, 256)  # how far the price of one more row looks past the present choice
_NO_STATE = StepState(0, 0, np.empty(0, np.int64))


class StepCosts:
    """Modelled seconds of this step, and the best number of nodes by them.

    What follows from the cost model alone is kept from step to step, until the model hands out another curve: the
    clock has corrected it, or the context has grown into the next bucket.

    Attributes:
        state: the step's state.
        plain: seconds of a plain decoding step of the batch, without prompts.
        changes: how often `passes` has changed, within steps too: a longer curve than usual is a newer one.
        price: tokens per second that time is known to be worth; None if each step has to maximise its own ratio.
    """

    def __init__(self, model: CostModel, levels: LevelCosts) -> None:
        """Args:
        model: the costs of the setup.
        levels: what this step has drafted.
        """
        self._model, self._levels = model, levels
        self.state = _NO_STATE
        self.plain = 1.0
        self.changes = 0
        self.price: float | None = None
        self._asked, self._kind = 0, (0, 0)
        self._curve = self._passes = np.empty(0)
        self._slopes: dict[int, float] = {}
        self._priced, self._priced_at = np.empty(0), float("nan")

    def begin(self, state: StepState) -> None:
        """Starts a step."""
        self.state = state
        self.plain = self._model.autoregressive(state.batch, state.context) + self._model.overhead
        self._ask(_USUAL_NODES)

    def passes(self, nodes: int) -> Floats:
        """[nodes + 1] seconds of the pass with 0, 1, ... `nodes` nodes."""
        if nodes >= self._asked:
            self._ask(max(_USUAL_NODES, 2 * nodes))
        return self._passes[: nodes + 1]

    def _ask(self, nodes: int) -> None:
        """Makes `_passes` good for 0, 1, ... nodes - 1 nodes."""
        batch, extra, self._asked = self.state.batch, self.state.extra_tokens, nodes
        curve = self._model.curve(batch, batch + extra + nodes - 1, self.state.context)
        if curve is self._curve and self._kind == (batch, extra):
            return
        self._curve, self._kind, self._passes = curve, (batch, extra), _passes(curve, batch, extra)
        self.changes += 1
        self._slopes = {}
        self._priced_at = float("nan")

    def row_beside(self) -> float:
        """Seconds that one more row takes beside the prompt tokens of the step."""
        rows = self.state.batch + self.state.extra_tokens
        return float(self._curve[rows + _ROWS_BESIDE] - self._curve[rows]) / _ROWS_BESIDE

    def seconds(self, nodes: int) -> Floats:
        """[nodes + 1] seconds of the step with 0, 1, ... `nodes` nodes verified, drafting included."""
        return self.passes(nodes) + (self._model.overhead + self._levels.seconds)

    def seconds_of(self, nodes: int) -> float:
        """Seconds of the step with so many nodes verified, drafting included."""
        if nodes == 0 and not self.state.extra_tokens:  # most steps where speculation does not pay
            return self.plain + self._levels.seconds
        return float(self.passes(nodes)[nodes]) + (self._model.overhead + self._levels.seconds)

    def row_seconds(self, nodes: int) -> float:
        """Seconds of one more row behind so many nodes.

        Over several distances: on a staircase the next row may be dear and the fifty after it free.
        """
        passes = self.passes(nodes + _ROWS_AHEAD[-1])
        known = self._slopes.get(nodes)
        if known is None:
            here = float(passes[nodes])
            known = self._slopes[nodes] = min((float(passes[nodes + ahead]) - here) / ahead for ahead in _ROWS_AHEAD)
        return known

    def plain_choice(self) -> Choice:
        """The step as it is without a node, what has been drafted included."""
        return Choice(0, float(self.state.batch), self.seconds_of(0))

    def best(self, pool: Floats, price: float) -> tuple[Choice, float]:
        """The best number of nodes at a price, the smallest one on ties, and what these are worth.

        Args:
            pool: [n] path probabilities, rising.
            price: tokens per second.
        """
        count, tokens, worth = self._scan(pool, price)
        return Choice(count, self.state.batch + tokens, self.seconds_of(count)), worth

    def worth(self, pool: Floats, price: float) -> float:
        """Expected tokens of the best number of nodes of a rising pool, less the price of their pass."""
        return self._scan(pool, price)[2]

    def _scan(self, pool: Floats, price: float) -> tuple[int, float, float]:
        """The best number of nodes, their expected tokens, and these less the price of the pass."""
        count = len(pool)
        priced = self._at(price, count)
        best = (0, 0.0, -float(priced[0]))
        if count <= _FEW:
            tokens = 0.0
            for place, (path, cost) in enumerate(zip(pool[::-1].tolist(), priced[1 : count + 1].tolist(), strict=True)):
                tokens += path
                if tokens - cost > best[2]:
                    best = (place + 1, tokens, tokens - cost)
            return best
        sums = np.add.accumulate(pool[::-1])
        values = sums - priced[1 : count + 1]
        place = int(values.argmax())
        return (place + 1, float(sums[place]), float(values[place])) if values[place] > best[2] else best

    def best_ratio(self, pool: Floats) -> Choice:
        """The number of nodes with the most tokens per second of the step itself."""
        return scan(pool[::-1], self.seconds(len(pool)), self.state.batch)

    def _at(self, price: float, nodes: int) -> Floats:
        """[at least nodes + 1] tokens that the pass is worth: a step asks at one price, again and again."""
        self.passes(nodes)
        if price != self._priced_at or len(self._priced) <= nodes:
            self._priced, self._priced_at = price * self._passes[: max(_PRICED, 2 * nodes)], price
        return self._priced


def _passes(curve: Floats, batch: int, extra: int) -> Floats:
    """Seconds of passes with 0, 1, ... nodes beside `extra` prompt tokens.

    Beside prompts a node costs at least what it does without them: the pass is past its bend, and attention over a
    request's own context is no cheaper than elsewhere.
    """
    if not extra:
        return curve[batch:]
    beside = curve[batch + extra :]
    passes = np.empty(len(beside))
    passes[0] = 0.0
    np.cumsum(np.maximum(np.diff(beside), np.diff(curve[batch : len(curve) - extra])), out=passes[1:])
    passes += beside[0]
    return passes
