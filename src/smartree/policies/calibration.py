"""Path probabilities that mean what they say: acceptance learned per depth, rank and draft probability."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smartree.tree.forest import Candidates, Floats, Forest, Ints

_DEPTHS, _RANKS, _BINS = 8, 6, 12
_HIGHEST_LOGIT = 5.0


class Calibration:
    """Online table over (temperature class, depth, rank, draft probability): Beta-smoothed acceptance rates.

    The prior mean of a cell is the draft probability itself, worth `strength` observations, so an unseen cell passes
    the drafter's own word on. Counts fade, so that the table follows a change of text.
    """

    def __init__(self, strength: float = 6.0, window: float = 4000.0) -> None:
        """Args:
        strength: observations that the prior is worth.
        window: observations of a cell over which its counts fade.
        """
        self._strength, self._keep = strength, 1 - 1 / window
        shape = (2, _DEPTHS, _RANKS, _BINS)
        self._accepted, self._seen = np.zeros(shape), np.zeros(shape)

    def __call__(self, forest: Forest, candidates: Candidates, sampled: NDArray[np.bool_]) -> Candidates:
        """Candidates with calibrated probabilities; the drafter's own become their features.

        Args:
            forest: where their parents are.
            candidates: as the drafter proposed them.
            sampled: [B] True for requests with a temperature above 0.
        """
        raw = candidates.probabilities
        parents = candidates.parents
        cell = self._cell(sampled[forest.request[parents]], forest.depth[parents] + 1, candidates.ranks, raw)
        mean = (self._accepted[cell] + self._strength * raw) / (self._seen[cell] + self._strength)
        return Candidates(
            parents, candidates.tokens, np.clip(mean, 1e-6, 1.0), candidates.ranks, candidates.handles, raw
        )

    def learn(self, forest: Forest, nodes: Ints, accepted: NDArray[np.bool_], sampled: NDArray[np.bool_]) -> None:
        """Counts what became of `nodes`, all of whose ancestors were accepted.

        Args:
            forest: the step's forest; its features hold the drafter's own probabilities.
            nodes: ids of the observed nodes.
            accepted: whether each was.
            sampled: [B] True for requests with a temperature above 0.
        """
        cell = self._cell(
            sampled[forest.request[nodes]], forest.depth[nodes], forest.rank[nodes], forest.feature[nodes]
        )
        flat = np.ravel_multi_index(cell, self._seen.shape)
        counts = np.bincount(flat, minlength=self._seen.size).reshape(self._seen.shape)
        hits = np.bincount(flat, weights=accepted, minlength=self._seen.size).reshape(self._seen.shape)
        faded = self._keep**counts
        self._seen = self._seen * faded + counts
        self._accepted = self._accepted * faded + hits

    @staticmethod
    def _cell(sampled: NDArray[np.bool_], depth: Ints, rank: Ints, raw: Floats) -> tuple[Ints, Ints, Ints, Ints]:
        clipped = np.clip(raw, 1e-6, 1 - 1e-6)
        logit = np.log(clipped) - np.log1p(-clipped)
        share = (logit + _HIGHEST_LOGIT) / (2 * _HIGHEST_LOGIT)
        bins = np.clip((share * _BINS).astype(np.int64), 0, _BINS - 1)
        return sampled.astype(np.int64), np.minimum(depth, _DEPTHS) - 1, np.minimum(rank, _RANKS - 1), bins
