"""What the head has not read yet: the target's hidden states of committed tokens, of all requests together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.models.taps import chosen_rows
from smartree.tree.forest import Ints

_PIECE = 2**22  # bytes of hidden states that are reduced together
_MOST_BYTES = 2**24  # of hidden states that wait; as features they take a third of the memory

Reduce = Callable[[torch.Tensor, Ints | None], torch.Tensor]


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
        self._features: torch.Tensor | None = None
        self._owners = np.empty(0, np.int64)
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

    def take(self, request_ids: Sequence[int]) -> torch.Tensor:
        """Features of these requests' rows, one request after the other, each in the order they came; they are gone
        from here then.
        """
        self._reduce_all()
        assert self._features is not None
        wanted = self._numbers_of(request_ids)
        if np.array_equal(self._owners, np.repeat(wanted, [self.rows(request_id) for request_id in request_ids])):
            return self._take_all()
        rising = np.argsort(wanted)
        found = rising[np.minimum(np.searchsorted(wanted[rising], self._owners), len(wanted) - 1)]
        mine = wanted[found] == self._owners
        order = np.flatnonzero(mine)[np.argsort(found[mine], kind="stable")]
        taken = self._select(order)
        self._keep(~mine)
        for request_id in request_ids:
            self._drop(request_id)
        return taken

    def _take_all(self) -> torch.Tensor:
        """Everything as it is: what most steps ask for."""
        taken = self._features
        assert taken is not None
        self._features, self._owners = None, np.empty(0, np.int64)
        self._rows.clear()
        self._numbers.clear()
        return taken

    def copy(self, donor_id: int, request_id: int, count: int) -> None:
        """Gives a request without rows the first `count` of another one's."""
        self._reduce_all()
        assert self._features is not None
        assert request_id not in self._rows
        donor, number = self._numbers_of([donor_id, request_id]).tolist()
        places = np.flatnonzero(self._owners == donor)[:count]
        self._features = torch.cat([self._features, self._select(places)])
        self._owners = np.concatenate([self._owners, np.full(len(places), number)])
        self._rows[request_id] = len(places)

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
            self._features, self._owners, self._stale = None, np.empty(0, np.int64), False
            self._numbers.clear()

    def _reduce_all(self) -> None:
        """Turns what waits into features, piece by piece, and drops rows of requests that have ended."""
        if not self._states:
            return
        features = [] if self._features is None else [self._features]
        while self._states:
            features.append(self._reduce(*self._next_piece()))
        self._features = features[0] if len(features) == 1 else torch.cat(features)
        owners = [self._owners, *self._state_owners] if len(self._owners) else self._state_owners
        self._owners = owners[0] if len(owners) == 1 else np.concatenate(owners)
        self._state_owners, self._waiting = [], 0
        if self._stale:
            self._stale = False
            self._keep(np.isin(self._owners, self._live()))

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

    def _keep(self, rows: NDArray[np.bool_]) -> None:
        self._features = self._select(np.flatnonzero(rows))
        self._owners = self._owners[rows]

    def _select(self, order: Ints) -> torch.Tensor:
        assert self._features is not None
        return self._features.index_select(0, torch.from_numpy(order).to(self._features.device))
