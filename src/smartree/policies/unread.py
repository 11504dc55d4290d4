"""What a drafter that runs by level has still to read: every committed token, before its next level."""

from __future__ import annotations

_USUAL = 3  # tokens a request has got since the last step with drafts, if that was the step before
_MOST_OF_A_SCOUT = 64  # rows that a look is charged with
_REQUESTS_PER_SCOUT = 8


class Unread:
    """Counts committed tokens since drafts were made, for all requests and for the scouts.

    While nobody speculates the backlog grows by the whole batch in every step, and a look at speculation would have to
    read it all. So looks are made for a few requests only, the scouts, always the same ones as long as they live.

    Attributes:
        rows: tokens that all requests together have to read.
        scout_rows: tokens that each scout has to read.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.scout_rows = 0.0
        self._behind = False

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

    def update(self, batch: int, tokens: int, drafted: bool, scouting: bool) -> None:
        """Adds a step's tokens to what its drafts left unread."""
        self._behind = not drafted or scouting
        self.rows = tokens + (self.rows if self._behind else 0)
        self.scout_rows = tokens / max(batch, 1) + (0.0 if drafted else self.scout_rows)
