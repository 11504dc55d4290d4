"""What drafting really costs in an engine: learned from the clock, as no profile sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_RATE = 0.05
_LOOK_RATE = 0.2  # looks are rare
_PRIOR_STEPS = 4  # that the profile's word is worth: one slow step must not end speculation before it was tried
_STEPS_BEFORE = 10  # steps at most that another engine's means are worth
_OUTLIER = 3.0  # steps that take this many times what is known are slow moments of the machine


class DraftingCost:
    """Live corrections of the modelled draft time, and what speculation costs beside drafter and target.

    A profile times a drafter's level alone. In a step the first level also reads the committed tokens, the processor's
    caches hold the target's weights, and calibration, policy, packing and learning take time too, most of it with
    every level. Two running means correct for that: the ratio of measured to modelled draft time, and the rest of a
    speculative step less that of a plain one, per level.
    """

    def __init__(self) -> None:
        self.scale = 1.0
        self.seconds_per_level = 0.0
        self._plain = 0.0
        self._plain_steps = 0
        self._steps = 0

    def expect(self, scale: float, seconds_per_level: float) -> None:
        """What to believe before anything was seen, where a profile is known to be too good to be true.

        Args:
            scale: measured over modelled draft time.
            seconds_per_level: beside it.
        """
        self.scale, self.seconds_per_level = scale, seconds_per_level

    def observe(self, levels: int, modelled: float, draft_seconds: float, rest_seconds: float) -> None:
        """Learns from a step.

        Args:
            levels: that were drafted.
            modelled: seconds that the drafter should have taken, before correction; 0 if its levels are free.
            draft_seconds: that it took.
            rest_seconds: of the step outside drafter and target pass.
        """
        if levels == 0:
            self._plain_steps += 1
            self._plain = _follow(self._plain, rest_seconds, self._plain_steps)
            return
        self._steps += 1
        if modelled > 0:
            self.scale = _follow(self.scale, draft_seconds / modelled, self._steps + _PRIOR_STEPS)
        beside = max(rest_seconds - self._plain, 0.0) / levels
        self.seconds_per_level = _follow(self.seconds_per_level, beside, self._steps + _PRIOR_STEPS)

    def observe_look(self, levels: int, modelled: float, draft_seconds: float, rest_seconds: float) -> None:
        """Learns from a level that was drafted for a few requests only, after steps without: good news alone.

        Such a level is dearer than one among others: it reads more, and finds nothing in the processor's caches. So if
        it took less than what is believed of a level, the belief is too high; and as nobody speculates, no other step
        would correct it.

        Args:
            levels: that were drafted, at least 1.
            modelled: seconds that the drafter should have taken, before correction.
            draft_seconds: that it took.
            rest_seconds: of the step outside drafter and target pass.
        """
        if modelled > 0:
            self.scale -= _LOOK_RATE * max(self.scale - draft_seconds / modelled, 0.0)
        beside = max(rest_seconds - self._plain, 0.0) / levels
        self.seconds_per_level -= _LOOK_RATE * max(self.seconds_per_level - beside, 0.0)

    def to_json(self) -> dict[str, Any]:
        """What was learned, as a JSON object."""
        seconds = {"seconds_per_level": self.seconds_per_level, "plain": self._plain}
        return seconds | {"scale": self.scale, "steps": self._steps, "plain_steps": self._plain_steps}

    def load_json(self, data: Any) -> None:
        """Begins with what another engine on this setup has learned.

        Raises:
            KeyError, TypeError, ValueError: it is not what `to_json` writes.
        """
        self.scale, self.seconds_per_level = float(data["scale"]), float(data["seconds_per_level"])
        self._steps = min(int(data["steps"]), _STEPS_BEFORE)
        # How large a plain step's rest is depends on the batch, so that the first own one counts as much.
        self._plain, self._plain_steps = float(data["plain"]), min(int(data["plain_steps"]), 1)

    def beside(self, rest_seconds: float) -> float:
        """Seconds outside drafter and target pass that a step took more than a plain one; 0 before one was seen."""
        return max(rest_seconds - self._plain, 0.0) if self._plain_steps else 0.0

    def level(self, modelled: float) -> float:
        """Seconds that a level adds to a step, for a modelled time of the drafter."""
        return self.scale * modelled + self.seconds_per_level

    def levels(self, modelled: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same for [W] modelled times."""
        return self.scale * modelled + self.seconds_per_level


def _follow(mean: float, value: float, count: int) -> float:
    """A running mean: the plain mean at first, an exponential one later; outliers count as less than they are."""
    if count > 1 and mean > 0:
        value = min(value, _OUTLIER * mean)
    return mean + max(_RATE, 1 / count) * (value - mean)
