"""A drafter that is right as often as it is told to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from smartree.drafters.base import BaseDrafter, Drafter, DraftRequest
from smartree.simulate.acceptance import AcceptanceLaw, ParametricPools
from smartree.tree.forest import Candidates, Forest, Ints

_STEPS = 4000  # of a simulated process; then it starts again


class AssumedDrafter(BaseDrafter):
    """Proposes trees whose acceptance follows a law (smartree.simulate.acceptance), for a target that is known to say
    successor[t] after t.

    What a level costs is real: `carrier`, a small model with weights of its own, runs every level beside it, and what
    it says is thrown away.
    """

    name = "assumed"

    def __init__(self, law: AcceptanceLaw, successor: NDArray[np.int64], carrier: Drafter) -> None:
        """Args:
        law: how often its choices are accepted, by rank and depth.
        successor: [vocabulary] what the target says after each token.
        carrier: runs a level's worth of work; one that runs by level.
        """
        self._law, self._successor, self._carrier = law, successor, carrier
        self.by_level, self.calibrated = True, law.optimism == 0
        self.max_depth = carrier.max_depth
        self._pools: dict[int, ParametricPools] = {}
        self._step = -1

    @property
    def fingerprint(self) -> str:
        """Its levels cost what the carrier's do."""
        return self._carrier.fingerprint

    def fresh(self) -> AssumedDrafter:
        """The same law from its first step, with a fresh carrier."""
        return AssumedDrafter(self._law, self._successor, self._carrier.fresh())

    def rehearsal(self, batch: int, rows: int, context: int) -> Callable[[], None] | None:
        """A level of the carrier."""
        return self._carrier.rehearsal(batch, rows, context)

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        """The next step of the process for a batch of this size."""
        self._carrier.begin(requests, forest)
        self._step = (self._step + 1) % _STEPS
        if forest.batch not in self._pools:
            self._pools[forest.batch] = ParametricPools(self._law, forest.batch, _STEPS)
        self._pools[forest.batch].begin(self._step)

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """The process's children; the one that it accepts gets the target's token, the others get other ones."""
        self._carrier.expand(forest, frontier)
        drawn = self._pools[forest.batch].expand(forest, frontier)
        true = self._successor[forest.token[drawn.parents]]
        others = (true + 1 + drawn.ranks) % len(self._successor)
        tokens = np.where(drawn.handles & 1, true, others)
        return Candidates(drawn.parents, tokens, drawn.probabilities, drawn.ranks, drawn.handles, drawn.features)

    def commit(self, forest: Forest, accepted: Ints) -> None:
        """The carrier keeps its rows."""
        self._carrier.commit(forest, accepted)

    def release(self, request_id: int) -> None:
        """The carrier empties its slot."""
        self._carrier.release(request_id)
