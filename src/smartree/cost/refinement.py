"""Keeps a measured table alive: real step times correct it while it is in use (design 3.5)."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from math import exp, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smartree.cost.clock_line import ClockLine
from smartree.cost.isotonic import isotonic

Floats = NDArray[np.float64]
Kind = tuple[int, bool]
"""Batch size, and whether requests had different numbers of rows."""
_LARGEST_SURPRISE = 0.3  # a step that took e^0.3 times the prediction counts as that much, however long it took
_SIZES = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512], np.float64)
_KNOWN_BEFORE = 10.0  # passes at most that another engine's correction of a size is worth
_BORDERS: tuple[float, ...] = tuple(np.sqrt(_SIZES[1:] * _SIZES[:-1]).tolist())  # between neighbours, as logarithms go


class _Pass(NamedTuple):
    """A timed pass: what kind, log(rows / requests), the place of its size in _SIZES, log(measured / table)."""

    kind: Kind
    log_width: float
    place: int
    log_ratio: float


class _Local:
    """Corrections of one kind of pass by size: means of what the line leaves unexplained, and how much is known."""

    __slots__ = ("counts", "means")

    def __init__(self) -> None:
        # Lists: single elements are what every step reads and changes.
        self.means, self.counts = [0.0] * len(_SIZES), [0.0] * len(_SIZES)


class Refinement:
    """A factor on the table's predictions: the clock's line, times a correction by batch, evenness and size.

    Everything is kept as logarithms of measured over predicted. The last `window` passes are only watched: if three
    quarters of them are off by more than `jump` to the same side, the clock has changed (power cap, other load), and
    the line jumps by their median. A pass that leaves the window in peace is learned from, so a change of the clock
    is never taken for an error of one size. Corrections by size are shrunk towards 1, so that a few noisy steps move
    nothing, and fade where nothing is seen any more.

    So what is learned from is a window old. Predictions do not wait for that: they follow a second line that hears of
    every pass at once and, where it has heard of few, believes them soon. Corrections by size are what the first line
    leaves, less what the second one has taken in of it already.
    """

    def __init__(
        self,
        *,
        rate: float = 0.02,
        window: int = 16,
        jump: float = 0.1,
        local_rate: float = 0.03,
        strength: float = 5.0,
        memory: float = 300.0,
    ) -> None:
        """Args:
        rate: share of a step's surprise that moves the line; more right after a jump.
        window: passes that are watched for drift.
        jump: logarithm of the ratio that counts as drift.
        local_rate: smallest share of a step's surprise that moves the correction of its size.
        strength: steps at a size that count as "no correction".
        memory: steps of a batch over which the correction of a size that does not come up fades.
        """
        self._window, self._jump = window, jump
        self._local_rate, self._strength, self._keep = local_rate, strength, 1 - 1 / memory
        self._line = ClockLine(rate)
        self._now = ClockLine(rate, doubted=True)  # the same ahead of the window
        self._recent: deque[_Pass] = deque()
        self._locals: dict[Kind, _Local] = {}
        self.version = 0
        self.jumps = 0

    @property
    def scale(self) -> float:
        """Measured over predicted seconds of plain passes."""
        return exp(self._now.near)

    def observe(self, batch: int, rows: int, predicted: float, seconds: float, uneven: bool = False) -> None:
        """Learns from one pass.

        Args:
            batch: requests of the pass.
            uneven: whether they had different numbers of rows. What is learned of uneven passes says nothing about
                even ones: else a policy that prefers uneven trees would never see what even ones cost.
            rows: verified tokens.
            predicted: what the table alone says, seconds.
            seconds: what the clock says.
        """
        place, width = bisect_left(_BORDERS, rows), log(rows / batch)
        seen = _Pass((batch, uneven), width, place, log(seconds / predicted))
        self._recent.append(seen)
        self._follow(self._now, seen)
        self.version += 1
        if len(self._recent) < self._window:
            return
        if self._has_jumped():
            surprises = sorted(self._surprise(seen) for seen in self._recent)
            self.jumps += 1
            for _ in range(self._window // 2):  # some are of the clock that was
                self._recent.popleft()
            width = sum(seen.log_width for seen in self._recent) / len(self._recent)
            self._line.jump(width, surprises[self._window // 2], float(self._window // 4))
            self._now = self._line.copy()
            for seen in self._recent:
                self._follow(self._now, seen)
        else:
            self._learn(self._recent.popleft())

    def _has_jumped(self) -> bool:
        """True if all but a quarter of the recent passes are off to the same side."""
        slower = faster = self._window // 4
        for seen in self._recent:  # as a rule the first few say no
            surprise = self._surprise(seen)
            slower -= surprise <= self._jump
            faster -= surprise >= -self._jump
            if slower < 0 and faster < 0:
                return False
        return True

    def _surprise(self, seen: _Pass) -> float:
        """Logarithm of measured over predicted, all corrections included."""
        off, local = seen.log_ratio - self._line.at(seen.log_width), self._locals.get(seen.kind)
        if local is None:
            return off
        count = local.counts[seen.place]
        return off - local.means[seen.place] * count / (count + self._strength)

    def _follow(self, line: ClockLine, seen: _Pass) -> float:
        """Lets a line follow a pass if it is even; by how much the pass is off, not too far from what is usual."""
        local = self._locals.get(seen.kind)
        usual = 0.0 if local is None else local.means[seen.place]
        surprise = seen.log_ratio - line.at(seen.log_width) - usual
        off = usual + min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        if not seen.kind[1]:
            line.follow(seen.log_width, off)
        return off

    def _learn(self, seen: _Pass) -> None:
        """The line follows all sizes of even passes, a correction what is left of its own size."""
        off = self._follow(self._line, seen)
        local = self._locals.setdefault(seen.kind, _Local())
        local.counts = [self._keep * count for count in local.counts]
        local.counts[seen.place] += 1
        share = max(1 / local.counts[seen.place], self._local_rate)
        local.means[seen.place] += share * (off - local.means[seen.place])

    def to_json(self) -> dict[str, Any]:
        """What was learned, as a JSON object."""
        local = [
            {"batch": batch, "uneven": uneven, "means": _rounded(known.means), "counts": _rounded(known.counts)}
            for (batch, uneven), known in self._locals.items()
        ]
        return {"line": _rounded([self._line.near, self._line.far]), "local": local}

    def load_json(self, data: Any) -> None:
        """Begins with what another engine on this setup has learned; what it saw last is doubted first.

        Raises:
            KeyError, TypeError, ValueError: it is not what `to_json` writes.
        """
        near, far = (float(value) for value in data["line"])
        self._line.resume(near, far)
        self._now.resume(near, far)
        for row in data["local"]:
            known = self._locals[int(row["batch"]), bool(row["uneven"])] = _Local()
            means, counts = [float(value) for value in row["means"]], [float(value) for value in row["counts"]]
            if len(means) != len(_SIZES):
                raise ValueError("corrections of other sizes")
            for place, (mean, seen) in enumerate(zip(means, counts, strict=True)):
                known.means[place], known.counts[place] = mean, min(seen, _KNOWN_BEFORE)
        self.version += 1

    def correct(self, batch: int, seconds: Floats, uneven: bool = False) -> Floats:
        """The table's seconds as the clock has them, nondecreasing.

        Args:
            batch: requests of the passes.
            uneven: whether they have different numbers of rows.
            seconds: [n] what the table says of 0, 1, ... n - 1 rows.
        """
        rows = np.maximum(np.arange(len(seconds)), 1.0)
        factors = np.exp(self._now.over(np.log(rows / max(batch, 1))))
        seconds = seconds * factors
        local = self._locals.get((batch, uneven))
        if local is None:
            return np.asarray(np.maximum.accumulate(seconds))
        known = len(seconds) > _SIZES
        sizes, table, counts = _SIZES[known], seconds[_SIZES[known].astype(int)], np.array(local.counts)[known]
        # They are what the slow line leaves, of which the fast one has taken in a part already.
        widths = np.log(sizes / max(batch, 1))
        left = np.array(local.means)[known] + self._line.over(widths) - self._now.over(widths)
        means = left * counts / (counts + self._strength)
        # A size that was seen bounds its neighbours that were not.
        logs = np.log(isotonic(table * np.exp(means), counts + 1e-3) / table)
        factors = np.exp(np.interp(np.log(rows), np.log(sizes), logs))
        return np.asarray(np.maximum.accumulate(seconds * factors))


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 5) for value in values]
