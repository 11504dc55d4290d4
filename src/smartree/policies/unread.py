"""What a drafter that runs by level has still to read: every committed token, before its next level."""

from __future__ import annotations

from math import inf

_USUAL = 3  # tokens a request has got since the last step with drafts, if that was the step before
_MOST_OF_A_SCOUT = 64  # rows that a look is charged with
_REQUESTS_PER_SCOUT = 8
_NEWS = 0.7  # of the mean run length is the last run's
_HOPE = 1.005  # by which the mean run length grows in every step without a run: it is never given up


class Unread:
    """Counts committed tokens since drafts were made, for all requests and for the scouts.

    While nobody speculates the backlog grows by the whole batch in every step, and a look at speculation would have to
    read it all. So looks are made for a few requests only, the scouts, always the same ones as long as they live.

    Attributes:
        rows: tokens that all requests together have to read.
        scout_rows: tokens that each scout has to read.
        run: steps that drafting for everybody is expected to last: within so many it has to earn what reading a backlog
            costs. Where it hardly pays it begins, finds that out and ends again, and each time the backlog was read for
            nothing.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.scout_rows = 0.0
        self.run = inf  # before one has ended
        self._behind = False
        self._steps, self._pause = 0, 0  # of the present run, or since its last step

    @staticmethod
    def usual(batch: int) -> int:
        """Rows that the first level of a step reads if the step before had drafts too."""
        return _USUAL * batch

    @staticmethod
    def scouts(batch: int) -> int:
        """How many requests are looked at."""
        return -(-batch // _REQUESTS_PER_SCOUT)

    def of_scouts(self, batch: int) -> int:
        """Rows that a look reads."""
        return self.scouts(batch) * (1 + min(int(self.scout_rows), _MOST_OF_A_SCOUT))

    def is_long(self, batch: int) -> bool:
        """True if there is more to read than usual, as the step before had no drafts for everybody."""
        return self._behind and self.rows > self.usual(batch)

    @property
    def running(self) -> bool:
        """True if drafts were made for everybody until a few steps ago: prompts that were read since do not count."""
        return self._steps > 0

    def update(self, batch: int, tokens: int, drafted: bool, scouting: bool, alone: bool = True) -> None:
        """Adds a step's tokens to what its drafts left unread.

        Args:
            batch: requests of the step.
            tokens: that they got.
            drafted: whether drafts were made.
            scouting: for scouts only.
            alone: whether the step read no prompts.
        """
        self._behind = not drafted or scouting
        self.rows = tokens + (self.rows if self._behind else 0)
        self.scout_rows = tokens / max(batch, 1) + (0.0 if drafted else self.scout_rows)
        if alone or not self._behind:
            self._follow_run()

    def _follow_run(self) -> None:
        """Counts the steps of runs; after a pause that leaves a long backlog a run is over."""
        if not self._behind:
            self._steps, self._pause = self._steps + 1, 0
            return
        self._pause += 1
        if self._steps and self._pause >= _USUAL:
            self.run = self._steps if self.run == inf else self.run + _NEWS * (self._steps - self.run)
            self._steps = 0
        elif not self._steps:
            self.run *= _HOPE
