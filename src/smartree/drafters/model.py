"""An independent causal LM as drafter: same vocabulary, own cache, tree levels packed for all requests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.drafters.base import DraftRequest
from smartree.models.load import LoadedModel
from smartree.models.packed_pass import RowGroup, causal_group
from smartree.models.runner import ModelRunner
from smartree.tree.forest import Candidates, Forest, Ints, Proposal

_LONG_CATCH_UP = 64  # requests that must read more tokens than this get an attention call of their own


class ModelDrafter:
    """Drafts with a smaller model. The first level of a step also reads the tokens committed since the last one.

    Tree rows are cached behind the committed ones, level by level; accepted ones that were expanded are kept, so the
    next step reads only what is new.
    """

    name = "model"
    proposal = Proposal.POINT_MASS
    by_level = True
    calibrated = False

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
        self._tree_rows = _TreeRows(0)

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

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        """Seats the batch; nothing is read before a level is wanted."""
        self.runner.seat([request.id for request in requests])
        self._requests = requests
        self._tree_rows = _TreeRows(len(requests))

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
        return self._children(frontier, forest, logits)

    def _children(self, frontier: Ints, forest: Forest, logits: torch.Tensor) -> Candidates:
        scores = logits[:, : self._vocab_size].float()
        scale = [self._requests[request].temperature or 1.0 for request in forest.request[frontier].tolist()]
        scores = torch.log_softmax(scores / scores.new_tensor(scale)[:, None], dim=-1)
        best = scores.topk(self._top_k, dim=-1)
        count = len(frontier) * self._top_k
        probabilities = best.values.exp().cpu().numpy().astype(np.float64).ravel()
        return Candidates(
            np.repeat(frontier, self._top_k),
            best.indices.cpu().numpy().ravel(),
            np.clip(probabilities, 1e-9, 1.0),
            np.tile(np.arange(self._top_k), len(frontier)),
            np.full(count, -1),
            np.zeros(count),
        )

    def _read_committed(self, roots: Ints) -> torch.Tensor:
        """Reads what was committed since the last time; logits after each request's last token."""
        seating = self.runner.seating
        pending = []
        for root in roots.tolist():
            request = self._requests[root]
            pending.append((root, seating.cached[request.id], request.tokens[seating.cached[request.id] :]))
        long = [entry for entry in pending if len(entry[2]) > _LONG_CATCH_UP]
        short = [entry for entry in pending if len(entry[2]) <= _LONG_CATCH_UP]
        groups = [causal_group(root, cached, len(tokens)) for root, cached, tokens in long]
        if short:
            groups.append(_causal_rows(short))
        order = long + short
        ends = np.cumsum([len(tokens) for _, _, tokens in order]) - 1
        tokens = np.array([token for _, _, tokens in order for token in tokens], np.int64)
        logits = self.runner.forward(groups, self._known(tokens), ends)
        for root, cached, new in order:
            seating.cached[self._requests[root].id] = cached + len(new)
        place = {root: row for row, (root, _, _) in enumerate(order)}
        return logits[[place[root] for root in roots.tolist()]]

    def _read_level(self, forest: Forest, nodes: Ints) -> torch.Tensor:
        """Feeds one level of nodes behind the tree rows already cached; logits in the order of `nodes`."""
        cached = self.runner.seating.cached
        base = np.array([cached.get(request.id, 0) for request in self._requests])
        order = np.argsort(forest.request[nodes], kind="stable")
        ordered = nodes[order]
        counts = self._tree_rows.counts.copy()
        mask, column_depths, sizes = self._tree_rows.add(forest, ordered)
        group = RowGroup(
            list(range(len(self._requests))), base, base + counts, sizes, forest.depth[ordered] - 1, mask, column_depths
        )
        logits = self.runner.forward([group], self._known(forest.token[ordered]))
        return logits[np.argsort(order)]

    def _known(self, tokens: Ints) -> Ints:
        """Tokens as the draft model may read them: padding of the target's vocabulary becomes token 0."""
        return np.where(tokens < self.loaded.vocab_size, tokens, 0)

    def learn(self, forest: Forest, nodes: Ints, accepted: NDArray[np.bool_]) -> None:
        """The engine calibrates; a fixed model learns nothing."""

    def commit(self, forest: Forest, accepted: Ints) -> None:
        """Keeps the rows of accepted nodes that were fed; the path's rest is read with the next step."""
        paths: dict[int, list[int]] = {}
        for node, request in zip(accepted.tolist(), forest.request[accepted].tolist(), strict=True):
            row = self._tree_rows.row_of.get(node)
            if row is not None:  # a node below one that was not fed cannot exist, so paths have no gaps
                paths.setdefault(request, []).append(row)
        for request, rows in paths.items():
            request_id = self._requests[request].id
            base = self.runner.seating.cached[request_id]
            self.runner.commit(request_id, [base + row for row in rows])

    def release(self, request_id: int) -> None:
        """Empties a request's slot."""
        self.runner.seating.release(request_id)


def _causal_rows(pending: Sequence[tuple[int, int, Sequence[int]]]) -> RowGroup:
    """One group of requests that each read a few tokens."""
    sizes = np.array([len(tokens) for _, _, tokens in pending])
    cached = np.array([rows for _, rows, _ in pending])
    width = int(sizes.max())
    inside = np.arange(width) < sizes[:, None]
    mask = np.tril(np.ones((width, width), bool)) & inside[:, :, None] & inside[:, None, :]
    depths = np.concatenate([np.arange(size) for size in sizes])
    return RowGroup([root for root, _, _ in pending], cached, cached, sizes, depths, mask)


class _TreeRows:
    """Cached tree rows of a step: which node is where, and what each row sees."""

    def __init__(self, batch: int) -> None:
        self.counts = np.zeros(batch, np.int64)
        self.row_of: dict[int, int] = {}
        self._sees = np.zeros((batch, 0, 0), bool)
        self._depths = np.zeros((batch, 0), np.int64)

    def add(self, forest: Forest, nodes: Ints) -> tuple[NDArray[np.bool_], Ints, Ints]:
        """Adds nodes, ordered by request.

        Returns:
            [b, n, m] visibility of all tree rows for the new ones, [b, m] depths of the rows, [b] new rows.
        """
        batch = len(self.counts)
        requests = forest.request[nodes]
        sizes = np.bincount(requests, minlength=batch)
        total = int((self.counts + sizes).max())
        room = total - self._sees.shape[1]
        if room > 0:
            self._sees = np.pad(self._sees, ((0, 0), (0, room), (0, room)))
            self._depths = np.pad(self._depths, ((0, 0), (0, room)))
        mask = np.zeros((batch, int(sizes.max()), total), bool)
        starts = np.cumsum(sizes) - sizes
        local = np.arange(len(nodes)) - starts[requests]
        rows = self.counts[requests] + local
        above = np.array([self.row_of.get(parent, -1) for parent in forest.parent[nodes].tolist()])
        self._sees[requests, rows] = np.where(above[:, None] >= 0, self._sees[requests, above], False)
        self._sees[requests, rows, rows] = True
        self._depths[requests, rows] = forest.depth[nodes] - 1
        mask[requests, local] = self._sees[requests, rows, :total]
        self.row_of.update(zip(nodes.tolist(), rows.tolist(), strict=True))
        self.counts = self.counts + sizes
        return mask, self._depths[:, :total], sizes
