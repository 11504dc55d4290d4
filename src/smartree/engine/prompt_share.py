"""How many prompt tokens ride on a step beside requests that decode: as many as do not make them wait long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smartree.cost.model import CostModel
from smartree.engine.request import Request
from smartree.tree.forest import Floats

_LONGEST_STEP = 2.0  # of a step with prompt tokens, in steps without of the same requests
_FEWEST = 16  # tokens that a step reads all the same, so that prompts come to their end
_RATE = 0.1  # of the newest step in the running means
_OUTLIER = 3.0  # times the running mean, or a part of it, that one step may count as


class PromptShare:
    """Prompt tokens of a step, by the measured cost of passes.

    Where rows cost time (a pass is past its bend after a dozen rows on a CPU), a prompt is read no slower in small
    pieces; where they are free, as far as the table says, a piece is as large as it may be. But pieces that are too
    small keep places empty: with many short requests the batch then decodes three quarters of what it could, and
    speculation, which makes requests end sooner, makes it fewer still.

    So the clock has a say: in how long a step of these requests takes without prompts, drafts and nodes included, and
    in what passes with prompts take against the profile's of as many rows, which are dearer, as rows of prompts need no
    logits. What passes over trees teach the cost model does not count: it made pieces a quarter smaller wherever
    speculation had run.

    Attributes:
        limited: False while nobody reads tokens as they come and only the end of it all counts: prompts in large pieces
            fill the batch sooner.
    """

    def __init__(self, cost: CostModel | None, most: int) -> None:
        """Args:
        cost: of passes; None knows nothing, and always gives `most`.
        most: prompt tokens of a step.
        """
        self._table, self._most = None if cost is None else cost.table, most
        self._usual = self._reading = 1.0  # the clock over the profile: steps without prompts, passes with them
        self._nodes = 0.0  # of a request
        self.limited = True

    def tokens(self, decoding: Sequence[Request]) -> int:
        """Prompt tokens for the next step."""
        if not decoding or self._table is None or not self.limited:
            return self._most
        batch = len(decoding)
        rows = batch + round(self._nodes * batch)
        seconds = self._passes(batch, rows + self._most, sum(len(request.tokens) for request in decoding) // batch)
        longest = seconds[rows] + (_LONGEST_STEP - 1) * self._usual / self._reading * seconds[batch]
        within = int(np.searchsorted(seconds[rows : rows + self._most + 1], longest, side="right")) - 1
        return min(max(within, _FEWEST), self._most)

    def _passes(self, batch: int, largest: int, context: int) -> Floats:
        """[largest + 1] the profile's seconds of passes with 0, 1, ... rows."""
        assert self._table is not None
        return self._table.curve(batch, largest, context)[: largest + 1]

    def observe(self, batch: int, nodes: int, tokens: int, context: int, seconds: float, target_seconds: float) -> None:
        """Learns from a step.

        Args:
            batch: requests that decoded in it.
            nodes: verified for them.
            tokens: of prompts that it read.
            context: mean cached length of the requests.
            seconds: that all of it took.
            target_seconds: that its pass took.
        """
        if batch == 0 or self._table is None:
            return
        rows = batch + nodes
        passes = self._passes(batch, rows + tokens, context)
        if tokens > 0:
            self._reading = _follow(self._reading, target_seconds / float(passes[-1]))
        without = seconds - self._reading * float(passes[-1] - passes[rows])
        self._usual = _follow(self._usual, without / float(passes[batch]))
        self._nodes += _RATE * (nodes / batch - self._nodes)


def _follow(mean: float, value: float) -> float:
    """A running mean; a moment in which the machine stood still is no news."""
    return mean + _RATE * (min(max(value, mean / _OUTLIER), _OUTLIER * mean) - mean)
