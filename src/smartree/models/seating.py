"""Which request sits in which cache slot, so that a batch's slots follow each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """The first `rows` rows of slot `source` go to slot `target`."""

    source: int
    target: int
    rows: int


class Seating:
    """Requests, their slots, and how many rows of each are cached.

    A request that has ended may stay until its slot is needed (`retire`): a later one may begin with its rows.
    """

    def __init__(self, slots: int) -> None:
        """Args:
        slots: one more than the most requests, so that two can change places.
        """
        self._holders: list[int | None] = [None] * slots
        self._slot: dict[int, int] = {}
        self._retired: dict[int, int] = {}
        self.cached: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.cached)

    @property
    def retired(self) -> Mapping[int, int]:
        """Rows of the requests that have ended and whose rows are still there, those longest unused first."""
        return self._retired

    def slot(self, request_id: int) -> int:
        """Slot of a seated request."""
        return self._slot[request_id]

    def rows_in_use(self) -> int:
        """Rows of requests that have not ended."""
        return sum(self.cached.values())

    def seat(self, request_ids: Sequence[int]) -> list[Move]:
        """Gives request i of the batch slot i; returns the moves to make, in order. New requests have no rows."""
        moves = []
        for target, request_id in enumerate(request_ids):
            if request_id in self._retired:
                self.release(request_id)
            source = self._slot.get(request_id)
            if source == target:
                continue
            moves += self._vacate(target, len(request_ids))
            if source is None:
                self._sit(request_id, target, 0)
            else:
                moves.append(self._move(request_id, target))
        return [move for move in moves if move.rows]

    def release(self, request_id: int) -> None:
        """Empties a request's slot, retired or not."""
        slot = self._slot.pop(request_id, None)
        if slot is not None:
            self._holders[slot] = None
            self.cached.pop(request_id, None)
            self._retired.pop(request_id, None)

    def retire(self, request_id: int) -> None:
        """A request has ended; its rows stay until their slot is needed, if it has any."""
        rows = self.cached.pop(request_id, 0)
        if rows == 0:
            self.release(request_id)
        else:
            self._retired[request_id] = rows

    def share(self, donor_id: int, request_id: int, rows: int) -> list[Move]:
        """Seats a new request with the first `rows` rows of another, retired or not; returns the moves to make.

        A retired donor whose rows are all wanted hands its slot over, and so does one that cannot keep it.
        """
        self.release(request_id)  # it may have a seat without rows
        whole = self._retired.get(donor_id)
        if whole is not None:
            self._retired[donor_id] = self._retired.pop(donor_id)  # just used: the last to go
        target = None if whole == rows else self._spare_slot(donor_id)
        if target is None:
            slot = self._slot[donor_id]
            assert whole is not None, "a running donor leaves a slot for everybody who may join"
            self.release(donor_id)
            self._sit(request_id, slot, rows)
            return []
        self._sit(request_id, target, rows)
        return [Move(self._slot[donor_id], target, rows)]

    def _sit(self, request_id: int, slot: int, rows: int) -> None:
        self._holders[slot], self._slot[request_id] = request_id, slot
        self.cached[request_id] = rows

    def _spare_slot(self, but: int) -> int | None:
        """An empty slot, the last one first; else that of the retired request longest unused, `but` excepted."""
        empty = [slot for slot, holder in enumerate(self._holders) if holder is None]
        oldest = next((one for one in self._retired if one != but), None)
        if empty or oldest is None:
            return empty[-1] if empty else None
        slot = self._slot[oldest]
        self.release(oldest)
        return slot

    def _vacate(self, slot: int, beyond: int) -> list[Move]:
        """Empties a slot; its holder goes elsewhere, or is forgotten if it is retired and there is no room."""
        holder = self._holders[slot]
        if holder is None:
            return []
        room = self._empty_slots(beyond)
        if holder in self._retired and not room:
            self.release(holder)
            return []
        if not room and None not in self._holders:
            self.release(next(iter(self._retired)))
            room = self._empty_slots(beyond)
        return [self._move(holder, room[0] if room else self._holders.index(None))]

    def _empty_slots(self, beyond: int) -> list[int]:
        return [slot for slot in range(beyond, len(self._holders)) if self._holders[slot] is None]

    def _move(self, request_id: int, target: int) -> Move:
        source = self._slot[request_id]
        self._holders[source], self._holders[target] = None, request_id
        self._slot[request_id] = target
        rows = self.cached.get(request_id)
        return Move(source, target, self._retired[request_id] if rows is None else rows)
