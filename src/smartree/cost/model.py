"""The cost model that policies ask: target passes and drafting of one setup, corrected by the clock."""

from __future__ import annotations

from typing import Any

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
        wanted = np.asarray(tokens)
        return np.asarray(self._curve(batch, context, uneven, int(wanted.max(initial=batch)))[wanted])

    def curve(self, batch: int, largest: int, context: int) -> Floats:
        """[at least largest + 1] `verify` of 0, 1, ... rows: shared and not to be written to.

        The same array as long as the costs are the same, so that what is computed from it need not be computed again.
        """
        return self._curve(batch, context, False, largest)

    def _curve(self, batch: int, context: int, uneven: bool, largest: int) -> Floats:
        """[at least largest + 1] corrected seconds of passes with 0, 1, ... rows."""
        refinement = self.refinement
        if refinement.version == 0:
            return self.table.curve(batch, largest, context)
        key = (batch, context // 64, uneven)
        known = self._curves.get(key)
        # Corrections move slowly: a curve is good for some passes, unless the clock has changed.
        now = (refinement.version // _PASSES_PER_CURVE, refinement.jumps)
        if known is not None and known[0] == now and len(known[1]) > largest:
            return known[1]
        size = -(-(largest + 1) // _CURVE_STEP) * _CURVE_STEP
        curve = refinement.correct(batch, self.table.curve(batch, size - 1, context)[:size], uneven)
        curve.flags.writeable = False
        if len(self._curves) >= _MOST_CURVES:
            self._curves.clear()
        self._curves[key] = (now, curve)
        return curve

    def unevenness(
        self, batch: int, tokens: NDArray[np.int64] | int, width: NDArray[np.int64] | int, context: int
    ) -> Floats:
        """Seconds to add to `verify` if the widest request has `width` of the rows, root included."""
        places = np.asarray(batch * np.asarray(width) - tokens, np.int64)
        return self.padded(places, self.beyond_padding(batch, tokens, context), context)

    def beyond_padding(self, batch: int, tokens: NDArray[np.int64] | int, context: int) -> Floats:
        """Seconds that the clock has uneven passes take longer than even ones, beside what padding should cost."""
        return self._corrected(batch, tokens, context, True) - self._corrected(batch, tokens, context, False)

    def padded(self, places: NDArray[np.int64], beyond: Floats, context: int) -> Floats:
        """`unevenness` by rows of padding, for passes whose `beyond_padding` is known."""
        seconds = self.refinement.scale * self.padding.of(places, context) + beyond
        return np.asarray(np.where(places > 0, np.maximum(seconds, 0.0), 0.0))

    def autoregressive(self, batch: int, context: int) -> float:
        """c_T(B): seconds of a plain decoding step."""
        return self.pass_seconds(batch, batch, context)

    def pass_seconds(self, batch: int, tokens: int, context: int) -> float:
        """`verify` of one size."""
        return float(self._curve(batch, context, False, tokens)[tokens])

    def uneven_seconds(self, batch: int, tokens: int, width: int, context: int) -> float:
        """`unevenness` of one pass."""
        places = batch * width - tokens
        padding = self.refinement.scale * self.padding.seconds_of(places, context)
        uneven, even = (self._curve(batch, context, kind, tokens)[tokens] for kind in (True, False))
        return max(padding + float(uneven - even), 0.0) if places > 0 else 0.0

    def observe(self, batch: int, tokens: int, context: int, seconds: float, width: int = 0) -> None:
        """Learns from the measured seconds of a pass of `tokens` rows, `width` of them the widest request's."""
        if batch > 0 and 0 < seconds < np.inf:
            predicted = float(self.table.curve(batch, tokens, context)[tokens])
            uneven = not self.padding.free and batch * width > tokens
            padding = self.padding.seconds_of(batch * width - tokens, context) if uneven else 0.0
            self.refinement.observe(batch, tokens, predicted + padding, seconds, uneven)

    def to_json(self) -> dict[str, Any]:
        """What the clock has taught, as a JSON object."""
        return {"passes": self.refinement.to_json(), "drafting": self.drafting.to_json()}

    def load_json(self, data: Any) -> None:
        """Begins with what another engine on this setup has learned.

        Raises:
            KeyError, TypeError, ValueError: it is not what `to_json` writes.
        """
        self.refinement.load_json(data["passes"])
        self.drafting.load_json(data["drafting"])
