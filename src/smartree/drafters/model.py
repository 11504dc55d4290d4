"""An independent causal LM as drafter: same vocabulary, own cache, tree levels packed for all requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch

from smartree.drafters.base import BaseDrafter, DraftRequest
from smartree.drafters.catch_up import CatchUp, Pending
from smartree.drafters.proposing import top_children
from smartree.drafters.tree_rows import TreeRows
from smartree.models.load import LoadedModel
from smartree.models.rehearsal import rehearsal
from smartree.models.runner import ModelRunner
from smartree.tree.forest import Candidates, Forest, Ints


class ModelDrafter(BaseDrafter):
    """Drafts with a smaller model. The first level of a step also reads the tokens committed since the last one.

    Tree rows are cached behind the committed ones, level by level; accepted ones that were expanded are kept, so the
    next step reads only what is new.
    """

    name = "model"
    by_level = True

    def __init__(self, loaded: LoadedModel, vocab_size: int, slots: int, window: int, top_k: int = 10) -> None:
        """Args:
        loaded: the draft model.
        vocab_size: the target's; draft logits beyond it are cut.
        slots: most requests at a time.
        window: longest sequence the target will reach.
        top_k: children proposed of a node.
        """
        self.max_depth = 32
        self._settings = (loaded, vocab_size, slots, window, top_k)
        self.loaded = loaded
        self._window = loaded.window
        self._vocab_size = min(vocab_size, loaded.vocab_size)
        self._top_k = min(top_k, self._vocab_size)
        self._requests: Sequence[DraftRequest] = ()
        self._tree_rows = TreeRows(0)

    @cached_property
    def runner(self) -> ModelRunner:
        """The model with its cache, which is made when it is first needed."""
        loaded, _, slots, window, top_k = self._settings
        return ModelRunner(loaded, slots, min(window + self.max_depth * top_k, loaded.window))

    @property
    def fingerprint(self) -> str:
        """Short hash of the draft model, for profile keys."""
        return self.loaded.fingerprint

    def fresh(self) -> ModelDrafter:
        """The same model with an empty cache."""
        return ModelDrafter(*self._settings)

    def rehearsal(self, batch: int, rows: int, context: int) -> Callable[[], None] | None:
        """A level of the draft model, its choice of children included."""
        if context + rows > self.runner.window:
            return None
        run = rehearsal(self.runner, [rows] * batch, context)
        nodes = np.zeros(batch * rows, np.int64)

        def level() -> None:
            top_children(nodes, run()[:, : self._vocab_size], [0.0] * len(nodes), self._top_k)

        return level

    def unread(self, requests: Sequence[DraftRequest]) -> int:
        """Tokens that it has no rows of."""
        cached = self.runner.seating.cached
        return sum(len(request.tokens) - cached.get(request.id, 0) for request in requests)

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        """Seats the batch; nothing is read before a level is wanted."""
        self.runner.seat([request.id for request in requests])
        self._requests = requests
        self._tree_rows = TreeRows(len(requests))

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """The `top_k` most likely children of every frontier node that the draft model's window has room for."""
        requests = forest.request[frontier]
        lengths = np.array([len(request.tokens) for request in self._requests])
        used = lengths[requests] + forest.depth[frontier] + self._tree_rows.counts[requests]
        frontier = frontier[used + 1 < self._window]
        if len(frontier) == 0:
            return Candidates.empty()
        at_roots = frontier < forest.batch
        logits = self._read_committed(frontier) if at_roots.all() else self._read_level(forest, frontier)
        temperatures = [self._requests[request].temperature for request in forest.request[frontier].tolist()]
        return top_children(frontier, logits[:, : self._vocab_size], temperatures, self._top_k)

    def _read_committed(self, roots: Ints) -> torch.Tensor:
        """Reads what was committed since the last time; logits after each request's last token."""
        cached = self.runner.seating.cached
        pending = []
        for root in roots.tolist():
            request = self._requests[root]
            pending.append(Pending(root, cached[request.id], request.tokens[cached[request.id] :]))
        catch_up = CatchUp(pending)
        keep = catch_up.last_rows(roots.tolist())
        order = np.argsort(keep)
        logits = self.runner.forward(catch_up.groups, self._known(catch_up.tokens), keep[order])
        for one in catch_up.order:
            cached[self._requests[one.slot].id] = one.cached + len(one.tokens)
        return logits[np.argsort(order)]

    def _read_level(self, forest: Forest, nodes: Ints) -> torch.Tensor:
        """Feeds one level of nodes behind the tree rows already cached; logits in the order of `nodes`."""
        cached = self.runner.seating.cached
        base = np.array([cached.get(request.id, 0) for request in self._requests])
        order = np.argsort(forest.request[nodes], kind="stable")
        ordered = nodes[order]
        group = self._tree_rows.group(forest, ordered, base)
        logits = self.runner.forward([group], self._known(forest.token[ordered]))
        return logits[np.argsort(order)]

    def _known(self, tokens: Ints) -> Ints:
        """Tokens as the draft model may read them: padding of the target's vocabulary becomes token 0."""
        return np.where(tokens < self.loaded.vocab_size, tokens, 0)

    def commit(self, forest: Forest, accepted: Ints) -> None:
        """Keeps the rows of accepted nodes that were fed; the path's rest is read with the next step."""
        paths: dict[int, list[int]] = {}
        places = self._tree_rows.row_of(accepted)
        for place, request in zip(places.tolist(), forest.request[accepted].tolist(), strict=True):
            if place >= 0:  # a node below one that was not fed cannot exist, so paths have no gaps
                paths.setdefault(request, []).append(place)
        ids = [self._requests[request].id for request in paths]
        bases = [self.runner.seating.cached[one] for one in ids]
        rows = [[base + row for row in path] for base, path in zip(bases, paths.values(), strict=True)]
        self.runner.commit_all(ids, rows)

    def adopt(self, request_id: int, donor_id: int, most: int) -> int:
        """Copies the rows that it has; it reads the rest of the tokens itself."""
        seating = self.runner.seating
        rows = min(seating.cached.get(donor_id, seating.retired.get(donor_id, 0)), most)
        if rows:
            self.runner.share(donor_id, request_id, rows)
        return most

    def retire(self, request_id: int) -> None:
        """Keeps a request's rows until their slot is needed."""
        self.runner.seating.retire(request_id)

    def release(self, request_id: int) -> None:
        """Empties a request's slot."""
        self.runner.seating.release(request_id)
