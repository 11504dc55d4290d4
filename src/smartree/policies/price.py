"""The price of time: tokens achieved per plain step's time in the long run (design 3.2, statement 5), and savings."""

from __future__ import annotations

from typing import Any

_LARGER = 1.25  # times the size of a batch whose speedup is believed of a larger one


class Price:
    """Slow running ratio of tokens to time, one per batch size.

    Time is counted in plain decoding steps of the moment, so that a clock that changes its speed or a context that
    grows does not make the price stale. The long-run throughput is a ratio of sums; Dinkelbach's method maximises
    `tokens - price * time` in each step, with the ratio achieved so far as price, and the ratio never falls.
    """

    def __init__(self, window: float = 200.0, warm_up: int = 8, quiet_window: float = 25.0) -> None:
        """Args:
        window: steps over which the running sums forget.
        warm_up: steps before the price is trusted.
        quiet_window: the same in quiet times, see `update`.
        """
        self._keep, self._keep_quiet = 1 - 1 / window, 1 - 1 / quiet_window
        self._warm_up = warm_up
        self._sums: dict[int, tuple[float, float, int]] = {}
        self._warm: dict[int, float] = {}

    def at(self, batch: int) -> float | None:
        """Tokens per plain step's time at this batch size; None before the warm-up is over.

        A batch size that has not come up often enough has the speedup of the nearest one that has, if that is at most
        twice as large: while a prompt is read the batch is one smaller than otherwise, and such steps say nothing
        themselves. Or a little smaller; speculation gains more in small batches, and at the price that two requests
        have earned four never begin.
        """
        known = self._warm.get(batch)
        if known is not None:
            return known
        near = [size for size in self._warm if size <= 2 * batch and batch <= _LARGER * size]
        if not near:
            return None
        nearest = min(near, key=lambda size: abs(size - batch))
        return self._warm[nearest] * batch / nearest

    def update(self, batch: int, tokens: float, time: float, quiet: bool = False) -> None:
        """Adds a step that brought `tokens` and took `time`, in plain steps.

        Where nobody has speculated for a while time is worth what plain decoding makes of it, whatever it once was: at
        the old price nothing might ever pay again that pays by today's. So the sums forget faster in `quiet` times.
        """
        old_tokens, old_time, steps = self._sums.get(batch, (0.0, 0.0, 0))
        keep = self._keep_quiet if quiet else self._keep
        tokens, time = keep * old_tokens + tokens, keep * old_time + time
        self._sums[batch] = (tokens, time, steps + 1)
        if steps + 1 >= self._warm_up and time > 0:
            self._warm[batch] = tokens / time

    def to_json(self) -> list[dict[str, Any]]:
        """What was achieved by batch size, as a JSON list."""
        return [{"batch": batch, "tokens": round(tokens, 4)} for batch, tokens in self._warm.items()]

    def load_json(self, data: Any) -> None:
        """Begins with what another engine on this setup has achieved, worth no more than a warm-up.

        Raises:
            KeyError, TypeError, ValueError: it is not what `to_json` writes.
        """
        for row in data:
            batch, tokens = int(row["batch"]), float(row["tokens"])
            self._sums[batch] = (self._warm_up * tokens, float(self._warm_up), self._warm_up)
            self._warm[batch] = tokens


class Savings:
    """Seconds saved up for looks at what does not seem to pay: a share of all time, so that looks cost no more.

    Attributes:
        seconds: what there is.
    """

    def __init__(self, share: float) -> None:
        """Args:
        share: of the time of all steps.
        """
        self._share = share
        self.seconds = 0.0

    def save(self, spent: float, most: float) -> None:
        """Adds the share of a step of `spent` seconds; never holds more than `most`, so that a long quiet time does not
        end in a burst of looks.
        """
        self.seconds = min(self.seconds + self._share * spent, most)

    def owe(self, seconds: float, most: float) -> None:
        """A look took so many seconds more than was paid for it, of which `most` count: the next ones wait for them."""
        self.seconds -= min(max(seconds, 0.0), most)

    def pay(self, seconds: float) -> bool:
        """Takes the seconds of a look out if there are as many; False if not."""
        if self.seconds < seconds:
            return False
        self.seconds -= seconds
        return True
