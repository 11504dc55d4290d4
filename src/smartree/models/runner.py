"""A model with its cache: runs packed passes and commits accepted rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from smartree.models.cache import SlotCache
from smartree.models.crew import Mirror, RowMove, SlotCopy
from smartree.models.graphs import GraphedPasses
from smartree.models.load import LoadedModel
from smartree.models.native.decoder import NativeRunner
from smartree.models.native.groups import Gathered
from smartree.models.packed_pass import PackedPass, RowGroup
from smartree.models.seating import Seating
from smartree.models.taps import LayerTaps

_FIRST_ROWS = 544  # see `odd_rows`


class ModelRunner:
    """Runs packed passes of one causal LM over its own slot cache."""

    def __init__(
        self, loaded: LoadedModel, slots: int, window: int, tapped: Sequence[int] = (), cuda_graphs: bool = False
    ) -> None:
        """Args:
        loaded: the model.
        slots: most requests at a time; one more slot lets two change places.
        window: most rows a request will ever need.
        tapped: layers whose hidden states are kept after a pass.
        cuda_graphs: whether passes of shapes that come up again are recorded; has no effect on a CPU, and none where
            several processes share the model.
        """
        self.model = loaded.model
        self.device, self.window, self.vocab_size = loaded.device, window, loaded.vocab_size
        self.taps = LayerTaps(loaded.model, tapped) if tapped else None
        rows = min(_FIRST_ROWS, window)
        self.seating = Seating(slots + 1)
        self.cache = SlotCache(loaded.cache_shape, slots + 1, rows, loaded.dtype, loaded.device)
        self._native = NativeRunner(loaded.native, self.cache) if loaded.native is not None else None
        self._embed = loaded.model.get_input_embeddings()
        self.best: NDArray[np.int64] | None = None
        """[K] the first of the largest logits of each row of the last pass, where that comes with the pass."""
        graphed = cuda_graphs and loaded.device.type == "cuda" and loaded.crew is None
        self.graphs = GraphedPasses(loaded.model, self.cache, self.taps) if graphed else None
        self._mirror = Mirror(loaded.crew, loaded.number, slots, window) if loaded.crew is not None else None

    def forward(
        self,
        groups: Sequence[RowGroup],
        tokens: NDArray[np.int64],
        keep: NDArray[np.int64] | None = None,
        logits: bool = True,
    ) -> torch.Tensor:
        """Runs one pass and stores its rows.

        Args:
            groups: who the rows belong to.
            tokens: [N] token ids.
            keep: [K] rows whose logits are wanted; None wants all.
            logits: False if `best` will do where the pass gives it: writing 64 rows of logits down takes a hundredth
                of their pass, and 6 MB.

        Returns:
            [K, vocabulary] logits, valid until the next pass; [0, vocabulary] if `best` will do and is there.
        """
        if self._mirror is not None:
            self._mirror.passing(groups, tokens, keep)
        if self.graphs is not None and keep is None:
            with torch.inference_mode(), self.taps.listening() if self.taps else nullcontext():
                graphed = self.graphs.run(groups, tokens, self.window)
            if graphed is not None:
                return graphed
        self.cache.ensure_rows(max(group.reach for group in groups), self.window)
        if self._native is not None:
            return self._run_natively(self._native, groups, tokens, keep, logits)
        return self._run_with_torch(groups, tokens, keep)

    @torch.inference_mode()
    def _run_with_torch(
        self, groups: Sequence[RowGroup], tokens: NDArray[np.int64], keep: NDArray[np.int64] | None
    ) -> torch.Tensor:
        packed = PackedPass(groups, self.cache)
        with self.taps.listening() if self.taps else nullcontext():
            output = self.model(
                input_ids=torch.from_numpy(tokens).to(self.device)[None],
                position_ids=packed.positions[None],
                use_cache=False,
                logits_to_keep=0 if keep is None else torch.from_numpy(keep).to(self.device),
                smartree=packed,
            )
        logits: torch.Tensor = output.logits
        return logits[0]

    def _run_natively(
        self,
        native: NativeRunner,
        groups: Sequence[RowGroup],
        tokens: NDArray[np.int64],
        keep: NDArray[np.int64] | None,
        logits: bool,
    ) -> torch.Tensor:
        embed, layers = self._embed, self.taps.layers if self.taps else ()
        if type(embed) is nn.Embedding:
            inputs = Gathered(embed.weight, np.ascontiguousarray(tokens, dtype=np.int64))
        else:  # some scale what they look up
            with torch.inference_mode():
                inputs = Gathered(embed(torch.from_numpy(tokens)).contiguous())
        output = native.run(groups, inputs, keep, tapped=layers, logits=logits)
        if self.taps:
            self.taps.take(output.tapped)
        self.best = output.best
        return output.normed.new_empty(0, self.vocab_size) if output.logits is None else output.logits

    def commit(self, request_id: int, rows: Sequence[int]) -> None:
        """Makes `rows`, cached somewhere beyond the committed ones, the next committed rows of a request."""
        self.commit_all([request_id], [rows])

    def commit_all(self, request_ids: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        """`commit` for several requests at once: moving costs per call, not per row."""
        cached, moves = self.seating.cached, []
        for request_id, sources in zip(request_ids, rows, strict=True):
            start = cached[request_id]
            cached[request_id] += len(sources)
            if any(source != start + place for place, source in enumerate(sources)):
                moves.append(RowMove(self.seating.slot(request_id), tuple(sources), start))
        self._change(moves)

    def seat(self, request_ids: Sequence[int]) -> None:
        """Gives request i of the batch cache slot i, so that the batch's slots follow each other."""
        self._change([SlotCopy(move.source, move.target, move.rows) for move in self.seating.seat(request_ids)])

    def share(self, donor_id: int, request_id: int, rows: int) -> None:
        """Lets a new request begin with the first `rows` rows of another, which may have ended (`Seating.retire`)."""
        moves = self.seating.share(donor_id, request_id, rows)
        self._change([SlotCopy(move.source, move.target, move.rows) for move in moves])

    def _change(self, changes: Sequence[RowMove | SlotCopy]) -> None:
        if not changes:
            return
        self.change_cache(changes)
        if self._mirror is not None:
            self._mirror.changed(changes)

    @torch.inference_mode()
    def change_cache(self, changes: Sequence[RowMove | SlotCopy]) -> None:
        """Moves rows of slots and copies slots, in order; knows nothing of requests."""
        for kind, run in groupby(changes, type):
            if kind is RowMove:
                self._move([change for change in run if isinstance(change, RowMove)])
                continue
            for copy in run:
                assert isinstance(copy, SlotCopy)
                self.cache.copy_slot(copy.source, copy.target, copy.rows)

    def _move(self, moves: Sequence[RowMove]) -> None:
        """All at once, unless a slot comes up twice: a process that follows may get the moves of two steps together."""
        twice = len({move.slot for move in moves}) < len(moves)
        for part in [[move] for move in moves] if twice else [moves]:
            rows = [one for move in part for one in move.each()]
            if rows and self._native is not None:
                self._native.move(rows)
            elif rows:
                self.cache.move(rows)
