"""The cost model that policies ask: target passes and drafting of one setup, corrected by the clock."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smartree.cost.draft import DraftCost
from smartree.cost.drafting import DraftingCost
from smartree.cost.padding import PaddingCost
from smartree.cost.refinement import Refinement
from smartree.cost.table import CostTable

Floats = NDArray[np.float64]
_MOST_CURVES = 64  # kept at a time; one step asks for one or two
_PASSES_PER_CURVE = 4
_CURVE_STEP = 1024  # rows; curves are made that long, so that no question of a step needs a longer one than the last


class CostModel:
    """Seconds of everything a speculative step does."""

    def __init__(
        self,
        table: CostTable,
        draft: DraftCost | None = None,
        overhead: float = 0.0,
        padding: PaddingCost | None = None,
    ) -> None:
        """Args:
        table: measured target passes.
        draft: cost of drafting; None is free.
        overhead: seconds of a step outside both (policy, packing, commit).
        padding: what trees of different sizes cost; None is nothing.
        """
        self.table, self.draft, self.overhead = table, draft or DraftCost(), overhead
        self.padding = padding or PaddingCost()
        self.refinement = Refinement()
        self.drafting = DraftingCost()
        self._curves: dict[tuple[int, int, bool], tuple[tuple[int, int], Floats]] = {}

    def verify(self, batch: int, tokens: NDArray[np.int64] | int, context: int) -> Floats:
        """C_verify: seconds of passes of `batch` requests carrying `tokens` rows in all, nondecreasing in tokens.

        Of passes in which every request has the same number of rows; `unevenness` is what others take longer.
        """
        return self._corrected(batch, tokens, context, False)

    def _corrected(self, batch: int, tokens: NDArray[np.int64] | int, context: int, uneven: bool) -> Floats:
        """The table's seconds, corrected by what even or uneven passes took."""
        if self.refinement.version == 0:
            return self.table.seconds(batch, tokens, context)
        wanted = np.asarray(tokens)
        return np.asarray(self._curve(batch, context, uneven, int(wanted.max(initial=0)))[wanted])

    def _curve(self, batch: int, context: int, uneven: bool, largest: int) -> Floats:
        """[at least largest + 1] corrected seconds of passes with 0, 1, ... rows."""
        key = (batch, context // 64, uneven)
        # Corrections move slowly: a curve is good for some passes, unless the clock has changed.
        now = (self.refinement.version // _PASSES_PER_CURVE, self.refinement.jumps)
        known, curve = self._curves.get(key, ((-1, -1), np.empty(0)))
        if known != now or len(curve) <= largest:
            size = -(-(largest + 1) // _CURVE_STEP) * _CURVE_STEP
            curve = self.refinement.correct(batch, self.table.seconds(batch, np.arange(size), context), uneven)
            if len(self._curves) >= _MOST_CURVES:
                self._curves.clear()
            self._curves[key] = (now, curve)
        return curve

    def unevenness(
        self, batch: int, tokens: NDArray[np.int64] | int, width: NDArray[np.int64] | int, context: int
    ) -> Floats:
        """Seconds to add to `verify` if the widest request has `width` of the rows, root included."""
        places = np.asarray(batch * np.asarray(width) - tokens, np.int64)
        padding = self.refinement.scale * self.padding.of(places, context)
        more = self._corrected(batch, tokens, context, True) - self._corrected(batch, tokens, context, False)
        return np.asarray(np.where(places > 0, np.maximum(padding + more, 0.0), 0.0))

    def autoregressive(self, batch: int, context: int) -> float:
        """c_T(B): seconds of a plain decoding step."""
        if self.refinement.version == 0:
            return float(self.table.seconds(batch, batch, context))
        return float(self._curve(batch, context, False, batch)[batch])

    def observe(self, batch: int, tokens: int, context: int, seconds: float, width: int = 0) -> None:
        """Learns from the measured seconds of a pass of `tokens` rows, `width` of them the widest request's."""
        if batch > 0 and 0 < seconds < np.inf:
            predicted = float(self.table.seconds(batch, tokens, context))
            uneven = not self.padding.free and batch * width > tokens
            padding = float(self.padding.of(batch * width - tokens, context)) if uneven else 0.0
            self.refinement.observe(batch, tokens, predicted + padding, seconds, uneven)
