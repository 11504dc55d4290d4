"""Path probabilities that mean what they say: acceptance learned per depth, rank and draft probability."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smartree.cost.isotonic import isotonic
from smartree.errors import InputError
from smartree.tree.forest import Candidates, Floats, Forest, Ints

_CLASSES, _DEPTHS, _RANKS, _BINS = 2, 8, 6, 12
_ROWS = _CLASSES * _DEPTHS * _RANKS
_HIGHEST_LOGIT = 5.0
_CENTRES = (np.arange(_BINS) + 0.5) / _BINS * 2 * _HIGHEST_LOGIT - _HIGHEST_LOGIT
_ENOUGH = 50  # drafts of a depth that tell what is accepted there
_KNOWN_BEFORE = 60.0  # observations at most that what was saved of a bin counts as: the texts were others
_STALE_SHARE = 0.1  # a row is fitted again once it has grown by that much
_LEAST, _MOST = 1e-6, 1 - 1e-6  # probabilities with a logit that is worth anything
_SPACING = 64.0  # between the knots of two rows: logits lie within +-14, so that all rows make one rising sequence
_END = 20.0  # a knot beyond every logit, behind a row's own
_CLOSEST = 1e-9  # knots count as that far apart at least
_KNOTS = _BINS + 1
_DEPTH_KEYS = np.arange(_DEPTHS) * (_RANKS * _SPACING)  # by the parents' depth: children are one deeper
_RANK_KEYS = np.arange(_RANKS) * _SPACING
_SAMPLED_KEY = _DEPTHS * _RANKS * _SPACING


class Calibration:
    """Maps draft probabilities to acceptance rates, one monotone curve per (temperature class, depth, rank).

    Each curve has bins over the draft probability's logit. A bin's rate is Beta-smoothed with the drafter's own word as
    prior mean, worth `strength` observations, so what was never seen passes unchanged. Rates are made monotone over the
    bins (isotonic, weighted): a token the drafter likes better is never trusted less. Between bins the shift of the
    logit is interpolated. Counts fade, so that the curves follow a change of text.

    Only nodes whose ancestors were all accepted may be taught: for them acceptance is observed without selection, so
    the estimate is unbiased whatever trees were verified.
    """

    def __init__(self, strength: float = 6.0, window: float = 4000.0, lag: int = 1) -> None:
        """Args:
        strength: observations that the prior is worth.
        window: observations of a bin over which its counts fade.
        lag: steps whose observations are counted together; counting costs per call, not per observation.
        """
        self._lag = lag
        self._waiting: list[tuple[Floats, Ints, NDArray[np.bool_]]] = []
        self._strength, self._keep = strength, 1 - 1 / window
        self._counts = np.zeros((3, _ROWS, _BINS))
        self._seen, self._accepted, self._raw = self._counts
        self._new = np.zeros(_ROWS)
        self._knots = (np.append(_CENTRES, _END) + np.arange(_ROWS)[:, None] * _SPACING).reshape(-1)
        # What to add to a logit right of k knots of a row: from where on, how much there, and by how much it rises.
        self._pieces = np.zeros((_ROWS, _KNOTS, 3))

    def __call__(self, forest: Forest, candidates: Candidates, sampled: NDArray[np.bool_]) -> Candidates:
        """Candidates with calibrated probabilities; the drafter's own become their features.

        Args:
            forest: where their parents are.
            candidates: as the drafter proposed them.
            sampled: [B] True for requests with a temperature above 0.
        """
        raw, parents = candidates.probabilities, candidates.parents
        odds = np.maximum(raw, _LEAST)
        np.minimum(odds, _MOST, out=odds)
        odds /= 1.0 - odds
        logits = np.log(odds)
        places = self._knots.searchsorted(self._keys(forest, candidates, sampled) + logits, side="right")
        start, shifts, slope = self._pieces.reshape(-1, 3).take(places, axis=0).T
        logits -= start
        logits *= slope
        logits += shifts
        odds *= np.exp(logits, out=logits)
        odds /= odds + 1.0
        if len(raw) and raw[raw.argmax()] > _MOST:  # has no logit, but without a curve it passes as it is
            odds = np.where((raw > _MOST) & (logits == 1.0), raw, odds)
        return Candidates(parents, candidates.tokens, odds, candidates.ranks, candidates.handles, raw)

    @staticmethod
    def _keys(forest: Forest, candidates: Candidates, sampled: NDArray[np.bool_]) -> Floats:
        """[C] where the knots of each candidate's row begin."""
        parents = candidates.parents
        keys = _DEPTH_KEYS.take(forest.depth.take(parents), mode="clip")
        keys += _RANK_KEYS.take(candidates.ranks, mode="clip")
        if True in sampled.tolist():
            keys += sampled[forest.request[parents]] * _SAMPLED_KEY
        return np.asarray(keys)

    def learn(self, forest: Forest, nodes: Ints, accepted: NDArray[np.bool_], sampled: NDArray[np.bool_]) -> None:
        """Counts what became of `nodes`, all of whose ancestors were accepted.

        Args:
            forest: the step's forest; its features hold the drafter's own probabilities.
            nodes: ids of the observed nodes, without those of requests whose logits are changed by penalties or
                grammars: their acceptance says nothing about the drafter.
            accepted: whether each was.
            sampled: [B] True for requests with a temperature above 0.
        """
        rows = _row(sampled[forest.request[nodes]], forest.depth[nodes], forest.rank[nodes])
        self._waiting.append((forest.feature[nodes], rows, accepted))
        if len(self._waiting) >= self._lag:
            self._count()

    def _count(self) -> None:
        """Counts the observations that wait."""
        if not self._waiting:
            return
        features, rows, accepted = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting.clear()
        raw = np.minimum(np.maximum(features, _LEAST), _MOST)
        cells = rows * _BINS + _bin(_logit(raw))
        cells = np.concatenate((cells, cells + _ROWS * _BINS, cells + 2 * _ROWS * _BINS))
        flat = self._counts.reshape(-1)
        np.multiply.at(flat, cells, self._keep)
        np.add.at(flat, cells, np.concatenate((np.ones(len(raw)), accepted, raw)))
        np.add.at(self._new, rows, 1.0)
        news = np.array(list(set(rows.tolist())), np.int64)
        for row in news[self._new[news] > _STALE_SHARE * self._seen[news].sum(axis=1)].tolist():
            self._fit(row)

    def _fit(self, row: int) -> None:
        """Fits one curve to its counts."""
        seen = self._seen[row]
        anchors = np.where(seen > 1e-9, self._raw[row] / np.maximum(seen, 1e-9), 1 / (1 + np.exp(-_CENTRES)))
        weights = seen + self._strength
        rates = isotonic((self._accepted[row] + self._strength * anchors) / weights, weights)
        self._new[row] = 0
        logits = np.maximum.accumulate(_logit(anchors))  # saved counts are rounded, and may put one into its neighbour
        self._set_pieces(row, logits, _logit(rates) - logits)

    def _set_pieces(self, row: int, anchors: Floats, shifts: Floats) -> None:
        """Makes a row's correction of the logit: `shifts` at the anchors, linear between them, flat beyond."""
        self._knots[row * _KNOTS : row * _KNOTS + _BINS] = anchors + row * _SPACING
        pieces = self._pieces[row]
        pieces[0] = (anchors[0], shifts[0], 0.0)
        pieces[1:, 0], pieces[1:, 1] = anchors, shifts
        pieces[1:-1, 2] = np.diff(shifts) / np.maximum(np.diff(anchors), _CLOSEST)

    def to_json(self) -> dict[str, Any]:
        """The counts as a JSON object."""
        self._count()
        used = np.flatnonzero(self._seen.sum(axis=1))
        return {
            "shape": [_CLASSES, _DEPTHS, _RANKS, _BINS],
            "rows": used.tolist(),
            "seen": self._seen[used].round(4).tolist(),
            "accepted": self._accepted[used].round(4).tolist(),
            "raw": self._raw[used].round(4).tolist(),
        }

    @staticmethod
    def rates_of(data: Any) -> list[list[float]]:
        """[depths][ranks] share of the greedy drafts that were accepted, given that their parents were, as far down as
        enough was seen.

        Args:
            data: what `to_json` has written.

        Raises:
            InputError: it is something else.
        """
        rows, tables = _read(data)
        counts = np.zeros((2, _ROWS))
        counts[:, rows] = tables[0].sum(axis=1), tables[1].sum(axis=1)
        seen, accepted = counts[:, : _DEPTHS * _RANKS].reshape(2, _DEPTHS, _RANKS)
        known = int(np.cumprod(seen[:, 0] >= _ENOUGH).sum())
        return [[round(float(rate), 4) for rate in row] for row in accepted[:known] / np.maximum(seen[:known], 1.0)]

    def load_json(self, data: Any) -> None:
        """Takes saved counts over, as a belief that some hundred steps of other text change.

        Raises:
            InputError: they are not what `to_json` writes.
        """
        rows, tables = _read(data)
        share = np.minimum(_KNOWN_BEFORE / np.maximum(tables[0], _KNOWN_BEFORE), 1.0)
        for table, values in zip((self._seen, self._accepted, self._raw), tables, strict=True):
            table[rows] = share * values
        for row in rows.tolist():
            self._fit(row)


