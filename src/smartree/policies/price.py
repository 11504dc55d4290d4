"""The price of time: tokens achieved per plain step's time in the long run (design 3.2, statement 5), and savings."""

from __future__ import annotations


class Price:
    """Slow running ratio of tokens to time, one per batch size.

    Time is counted in plain decoding steps of the moment, so that a clock that changes its speed or a context that
    grows does not make the price stale. The long-run throughput is a ratio of sums; Dinkelbach's method maximises
    `tokens - price * time` in each step, with the ratio achieved so far as price, and the ratio never falls.
    """

    def __init__(self, window: float = 200.0, warm_up: int = 8) -> None:
        """Args:
        window: steps over which the running sums forget.
        warm_up: steps before the price is trusted.
        """
        self._keep = 1 - 1 / window
        self._warm_up = warm_up
        self._sums: dict[int, tuple[float, float, int]] = {}

    def at(self, batch: int) -> float | None:
        """Tokens per plain step's time at this batch size; None before the warm-up is over."""
        tokens, time, steps = self._sums.get(batch, (0.0, 0.0, 0))
        return tokens / time if steps >= self._warm_up and time > 0 else None

    def update(self, batch: int, tokens: float, time: float) -> None:
        """Adds a step that brought `tokens` and took `time`, in plain steps."""
        old_tokens, old_time, steps = self._sums.get(batch, (0.0, 0.0, 0))
        self._sums[batch] = (self._keep * old_tokens + tokens, self._keep * old_time + time, steps + 1)


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

    def pay(self, seconds: float) -> bool:
        """Takes the seconds of a look out if there are as many; False if not."""
        if self.seconds < seconds:
            return False
        self.seconds -= seconds
        return True
