"""The cost model that policies ask: target passes and drafting of one setup."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from smartree.cost.draft import DraftCost
from smartree.cost.table import CostTable


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of everything a speculative step does.

    Attributes:
        table: measured target passes.
        draft: cost of drafting.
        overhead: seconds of a speculative step outside both (policy, packing, commit).
    """

    table: CostTable
    draft: DraftCost = field(default_factory=DraftCost)
    overhead: float = 0.0

    def verify(self, batch: int, tokens: NDArray[np.int64] | int, context: int) -> NDArray[np.float64]:
        """C_verify: seconds of passes carrying `tokens` rows in all."""
        return self.table.seconds(batch, tokens, context)

    def autoregressive(self, batch: int, context: int) -> float:
        """c_T(B): seconds of a plain decoding step."""
        return self.table.autoregressive(batch, context)
