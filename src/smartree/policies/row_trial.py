"""Passes that are only to tell what rows cost: where nobody speculates, nothing else does."""

from __future__ import annotations

import numpy as np

from smartree.cost.model import CostModel
from smartree.policies.base import pads
from smartree.policies.price import Savings
from smartree.policies.step_costs import StepCosts
from smartree.tree.forest import Candidates, Forest, Ints

_WIDE = 1.5  # rows a request that tell what rows cost
_AT_FIRST = 3  # such passes, before it is known
_AGAIN = 500  # steps after the last one, by when the machine may be another one
_SHARE = 0.2  # of the share of time that looks may take
_NOBODY = np.empty(0, np.int64)


class RowTrial:
    """Doubles the rows of a plain step now and then, with nodes that nobody has drafted.

    Plain passes all have as many rows, and a profile may be an hour old: one that said 0.43 ms of a row that took 0.28
    said at batch 8 that nothing pays, where one level made 11% more. Looks at a few requests do not tell either, as a
    node or two change a pass of eight rows by less than the clock does.

    Attributes:
        nodes: of the step at hand; most steps have none.
    """

    def __init__(self, model: CostModel, costs: StepCosts, share: float) -> None:
        """Args:
        model: the costs of the setup.
        costs: of the step at hand.
        share: of all time that looks at what does not seem to pay may take; trials take a fifth of that more, and the
            first ones are paid in advance. With 0 there are none.
        """
        self._model, self._costs, self._share = model, costs, share
        self._savings, self._in_advance = Savings(_SHARE * share), _AT_FIRST
        self._wide, self._since = 0, 0  # passes with many more rows than requests, and steps since the last one
        self.nodes: Ints = _NOBODY

    def resume(self) -> None:
        """What rows cost was seen by another engine: one trial tells whether that still holds."""
        self._wide = max(self._wide, _AT_FIRST - 1)

    def begin(self) -> None:
        """Starts a step."""
        self.nodes = _NOBODY

    def pass_by(self, steps: int, plain: float) -> None:
        """So many steps of `plain` seconds went by without a question."""
        self._since += steps
        self._savings.save(steps * plain, self._seconds())

    def note(self, batch: int, rows: int, spent: float, seconds: float) -> None:
        """A pass without prompts was seen, of a step that was to take `spent` seconds and took `seconds`."""
        wide = rows >= _WIDE * batch
        self._wide += wide
        self._since = 0 if wide else self._since + 1
        self._savings.save(spent, self._seconds())
        if len(self.nodes):
            self._savings.owe(seconds - spent, self._seconds())

    def starts(self, forest: Forest) -> bool:
        """True if this step is one: every root then has a child that is to be verified, likely or not.

        Args:
            forest: what has been planted; where there is anything there is no trial.
        """
        state = self._costs.state
        known = self._wide >= _AT_FIRST and self._since < _AGAIN
        if known or self._share == 0 or state.extra_tokens or forest.planted or pads(self._model, forest):
            return False
        if min(state.depth_limits.tolist(), default=0) < 1:
            return False
        if self._in_advance and self._wide < _AT_FIRST:
            self._in_advance -= 1
        elif not self._savings.pay(self._seconds()):
            return False
        roots, nothing = np.arange(state.batch), np.zeros(state.batch)
        again = forest.token[roots]  # any token does, and this one is in every vocabulary
        self.nodes = forest.append(Candidates(roots, again, nothing, roots * 0, roots * 0 - 1, nothing))
        return True

    def _seconds(self) -> float:
        """What doubling the rows should take; also what is saved at most."""
        batch = self._costs.state.batch
        passes = self._costs.passes(batch)
        return float(passes[batch] - passes[0])
