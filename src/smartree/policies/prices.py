"""What time is worth, apart for steps where much was found for nothing and for others (docs/theory.md, section 5)."""

from __future__ import annotations

from typing import Any

from smartree.policies.price import Price
from smartree.tree.forest import Forest

_FOUND = 0.25  # planted nodes that are expected to be accepted, a request


class Prices:
    """Two running prices, of which each step has one.

    A text that quotes itself goes by fast where it does, and slowly elsewhere. At the mean of both, time in its slow
    parts would seem to be worth what only the fast ones make of it, and no level would pay there.

    Attributes:
        plain: of steps where little or nothing was planted.
        now: the step's.
    """

    def __init__(self) -> None:
        self.plain, self._found = Price(), Price()
        self.now = self.plain

    def begin(self, forest: Forest) -> None:
        """Starts a step with what has been planted."""
        likely = forest.planted > 0 and float(forest.path[forest.batch :].sum()) > _FOUND * forest.batch
        self.now = self._found if likely else self.plain

    def at(self, batch: int) -> float | None:
        """The step's price, as `Price.at` has it; that of other steps before this kind has been seen often enough."""
        own = self.now.at(batch)
        return own if own is not None else self.plain.at(batch)

    def highest(self, batch: int) -> float | None:
        """The higher one of the two."""
        known = [price for price in (self.plain.at(batch), self._found.at(batch)) if price is not None]
        return max(known, default=None)

    def to_json(self) -> dict[str, Any]:
        """What was achieved, as a JSON object."""
        return {"plain": self.plain.to_json(), "found": self._found.to_json()}

    def load_json(self, data: Any) -> None:
        """Begins with what another engine on this setup has achieved.

        Raises:
            KeyError, TypeError, ValueError: it is not what `to_json` writes.
        """
        self.plain.load_json(data["plain"])
        self._found.load_json(data["found"])
