"""What the head has not read yet: the target's hidden states of committed tokens, of all requests together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from smartree.models.pages import zeros
from smartree.models.taps import chosen_rows
from smartree.tree.forest import Ints

_PIECE = 2**21  # bytes of hidden states that are reduced together
_MOST_BYTES = 2**22  # of hidden states that wait; as features they take a third of the memory

_LARGE = 512  # rows of features that get memory of their own from the system
_PART = 2**21  # bytes of features that lie together: when some are taken, the others of their part are copied

Reduce = Callable[[torch.Tensor, Ints | None], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """Features that lie together.

    Attributes:
        features: [R, H].
        owners: [R] numbers of the requests that they are of.
    """

    features: torch.Tensor
    owners: Ints

    def first_of(self, wanted: Ints, most: Ints) -> tuple[Ints, Ints]:
        """The first `most[i]` rows of number `wanted[i]`, number by number, and the `i` of each row."""
        rising = np.argsort(wanted)
        found = rising[np.minimum(np.searchsorted(wanted[rising], self.owners), len(wanted) - 1)]
        rows = np.flatnonzero(wanted[found] == self.owners)
        rows = rows[np.argsort(found[rows], kind="stable")]
        whose = found[rows]
        within = np.arange(len(rows)) - np.searchsorted(whose, whose) < most[whose]
        return rows[within], whose[within]

    def without(self, rows: Ints) -> Part:
        """All but these rows."""
        kept = np.ones(len(self.owners), np.bool_)
        kept[rows] = False
        left = np.flatnonzero(kept)
        index = torch.from_numpy(left).to(self.features.device)
        into = _in_own_pages(self.features, len(left))
        return Part(torch.index_select(self.features, 0, index, out=into), self.owners[left])

    def with_behind(self, part: Part) -> Part:
        """Two in one."""
        features = _in_own_pages(self.features, len(self.owners) + len(part.owners))
        return Part(torch.cat([self.features, part.features], out=features), np.concatenate([self.owners, part.owners]))


def _in_own_pages(like: torch.Tensor, rows: int) -> torch.Tensor | None:
    """Memory for so many rows of features that the system gets back when it is dropped; None for a few.

    A general allocator keeps what is dropped between other things: it kept as much as all features took.
    """
    return zeros((rows, like.shape[1]), like.dtype, like.device) if rows >= _LARGE else None


class Backlog:
    """Rows as they came, pass by pass, and whose they are.

    Most steps without drafts are followed by another one: what a step adds must cost next to nothing, so rows stay
    together as the target gave them and are sorted out when they are read.
    """

    def __init__(self, reduce: Reduce, most_bytes: int = _MOST_BYTES) -> None:
        """Args:
        reduce: hidden states [M, taps * Ht] -> features [M, H], or [R, H] of chosen rows.
        most_bytes: of hidden states that may wait.
        """
        self._reduce, self._most_bytes = reduce, most_bytes
        self._states: list[torch.Tensor] = []
        self._chosen: list[Ints | None] = []  # of the states of each pass
        self._state_owners: list[Ints] = []
        self._parts: list[Part] = []
        self._waiting = 0
        self._rows: dict[int, int] = {}
        # Who a row belongs to is a number that no two requests have, not even one that comes back: to forget a request
        # is then to forget its number.
        self._numbers: dict[int, int] = {}
        self._next_number = 0
        self._stale = False  # rows of requests that were forgotten are still here

    def __len__(self) -> int:
        return sum(self._rows.values())

    def rows(self, request_id: int) -> int:
        """Rows of a request."""
        return self._rows.get(request_id, 0)

    def rows_of(self, request_ids: Iterable[int]) -> int:
        """Rows of several requests."""
        known = self._rows
        return sum([known.get(request_id, 0) for request_id in request_ids])

    def add(
        self, request_ids: Sequence[int], counts: Sequence[int], states: torch.Tensor, rows: Ints | None = None
    ) -> None:
        """`rows` of a pass's states, or all: `counts[i]` of `request_ids[i]`, one request after the other."""
        size, width = states.shape
        wanted = size if rows is None else len(rows)
        owners = self._numbers_of(request_ids)
        assert wanted == sum(counts), "rows of nobody"
        self._states.append(states)
        self._chosen.append(rows)
        self._state_owners.append(owners if wanted == len(owners) else np.repeat(owners, counts))
        self._waiting += size
        known = self._rows
        for request_id, count in zip(request_ids, counts, strict=True):
            known[request_id] = known.get(request_id, 0) + count
        if self._waiting * width * states.element_size() > self._most_bytes:
            self._relieve()

    def _numbers_of(self, request_ids: Sequence[int]) -> Ints:
        """[R] the requests' numbers; new ones get theirs."""
        numbers = self._numbers
        for request_id in request_ids:
            if request_id not in numbers:
                numbers[request_id] = self._next_number
                self._next_number += 1
        return np.array([numbers[request_id] for request_id in request_ids], np.int64)

    def _live(self) -> Ints:
        """Numbers of the requests that have rows here."""
        return np.fromiter(self._numbers.values(), np.int64, len(self._numbers))

    def _relieve(self) -> None:
        """Makes room: drops rows of requests that have ended, and turns the rest into features if it is much.

        Where nobody speculates most requests end before anybody wants to read of them, so waiting saves the product.
        """
        live, passes = self._live(), zip(self._states, self._chosen, self._state_owners, strict=True)
        self._states, self._chosen, self._state_owners = [], [], []
        for states, rows, owners in passes:
            alive = np.flatnonzero(np.isin(owners, live))
            if len(alive):
                rows = alive if rows is None else rows[alive]
                self._states.append(chosen_rows(states, rows if len(rows) < len(states) else None))
                self._chosen.append(None)
                self._state_owners.append(owners[alive])
        self._waiting = sum(len(states) for states in self._states)
        if self._states and 2 * self._waiting * self._states[0][:1].nbytes > self._most_bytes:
            self._reduce_all()

    def take(self, request_ids: Sequence[int], most: int | None = None) -> torch.Tensor:
        """Features of these requests' rows, one request after the other, each in the order they came; they are gone
        from here then.

        Args:
            request_ids: whose.
            most: rows of each, the first ones; None takes all.
        """
        self._reduce_all()
        wanted, counts = self._numbers_of(request_ids), [self.rows(request_id) for request_id in request_ids]
        all_of_them = most is None or most >= max(counts)
        if all_of_them and len(self._parts) == 1 and np.array_equal(self._parts[0].owners, np.repeat(wanted, counts)):
            return self._take_all()
        left = np.full(len(wanted), len(self) if most is None else most)
        taken, chosen = self._first_of(wanted, left)
        self._parts = [
            part.without(rows) if len(rows) else part
            for part, rows in zip(self._parts, chosen, strict=True)
            if len(rows) < len(part.owners)
        ]
        for request_id, count in zip(request_ids, counts, strict=True):
            if most is None or count <= most:
                self._drop(request_id)
            else:
                self._rows[request_id] = count - most
        return taken

    def _take_all(self) -> torch.Tensor:
        """Everything as it is: what most steps ask for."""
        taken = self._parts.pop().features
        self._rows.clear()
        self._numbers.clear()
        return taken

    def _first_of(self, wanted: Ints, left: Ints) -> tuple[torch.Tensor, list[Ints]]:
        """The first `left[i]` rows of number `wanted[i]`, one number after the other, and which rows of each part."""
        assert self._parts, "features of nobody"
        found, places, chosen = list[torch.Tensor](), list[Ints](), list[Ints]()
        for part in self._parts:
            rows, whose = part.first_of(wanted, left)
            left = left - np.bincount(whose, minlength=len(wanted))
            found.append(chosen_rows(part.features, rows))
            places.append(whose)
            chosen.append(rows)
        if len(found) == 1:
            return found[0], chosen
        order = np.argsort(np.concatenate(places), kind="stable")
        return chosen_rows(torch.cat(found), order), chosen

    def copy(self, donor_id: int, request_id: int, count: int) -> None:
        """Gives a request without rows the first `count` of another one's."""
        self._reduce_all()
        assert request_id not in self._rows
        donor, number = self._numbers_of([donor_id, request_id]).tolist()
        features, _ = self._first_of(np.array([donor]), np.array([count]))
        self._append(Part(features, np.full(len(features), number)))
        self._rows[request_id] = len(features)

    def forget(self, request_id: int) -> None:
        """Drops a request, which may come back from its beginning; its rows' memory is free when the others' are sorted
        out the next time, or with the last request.
        """
        self._stale = self._stale or bool(self._rows.get(request_id))
        self._drop(request_id)

    def _drop(self, request_id: int) -> None:
        self._rows.pop(request_id, None)
        self._numbers.pop(request_id, None)
        if not self._rows:
            self._states, self._chosen, self._state_owners, self._waiting = [], [], [], 0
            self._parts, self._stale = [], False
            self._numbers.clear()

    def _reduce_all(self) -> None:
        """Turns what waits into features, piece by piece, and drops rows of requests that have ended."""
        if not self._states:
            return
        owners = np.concatenate(self._state_owners) if len(self._state_owners) > 1 else self._state_owners[0]
        while self._states:
            features = self._reduce(*self._next_piece())
            self._append(Part(features, owners[: len(features)]))
            owners = owners[len(features) :]
        self._state_owners, self._waiting = [], 0
        if self._stale:
            self._stale = False
            live = self._live()
            parts = [(part, np.flatnonzero(~np.isin(part.owners, live))) for part in self._parts]
            self._parts = [
                part.without(dead) if len(dead) else part for part, dead in parts if len(dead) < len(part.owners)
            ]

    def _append(self, part: Part) -> None:
        """Adds features; small parts become one, as everybody's rows are looked for in every part."""
        if self._parts and self._parts[-1].features.nbytes + part.features.nbytes <= _PART:
            part = self._parts.pop().with_behind(part)
        self._parts.append(part)

    def _next_piece(self) -> tuple[torch.Tensor, Ints | None]:
        """The first few passes' rows, which are gone from here then: all at once would take their memory twice."""
        if len(self._states) == 1:  # of most steps that follow one with drafts: read where they lie
            return self._states.pop(), self._chosen.pop()
        size, count = 0, 0
        while count < len(self._states) and (count == 0 or size + self._states[count].nbytes <= _PIECE):
            size, count = size + self._states[count].nbytes, count + 1
        taken = [chosen_rows(*each) for each in zip(self._states[:count], self._chosen[:count], strict=True)]
        self._states, self._chosen = self._states[count:], self._chosen[count:]
        return taken[0] if count == 1 else torch.cat(taken), None
