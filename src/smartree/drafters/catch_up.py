"""Committed tokens that a drafter has not read yet, as rows of one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

import numpy as np

from smartree.models.packed_pass import RowGroup, causal_group
from smartree.tree.forest import Ints

_SHORT, _LONG = 8, 64  # tokens of a request that never get an attention call of their own, or always


@dataclass(frozen=True, slots=True)
class Pending:
    """What one request has to read.

    Attributes:
        slot: its cache slot, which is its place in the batch.
        cached: rows it has read.
        tokens: those that are new, at least one.
    """

    slot: int
    cached: int
    tokens: Sequence[int]


class CatchUp:
    """One pass that lets every request read what is new.

    Attributes:
        order: the requests as their rows follow each other.
        groups: the rows' layout.
        tokens: [N] token ids.
    """

    def __init__(self, pending: Sequence[Pending]) -> None:
        self.order, self.groups = list(pending), []
        lengths = [len(one.tokens) for one in pending]
        if max(lengths) > _SHORT:
            # Attention pads a group to its longest: a short prompt among fifteen single tokens made a level eight times
            # as long. So those that are much longer than the rest get a call of their own.
            most = min(_LONG, max(_SHORT, 2 * median(lengths)))
            long = [one for one in pending if len(one.tokens) > most]
            pending = [one for one in pending if len(one.tokens) <= most]
            self.order = [*long, *pending]
            self.groups = [causal_group(one.slot, one.cached, len(one.tokens)) for one in long]
            lengths = [len(one.tokens) for one in self.order]
        if pending:
            self.groups.append(_causal_rows(pending))
        self.tokens = np.array([token for one in self.order for token in one.tokens], np.int64)
        self._last = dict(zip([one.slot for one in self.order], accumulate(lengths), strict=True))

    def last_rows(self, slots: Sequence[int]) -> Ints:
        """Row of the last token of each of these requests."""
        return np.array([self._last[slot] - 1 for slot in slots], np.int64)


def _causal_rows(pending: Sequence[Pending]) -> RowGroup:
    """One group of requests that each read a few tokens."""
    sizes = np.array([len(one.tokens) for one in pending])
    cached = np.array([one.cached for one in pending])
    ends = np.cumsum(sizes)
    depths = np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes)
    return RowGroup([one.slot for one in pending], cached, cached, sizes, depths, causal=True)
