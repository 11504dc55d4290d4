"""How many prompt tokens ride on a step beside requests that decode: as many as do not make them wait long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smartree.cost.model import CostModel
from smartree.engine.request import Request

_LONGEST_STEP = 2.4  # of a step with prompt tokens, in plain steps of the same requests
_FEWEST = 16  # tokens that a step reads all the same, so that prompts come to their end


class PromptShare:
    """Prompt tokens of a step, by the profile's cost of passes.

    Not by what the clock makes of them: from passes over trees it learns what rows of trees cost, and those of prompts
    cost less. With rows believed a quarter dearer a batch of 16 lost a tenth of its tokens per second, as places that
    were free stayed empty for longer.

    Where rows cost time (a pass is past its bend after a dozen rows on a CPU), a prompt is read no slower in small
    pieces; where they are free, as far as the table says, a piece is as large as it may be.
    """

    def __init__(self, cost: CostModel | None, most: int) -> None:
        """Args:
        cost: of passes; None knows nothing, and always gives `most`.
        most: prompt tokens of a step.
        """
        self._cost, self._most = cost, most

    def tokens(self, decoding: Sequence[Request]) -> int:
        """Prompt tokens for the next step."""
        if not decoding or self._cost is None:
            return self._most
        batch = len(decoding)
        context = sum(len(request.tokens) for request in decoding) // batch
        seconds = self._cost.table.curve(batch, batch + self._most, context)[batch : batch + self._most + 1]
        within = int(np.searchsorted(seconds, _LONGEST_STEP * seconds[0], side="right")) - 1
        return min(max(within, _FEWEST), self._most)
