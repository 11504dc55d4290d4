"""Rests in quiet times: where nothing was drafted for a while, most steps need not ask again."""

from __future__ import annotations

_QUIET_AT_FIRST = 8  # steps without a node before the first rest
_STEPS_WITHOUT = 50  # plain ones, after which one is taken where speculation gains little: else nobody would know any
# more what a plain step takes
_STEPS_BESIDE = 15  # passed in a row that read prompts: a load of many short ones has no others
_STEPS = 3  # of a rest: what decides whether to speculate changes slowly, and asking and learning take time


class Rest:
    """Which steps are passed without a question, and what they brought.

    Attributes:
        now: True during a step that is.
    """

    def __init__(self) -> None:
        self.now = False
        self._quiet = 0  # steps since the last one with a level or a node, rests not counted
        self._left = 0
        self._may_rest = False
        self._beside = 0  # steps with prompts passed since the last question
        self._passed: list[tuple[int, int, bool]] = []
        self._since = 0  # steps since the last plain one

    @property
    def quiet(self) -> bool:
        """True if nothing has been drafted or verified for a while."""
        return self._quiet > _QUIET_AT_FIRST

    def is_due(self, same: bool, beside: bool) -> bool:
        """True if a step would be passed, see `begin`."""
        if beside:
            return self._may_rest and self.quiet and self._beside < _STEPS_BESIDE
        return self._left > 0 and same

    def wants_plain(self) -> bool:
        """True if no step has been plain for so long that what one takes is an old story."""
        return self._since >= _STEPS_WITHOUT

    def begin(self, same: bool, beside: bool) -> bool:
        """Starts a step; True if it is passed.

        Args:
            same: False if the step is of another kind than those before it: a rest ends then.
            beside: whether it reads so many prompt tokens that nobody begins to speculate in it. In quiet times most of
                such steps are passed, and they end no rest.
        """
        self.now = self.is_due(same, beside)
        if beside:
            self._beside = self._beside + 1 if self.now else 0
        else:
            self._left = self._left - 1 if self.now else 0
        return self.now

    def add(self, batch: int, tokens: int, beside: bool) -> None:
        """A step of so many requests that was passed has brought so many tokens; `beside` if it read prompts."""
        self._passed.append((batch, tokens, beside))

    def end(self) -> list[tuple[int, int, bool]]:
        """What was added since the last question."""
        passed, self._passed = self._passed, []
        return passed

    def note(self, idle: bool, beside: bool, may_rest: bool) -> None:
        """Another step has been asked about.

        Args:
            idle: whether it had neither a level nor a node.
            beside: whether it read prompts; what follows it is as it was then.
            may_rest: whether the next ones might be passed.
        """
        self._quiet = self._quiet + 1 if idle else 0
        self._since = 0 if idle and not beside else self._since + 1
        self._may_rest = may_rest
        if not self.quiet:
            self._left = 0
        elif not beside:
            self._left = _STEPS if may_rest else 0
