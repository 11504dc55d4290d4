"""An EAGLE-3 head as drafter: features of accepted tokens from the target, tree levels packed for all requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch

from smartree.drafters.base import BaseDrafter, DraftRequest
from smartree.drafters.catch_up import CatchUp, Pending
from smartree.drafters.eagle3.backlog import Backlog
from smartree.drafters.eagle3.runner import HeadRunner, LoadedHead
from smartree.drafters.proposing import top_children
from smartree.drafters.tree_rows import TreeRows
from smartree.models.packed_pass import causal_group
from smartree.models.rehearsal import level_group
from smartree.tree.forest import Candidates, Forest, Ints

_MOST_ROWS = 256  # of a pass that reads what was committed
_LEAST_AHEAD = 64  # of one request that are worth a pass of their own


class Eagle3Drafter(BaseDrafter):
    """Row j of the head's cache holds token j + 1 with the target's features of token j.

    The first level of a step reads the committed tokens that are new, with the target's features; deeper levels read
    nodes with their parents' states. Tree rows are written behind the committed ones and overwritten in the next step:
    what the head computed from its own guesses is never kept.
    """

    name = "eagle3"
    by_level = True

    def __init__(self, loaded: LoadedHead, slots: int, window: int, top_k: int = 10) -> None:
        """Args:
        loaded: the head, fitted to its target.
        slots: most requests at a time.
        window: longest sequence the target will reach.
        top_k: children proposed of a node.
        """
        self.max_depth = 32
        self.loaded, self.experience = loaded, loaded.calibration
        self.feature_layers = loaded.feature_layers
        self._slots, self._window, self._top_k = slots, window, min(top_k, loaded.spec.draft_vocab_size)
        self._backlog = Backlog(lambda states, rows: self.runner.features(states, rows))
        self._requests: Sequence[DraftRequest] = ()
        self._tree_rows = TreeRows(0)
        self._states = torch.empty(0)
        self._state_of: dict[int, int] = {}

    @cached_property
    def runner(self) -> HeadRunner:
        """The head with its cache, which is made when it is first needed."""
        positions = self._window + self.max_depth + 1
        return HeadRunner(self.loaded, self._slots, self._window + self.max_depth * self._top_k, positions)

    @property
    def fingerprint(self) -> str:
        """Short hash of the head."""
        return self.loaded.fingerprint

    def fresh(self) -> Eagle3Drafter:
        """The same head with an empty cache."""
        return Eagle3Drafter(self.loaded, self._slots, self._window, self._top_k)

    def rehearsal(self, batch: int, rows: int, context: int) -> Callable[[], None] | None:
        """A level of the head, its choice of children included."""
        if context + rows > self._window:
            return None
        states = torch.zeros(batch * rows, self.loaded.spec.hidden_size, dtype=self.loaded.dtype)
        states = states.to(self.loaded.device)
        nodes = np.arange(batch * rows)
        tokens = nodes % min(100, self.loaded.spec.vocab_size)

        def level() -> None:
            *_, logits = self.runner.level([level_group([rows] * batch, context)], tokens, states, nodes)
            self._propose(nodes, logits, [0.0] * len(nodes))

        return level

    def absorb(
        self, request_ids: Sequence[int], counts: Sequence[int], features: torch.Tensor, rows: Ints | None = None
    ) -> None:
        """Keeps the hidden states of new tokens until the next level is wanted.

        `fc` waits too, so that steps without speculation do not pay for it.
        """
        self._backlog.add(request_ids, counts, features, rows)

    def unread(self, requests: Sequence[DraftRequest]) -> int:
        """Tokens whose features wait."""
        return self._backlog.rows_of([request.id for request in requests])

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        """Seats the batch; nothing is read before a level is wanted."""
        self.runner.seat([request.id for request in requests])
        self._requests = requests
        self._tree_rows = TreeRows(len(requests))

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """The `top_k` most likely children of every frontier node."""
        at_roots = len(frontier) > 0 and bool((frontier < forest.batch).all())
        logits = self._read_committed(frontier) if at_roots else self._read_level(forest, frontier)
        temperatures = [self._requests[request].temperature for request in forest.request[frontier].tolist()]
        return self._propose(frontier, logits, temperatures)

    def _propose(self, nodes: Ints, logits: torch.Tensor, temperatures: Sequence[float]) -> Candidates:
        return top_children(nodes, logits, temperatures, self._top_k, self.loaded.token_ids)

    def _read_committed(self, roots: Ints) -> torch.Tensor:
        """Reads what was committed since the last time; the logits after each request's last token."""
        cached = self.runner.seating.cached
        self._read_early(roots)
        pending = [self._pending(root) for root in roots.tolist()]
        features = self._backlog.take([self._requests[root].id for root in roots.tolist()])
        catch_up = CatchUp(pending)
        rows = _rows_of(catch_up.order, pending)
        for one in pending:
            cached[self._requests[one.slot].id] = one.cached + len(one.tokens)
        last = catch_up.last_rows(roots.tolist())
        states, places, logits = self.runner.level(catch_up.groups, catch_up.tokens, features, last, rows)
        self._remember(roots, states, places)
        return logits

    def _pending(self, root: int, most: int | None = None) -> Pending:
        """What a request has to read, or the first `most` tokens of it."""
        request = self._requests[root]
        # Row j reads token j + 1: the features of the last token come with the next step.
        start = self.runner.seating.cached[request.id]
        tokens = request.tokens[start + 1 :]
        assert self._backlog.rows(request.id) == len(tokens), "a committed token without its features"
        return Pending(root, start, tokens if most is None else tokens[:most])

    def _read_early(self, roots: Ints) -> None:
        """Reads the beginnings of the longest backlogs until what is left fits into a pass, or is short for everybody.

        A pass over everything would take memory for everything.
        """
        rows = {root: self._backlog.rows(self._requests[root].id) for root in roots.tolist()}
        over = sum(rows.values()) - _MOST_ROWS
        for root in sorted(rows, key=lambda root: rows[root], reverse=True):
            if over <= 0 or rows[root] <= _LEAST_AHEAD:
                break
            early = min(rows[root] - 1, max(over, _LEAST_AHEAD))  # its last token is read with everybody's
            self._read_ahead(self._pending(root, early))
            over -= early

    def _read_ahead(self, pending: Pending) -> None:
        """Reads tokens of one request whose children nobody asks for."""
        request_id = self._requests[pending.slot].id
        features = self._backlog.take([request_id], len(pending.tokens))
        for begin in range(0, len(pending.tokens), _MOST_ROWS):
            tokens = np.array(pending.tokens[begin : begin + _MOST_ROWS], np.int64)
            group = causal_group(pending.slot, pending.cached + begin, len(tokens))
            self.runner.forward([group], tokens, features[begin : begin + len(tokens)])
        self.runner.seating.cached[request_id] = pending.cached + len(pending.tokens)

    def _read_level(self, forest: Forest, nodes: Ints) -> torch.Tensor:
        """Feeds one level of nodes behind the tree rows already cached; in the order of `nodes`."""
        cached = self.runner.seating.cached
        base = np.array([cached.get(request.id, 0) for request in self._requests])
        order = None if len(self._requests) == 1 else np.argsort(forest.request[nodes], kind="stable")
        ordered = nodes if order is None else nodes[order]
        group = self._tree_rows.group(forest, ordered, base)
        parents = np.array([self._state_of[parent] for parent in forest.parent[ordered].tolist()])
        back = np.arange(len(nodes)) if order is None else np.argsort(order)
        states, places, logits = self.runner.level([group], forest.token[ordered], self._states, back, parents)
        self._remember(nodes, states, places)
        return logits

    def _remember(self, nodes: Ints, states: torch.Tensor, places: Ints) -> None:
        """Keeps the states of the level just read, at `places`: its nodes are the parents of the next one."""
        self._states = states
        self._state_of = dict(zip(nodes.tolist(), places.tolist(), strict=True))

    @property
    def adopts(self) -> bool:
        """It keeps the features of every token of a running request, read or not."""
        return True

    def adopt(self, request_id: int, donor_id: int, most: int) -> int:
        """Copies rows and, behind them, features that wait to be read.

        Row j holds token j + 1, so only `most` - 1 rows are about shared tokens. What a retired request had not read is
        gone.
        """
        seating = self.runner.seating
        known = seating.cached.get(donor_id, seating.retired.get(donor_id, 0))
        rows = min(known, most - 1)
        if rows:
            self.runner.share(donor_id, request_id, rows)
        waiting = min(self._backlog.rows(donor_id), most - rows) if rows == known else 0
        if waiting:
            self._backlog.copy(donor_id, request_id, waiting)
        return rows + waiting

    def retire(self, request_id: int) -> None:
        """Keeps the rows until their slot is needed; features that nobody read go."""
        self._backlog.forget(request_id)
        self.runner.seating.retire(request_id)

    def release(self, request_id: int) -> None:
        """Empties a request's slot and drops its features."""
        self._backlog.forget(request_id)
        self.runner.seating.release(request_id)


def _rows_of(order: Sequence[Pending], pending: Sequence[Pending]) -> Ints | None:
    """Rows of the features, which are in the order of `pending`, in another order; None if it is the same."""
    if all(mine is theirs for mine, theirs in zip(order, pending, strict=True)):
        return None
    ends = np.cumsum([len(one.tokens) for one in pending])
    end_of = {one.slot: int(end) for one, end in zip(pending, ends, strict=True)}
    return np.concatenate([np.arange(end_of[one.slot] - len(one.tokens), end_of[one.slot]) for one in order])
