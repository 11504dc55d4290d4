"""Which request sits in which cache slot, so that a batch's slots follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """The first `rows` rows of slot `source` go to slot `target`."""

    source: int
    target: int
    rows: int


class Seating:
    """Requests, their slots, and how many rows of each are cached."""

    def __init__(self, slots: int) -> None:
        """Args:
        slots: one more than the most requests, so that two can change places.
        """
        self._holders: list[int | None] = [None] * slots
        self._slot: dict[int, int] = {}
        self.cached: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slot)

    def slot(self, request_id: int) -> int:
        """Slot of a seated request."""
        return self._slot[request_id]

    def rows_in_use(self) -> int:
        """Rows that hold something."""
        return sum(self.cached.values())

    def seat(self, request_ids: Sequence[int]) -> list[Move]:
        """Gives request i of the batch slot i; returns the moves to make, in order. New requests have no rows."""
        moves = []
        for target, request_id in enumerate(request_ids):
            source = self._slot.get(request_id)
            if source == target:
                continue
            holder = self._holders[target]
            if holder is not None:
                moves.append(self._move(holder, self._free_slot(len(request_ids))))
            if source is None:
                self._holders[target], self._slot[request_id] = request_id, target
                self.cached[request_id] = 0
            else:
                moves.append(self._move(request_id, target))
        return [move for move in moves if move.rows]

    def release(self, request_id: int) -> None:
        """Empties a request's slot."""
        slot = self._slot.pop(request_id, None)
        if slot is not None:
            self._holders[slot] = None
            del self.cached[request_id]

    def _move(self, request_id: int, target: int) -> Move:
        source = self._slot[request_id]
        self._holders[source], self._holders[target] = None, request_id
        self._slot[request_id] = target
        return Move(source, target, self.cached[request_id])

    def _free_slot(self, beyond: int) -> int:
        later = [slot for slot in range(beyond, len(self._holders)) if self._holders[slot] is None]
        return later[0] if later else self._holders.index(None)
