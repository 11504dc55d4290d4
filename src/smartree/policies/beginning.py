"""Who begins to speculate after steps without drafts: everybody, a few to look, or nobody."""

from __future__ import annotations

from collections.abc import Callable

from smartree.policies.growth import Growth
from smartree.policies.level_costs import LevelCosts
from smartree.policies.price import Savings
from smartree.tree.forest import Ints

_STEPS_TO_REPAY = 20  # within which speculation has to earn what reading a backlog costs
_STEPS_BETWEEN_QUESTIONS = 4  # what the answer depends on changes slowly
GAIN_TO_GO_ON = 0.02  # of a plain step: what is expected to bring less loses as often as not
_GAIN_TO_BEGIN = 0.04  # after a pause: it takes reading a backlog, and a switch for little is soon switched back

Pays = Callable[[float], bool]
"""Whether a level for everybody is worth so many seconds."""


class Beginning:
    """Weighs what speculation is expected to bring against reading what the drafter has missed."""

    def __init__(self, levels: LevelCosts, growth: Growth, looks: Savings) -> None:
        """Args:
        levels: what levels cost, and what is unread.
        growth: what levels bring.
        looks: seconds saved up for looks at speculation.
        """
        self._levels, self._growth, self._looks = levels, growth, looks
        self._waiting = 0

    def pass_by(self, steps: int) -> None:
        """So many steps went by without a question."""
        self._waiting -= steps

    def roots(self, roots: Ints, batch: int, unread: int, plain: float, pays: Pays) -> Ints:
        """Those to draft for: all if that will repay reading the backlog, else scouts if a look is affordable.

        Args:
            roots: that could use a node, at least one.
            batch: requests of the step.
            unread: tokens that the drafter has to read for all of them, by its own word.
            plain: seconds of a plain step.
            pays: asked about the first level.
        """
        levels = self._levels
        self._waiting -= 1
        if self._waiting <= 0 or levels.unread.running:
            self._waiting = _STEPS_BETWEEN_QUESTIONS
            if pays(levels.of(0, len(roots)) + self._reading(batch, unread) + self._margin * plain):
                return roots
        levels.scouting = True
        return roots[: levels.unread.scouts(batch)] if self._looks.seconds >= levels.of(0, 1) else roots[:0]

    @property
    def _margin(self) -> float:
        return GAIN_TO_GO_ON if self._levels.unread.running else _GAIN_TO_BEGIN

    def _reading(self, batch: int, unread: int) -> float:
        """Seconds a step that reading the backlog costs, spread over those in which it has to be earned."""
        levels = self._levels
        rows = max(levels.unread.rows, unread)  # prompts are not counted by those who see steps only
        steps = float(_STEPS_TO_REPAY)
        if self._growth.known:
            # In as many steps as the backlog took to grow, so that a long one is no dearer a step than a short one.
            steps = max(steps, rows / max(batch, 1))
        steps = max(1.0, min(steps, levels.unread.run))
        return (levels.reading(rows) - levels.reading(levels.unread.usual(batch))) / steps
