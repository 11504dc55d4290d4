"""How many prompt tokens ride on a step beside requests that decode: as many as do not make them wait long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smartree.cost.model import CostModel
from smartree.engine.pass_line import PassLine
from smartree.engine.request import Request
from smartree.tree.forest import Floats

_LONGER = 0.8  # that a step takes for its prompt tokens, in steps without of the same requests
_FEWEST = 16  # tokens that a step reads all the same, so that prompts come to their end
_RATE = 0.1  # of the newest step in the running means
_LONG_AGO = 200  # steps with prompts after the last one without, when they alone say what one without takes
_OUTLIER = 1.3  # times the running mean, or a part of it, that one step may count as


class PromptShare:
    """Prompt tokens of a step, by the measured cost of passes, or by what the clock says where nothing was measured.

    Where rows cost time (a pass is past its bend after a dozen rows on a CPU), a prompt is read no slower in small
    pieces; where they are free, as far as the table says, a piece is as large as it may be. But pieces that are too
    small keep places empty: with many short requests the batch then decodes three quarters of what it could, and
    speculation, which makes requests end sooner, makes it fewer still. So a step may take longer where more requests
    wait for their first token than for their next one: every decoding request then waits for as many steps' time as
    there are others for each of them.

    The clock has a say: in how long a step of these requests takes without prompts, drafts and nodes included, and
    in what passes with prompts take against the profile's of as many rows, which are dearer, as rows of prompts need no
    logits. What passes over trees teach the cost model does not count: it made pieces a quarter smaller wherever
    speculation had run.

    Attributes:
        limited: False while nobody reads tokens as they come and only the end of it all counts: prompts in large pieces
            fill the batch sooner.
    """

    def __init__(self, cost: CostModel | None, most: int) -> None:
        """Args:
        cost: of passes; None learns from them, and gives `most` until it has.
        most: prompt tokens of a step.
        """
        self._table, self._line, self._most = None if cost is None else cost.table, PassLine(), most
        self._usual = self._reading = 1.0  # the clock over the profile: steps without prompts, passes with them
        self._beside = 0.0  # seconds that steps take outside their passes
        self._steps_since = _LONG_AGO  # with prompts, since the last one without
        self._nodes = 0.0  # of a request
        self.limited = True

    def tokens(self, decoding: Sequence[Request], joining: int = 1) -> int:
        """Prompt tokens for the next step.

        Args:
            decoding: requests that wait for their next token.
            joining: how many wait for their first.
        """
        if not decoding or not self.limited:
            return self._most
        batch = len(decoding)
        rows = batch + round(self._nodes * batch)
        seconds = self._passes(batch, rows + self._most, sum(len(request.tokens) for request in decoding) // batch)
        if seconds is None:
            return self._most
        usual = self._usual * float(seconds[batch])
        longest = ((1 + max(_LONGER, joining / batch)) * usual - self._beside) / self._reading
        within = int(np.searchsorted(seconds[rows : rows + self._most + 1], longest, side="right")) - 1
        return min(max(within, _FEWEST), self._most)

    def _passes(self, batch: int, largest: int, context: int) -> Floats | None:
        """[largest + 1] seconds of passes with 0, 1, ... rows, by the profile if there is one; None if not known."""
        if self._table is None:
            return self._line.curve(largest)
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
        rows = batch + nodes
        if self._table is None:
            self._line.observe(rows + tokens, target_seconds)
        passes = self._passes(batch, rows + tokens, context) if batch else None
        if passes is None:
            return
        if tokens > 0:
            self._reading = _follow(self._reading, target_seconds / float(passes[-1]))
        self._steps_since = self._steps_since + 1 if tokens else 0
        # A step with prompts says less of one without: as much as it has been long since there was one.
        rate = _RATE * min(self._steps_since / _LONG_AGO, 1.0) if tokens else _RATE
        without = seconds - self._reading * float(passes[-1] - passes[rows])
        self._usual = _follow(self._usual, without / float(passes[batch]), rate)
        self._beside += _RATE * (min(seconds - target_seconds, _OUTLIER * float(passes[batch])) - self._beside)
        self._nodes += _RATE * (nodes / batch - self._nodes)


def _follow(mean: float, value: float, rate: float = _RATE) -> float:
    """A running mean; a moment in which the machine stood still is no news."""
    return mean + rate * (min(max(value, mean / _OUTLIER), _OUTLIER * mean) - mean)
