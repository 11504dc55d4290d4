"""Lays a step out as rows of one target pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smartree.engine.request import Request
from smartree.engine.scheduler import StepPlan
from smartree.models.packed_pass import RowGroup, causal_group
from smartree.models.seating import Seating
from smartree.tree.packed import PackedTrees


@dataclass(frozen=True, slots=True)
class TargetPass:
    """Input of a target pass: the trees of all decoding requests, then the prompt chunks.

    Attributes:
        groups: who the rows belong to.
        tokens: [N] token ids.
        keep: [K] rows whose logits are wanted: every tree row, then the last row of each completed prompt; None for
            all.
        logits: False if nobody needs more than the largest of each row.
    """

    groups: list[RowGroup]
    tokens: NDArray[np.int64]
    keep: NDArray[np.int64] | None
    logits: bool = True

    @staticmethod
    def of(plan: StepPlan, packed: PackedTrees, seating: Seating) -> TargetPass:
        """The pass that a plan and its trees need."""
        groups: list[RowGroup] = []
        if plan.decoding:
            cached = np.array([seating.cached[request.id] for request in plan.decoding])
            slots, sizes = range(len(plan.decoding)), packed.sizes
            plain = len(packed.nodes) == len(slots)
            above = None if plain else packed.above()
            groups.append(RowGroup(slots, cached, cached, sizes, packed.depths, causal=plain, above=above))
        if not plan.chunks:
            return TargetPass(groups, packed.tokens, None, _reads_logits(plan.decoding))
        tokens, rows = [packed.tokens], len(packed.tokens)
        ends = []
        for chunk in plan.chunks:
            groups.append(causal_group(seating.slot(chunk.request.id), chunk.start, chunk.end - chunk.start))
            tokens.append(np.array(chunk.request.tokens[chunk.start : chunk.end], np.int64))
            rows += chunk.end - chunk.start
            if chunk.last:
                ends.append(rows - 1)
        keep = np.concatenate([np.arange(len(packed.tokens)), np.array(ends, np.int64)])
        # A pass always returns some logits; nobody reads these if no prompt was completed.
        keep = keep if len(keep) else np.array([rows - 1])
        logits = _reads_logits([*plan.decoding, *(chunk.request for chunk in plan.chunks if chunk.last)])
        return TargetPass(groups, np.concatenate(tokens), keep, logits)


def _reads_logits(requests: Sequence[Request]) -> bool:
    """True if one of them asks for more than the largest logit."""
    return not all(request.takes_best and request.params.logprobs is None for request in requests)
