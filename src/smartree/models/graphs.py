"""Passes as CUDA graphs: the host launches one graph instead of every kernel of every layer.

A pass of a few tokens keeps a GPU busy for less time than the host needs to launch its kernels. A graph is recorded
once for each bucket (`models/buckets.py`) and launched again with other contents in the same tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from smartree.models.buckets import Bucket, StaticPass, bucket_of
from smartree.models.cache import SlotCache
from smartree.models.packed_pass import RowGroup
from smartree.models.taps import LayerTaps

Run = Callable[[], torch.Tensor]
Record = Callable[[Run], Run]
_SEEN_BEFORE = 3  # passes of a bucket that run eagerly: recording takes as long as tens of passes
_MOST_GRAPHS = 64  # each keeps its activations
_WARM_UP = 2


class CudaRecorder:
    """Records what a function launches. Recordings share their memory: only the latest one's results are valid."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """A function that launches the same again and gives the same tensor.

        Args:
            run: works on tensors that stay where they are, and never waits for the device.
        """
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels are chosen and libraries set up outside the recording
            for _ in range(_WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A bucket's tensors, what launches it, and the hidden states that taps saw when it was recorded."""

    static: StaticPass
    launch: Run
    states: dict[int, torch.Tensor]


class GraphedPasses:
    """The recorded passes of one model over one cache."""

    def __init__(
        self, model: PreTrainedModel, cache: SlotCache, taps: LayerTaps | None, record: Record | None = None
    ) -> None:
        """Args:
        model: runs the passes.
        cache: of the runner. When it grows, all recordings are forgotten: they know where it lay.
        taps: of the runner.
        record: makes a launch of a run; None records CUDA graphs.
        """
        self._model, self._cache, self._taps = model, cache, taps
        self._record = record or CudaRecorder()
        self._rows = cache.rows
        self._seen: Counter[Bucket] = Counter()
        self._recorded: dict[Bucket, _Recorded] = {}

    def __len__(self) -> int:
        return len(self._recorded)

    def run(self, groups: Sequence[RowGroup], tokens: NDArray[np.int64], most_rows: int) -> torch.Tensor | None:
        """The logits [N, vocabulary] of a pass, valid until the next one; None if it has to run eagerly.

        Args:
            groups: who the rows belong to.
            tokens: [N] token ids.
            most_rows: rows that a slot of the cache may ever need.
        """
        bucket = bucket_of(groups, most_rows)
        if bucket is None:
            return None
        self._seen[bucket] += 1
        if bucket not in self._recorded and (self._seen[bucket] <= _SEEN_BEFORE or len(self._recorded) >= _MOST_GRAPHS):
            return None
        self._cache.ensure_rows(bucket.reach + 1, most_rows)
        if self._cache.rows != self._rows:
            self._rows = self._cache.rows
            self._recorded.clear()
        recorded = self._recorded.get(bucket)
        if recorded is None:
            recorded = self._recorded[bucket] = self._make(bucket, groups[0], tokens)
        else:
            recorded.static.load(groups[0], tokens)
        logits = recorded.launch()
        if self._taps is not None:
            self._taps.restore(recorded.states)
        return logits[: groups[0].rows]

    def _make(self, bucket: Bucket, group: RowGroup, tokens: NDArray[np.int64]) -> _Recorded:
        """Records a bucket, loaded with a pass."""
        static = StaticPass(bucket, self._cache)
        static.load(group, tokens)

        def run() -> torch.Tensor:
            output = self._model(
                input_ids=static.tokens[None],
                position_ids=static.positions[None],
                use_cache=False,
                logits_to_keep=0,
                smartree=static,
            )
            logits: torch.Tensor = output.logits[0]
            return logits

        launch = self._record(run)
        return _Recorded(static, launch, self._taps.states() if self._taps is not None else {})