def _read(data: Any) -> tuple[Ints, list[Floats]]:
    """[R] rows, and [R, bins] of each what was seen, accepted, and the drafter's own word, of saved counts."""
    try:
        known = data["shape"] == [_CLASSES, _DEPTHS, _RANKS, _BINS]
        rows = np.array(data["rows"], np.int64)
        tables = [np.array(data[name], np.float64).reshape(len(rows), _BINS) for name in ("seen", "accepted", "raw")]
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError("The saved calibration is malformed; delete it or profile again.") from error
    if not known or np.any((rows < 0) | (rows >= _ROWS)):
        raise InputError("The saved calibration has another shape; delete it or profile again.")
    if not all(np.isfinite(table).all() for table in tables):
        raise InputError("The saved calibration holds numbers that are not finite; delete it or profile again.")
    return rows, tables


def _logit(probabilities: Floats) -> Floats:
    clipped = np.clip(probabilities, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def _bin(logits: Floats) -> Ints:
    share = (logits + _HIGHEST_LOGIT) / (2 * _HIGHEST_LOGIT)
    return np.clip((share * _BINS).astype(np.int64), 0, _BINS - 1)


def _row(sampled: NDArray[np.bool_], depth: Ints, rank: Ints) -> Ints:
    place = sampled * _DEPTHS + np.minimum(depth, _DEPTHS) - 1
    return np.asarray(place * _RANKS + np.minimum(rank, _RANKS - 1), np.int64)
