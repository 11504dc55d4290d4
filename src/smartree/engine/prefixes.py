"""Beginnings that requests share: whose cached rows a joining request can start with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smartree.engine.budget import RowBudget
from smartree.engine.request import Request
from smartree.models.seating import Seating

LEAST_SHARED = 16
"""Tokens: copying fewer rows is not worth the trouble."""


@dataclass(frozen=True, slots=True)
class Donor:
    """Whose rows a request can start with.

    Attributes:
        id: of the other request.
        rows: how many of its first rows hold the same tokens.
        later: how many they will be once it has read its own text.
    """

    id: int
    rows: int
    later: int

    @property
    def ready(self) -> bool:
        """False if waiting for it is worth while."""
        return self.later < self.rows + LEAST_SHARED


class Prefixes:
    """Finds donors among the requests that run and those that ended and still have their rows."""

    def __init__(self, seating: Seating) -> None:
        self._seating = seating
        self._ended: dict[int, list[int]] = {}

    def keep(self, request: Request) -> None:
        """A request has ended and its rows may be of use."""
        self._seating.retire(request.id)
        if request.id in self._seating.retired:
            self._ended[request.id] = list(request.tokens)

    def make_room(self, budget: RowBudget, free: int) -> list[int]:
        """Frees rows of ended requests, those longest unused first, until they fit into so many blocks.

        Returns:
            Requests that are forgotten now, those included that lost their slot since the last time.
        """
        retired = dict(self._seating.retired)
        held = sum(budget.blocks(rows) for rows in retired.values())
        for request_id, rows in retired.items():
            if held <= free:
                break
            self._seating.release(request_id)
            held -= budget.blocks(rows)
        gone = [request_id for request_id in self._ended if request_id not in self._seating.retired]
        for request_id in gone:
            del self._ended[request_id]
        return gone

    def donor(self, request: Request, running: Iterable[Request]) -> Donor | None:
        """The best donor for a request that has read nothing; None if nobody shares enough with it.

        At least one token is left to be read, because its logits are needed. A donor that still reads its own text is
        named before it is ready (`Donor.later`) if waiting for it saves more than others can give now.

        Args:
            request: the one that joins.
            running: whom it may wait for: those that decode, and those that joined before it.
        """
        most, found = len(request.tokens) - 1, []
        for other in running:
            shared = min(_common(request.tokens, other.tokens), most)
            if shared >= LEAST_SHARED:
                found.append(Donor(other.id, min(shared, self._seating.cached.get(other.id, 0)), shared))
        for request_id, rows in self._seating.retired.items():
            shared = min(_common(request.tokens, self._ended[request_id]), rows, most)
            if shared >= LEAST_SHARED:
                found.append(Donor(request_id, shared, shared))
        if not found:
            return None
        now, later = max(found, key=lambda one: one.rows), max(found, key=lambda one: one.later)
        return later if later.later >= now.rows + LEAST_SHARED else now


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens are equal."""
    if one[:LEAST_SHARED] != other[:LEAST_SHARED]:
        return 0
    low, high = LEAST_SHARED, min(len(one), len(other))
    if high < low:
        return 0
    while low < high:  # the lists' own comparison is a hundred times as fast as a loop over tokens
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
