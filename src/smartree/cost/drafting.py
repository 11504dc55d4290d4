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
    every level. Running means correct for that: the ratio of measured to modelled draft time, apart for first levels
    and deeper ones if the clock tells them apart, as a deeper one reads nothing and finds the drafter's weights in the
    caches; and the rest of a speculative step less that of a plain one, per level.

    Attributes:
        scale: measured over modelled time of first levels, or of all if the clock does not tell them apart.
        seconds_per_level: beside the drafter.
    """

    def __init__(self) -> None:
        self.scale = 1.0
        self._deeper, self._deeper_steps, self._told_apart = 1.0, 0, False
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
        self.scale = self._deeper = scale
        self.seconds_per_level = seconds_per_level

    @property
    def deeper_scale(self) -> float:
        """Measured over modelled time of levels below the first."""
        return self._deeper if self._told_apart else self.scale

    def observe(
        self,
        levels: int,
        modelled: float,
        draft_seconds: float,
        rest_seconds: float,
        first: tuple[float, float] | None = None,
    ) -> None:
        """Learns from a step.

        Args:
            levels: that were drafted.
            modelled: seconds that the drafter should have taken, before correction; 0 if its levels are free.
            draft_seconds: that it took.
            rest_seconds: of the step outside drafter and target pass.
            first: modelled and measured seconds of the first level; None if the clock does not tell levels apart.
        """
        if levels == 0:
            self._plain_steps += 1
            self._plain = _follow(self._plain, rest_seconds, self._plain_steps)
            return
        self._steps += 1
        if first is not None:
            self._observe_deeper(modelled - first[0], draft_seconds - first[1])
            modelled, draft_seconds = first
        if modelled > 0:
            self.scale = _follow(self.scale, draft_seconds / modelled, self._steps + _PRIOR_STEPS)
        beside = max(rest_seconds - self._plain, 0.0) / levels
        self.seconds_per_level = _follow(self.seconds_per_level, beside, self._steps + _PRIOR_STEPS)

    def _observe_deeper(self, modelled: float, seconds: float) -> None:
        """Learns from the levels of a step below the first; none if they should have taken no time."""
        if not self._told_apart and self._steps > 1:
            self._deeper = self.scale  # all that was known of levels so far
        self._told_apart = True
        if modelled > 0:
            self._deeper_steps += 1
            self._deeper = _follow(self._deeper, seconds / modelled, self._deeper_steps + _PRIOR_STEPS)

    def observe_look(
        self,
        levels: int,
        modelled: float,
        draft_seconds: float,
        rest_seconds: float,
        first: tuple[float, float] | None = None,
    ) -> None:
        """Learns from a level that was drafted for a few requests only, after steps without: good news alone.

        Such a level is dearer than one among others: it reads more, and finds nothing in the processor's caches. So if
        it took less than what is believed of a level, the belief is too high; and as nobody speculates, no other step
        would correct it.

        Args:
            levels: that were drafted, at least 1.
            modelled: seconds that the drafter should have taken, before correction.
            draft_seconds: that it took.
            rest_seconds: of the step outside drafter and target pass.
            first: modelled and measured seconds of the first level; None if the clock does not tell levels apart.
        """
        beside = max(rest_seconds - self._plain, 0.0) / levels
        if first is not None:
            modelled, draft_seconds = first
        if modelled > 0:
            self.scale -= _LOOK_RATE * max(self.scale - draft_seconds / modelled, 0.0)
        self.seconds_per_level -= _LOOK_RATE * max(self.seconds_per_level - beside, 0.0)

    def to_json(self) -> dict[str, Any]:
        """What was learned, as a JSON object."""
        seconds = {"seconds_per_level": self.seconds_per_level, "plain": self._plain}
        return seconds | {
            "scale": self.scale,
            "deeper_scale": self.deeper_scale,
            "told_apart": self._told_apart,
            "steps": self._steps,
            "deeper_steps": self._deeper_steps,
            "plain_steps": self._plain_steps,
        }

    def load_json(self, data: Any) -> None:
        """Begins with what another engine on this setup has learned.

        Raises:
            KeyError, TypeError, ValueError: it is not what `to_json` writes.
        """
        self.scale, self.seconds_per_level = float(data["scale"]), float(data["seconds_per_level"])
        self._deeper, self._told_apart = float(data["deeper_scale"]), bool(data["told_apart"])
        self._steps = min(int(data["steps"]), _STEPS_BEFORE)
        self._deeper_steps = min(int(data["deeper_steps"]), _STEPS_BEFORE)
        # How large a plain step's rest is depends on the batch, so that the first own one counts as much.
        self._plain, self._plain_steps = float(data["plain"]), min(int(data["plain_steps"]), 1)

    def beside(self, rest_seconds: float) -> float:
        """Seconds outside drafter and target pass that a step took more than a plain one; 0 before one was seen."""
        return max(rest_seconds - self._plain, 0.0) if self._plain_steps else 0.0

    def level(self, modelled: float, first: bool = True) -> float:
        """Seconds that a level adds to a step, for a modelled time of the drafter."""
        return (self.scale if first else self.deeper_scale) * modelled + self.seconds_per_level

    def deeper_levels(self, modelled: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same for [W] modelled times of deeper levels."""
        return self.deeper_scale * modelled + self.seconds_per_level


def _follow(mean: float, value: float, count: int) -> float:
    """A running mean: the plain mean at first, an exponential one later; outliers count as less than they are."""
    if count > 1 and mean > 0:
        value = min(value, _OUTLIER * mean)
    return mean + max(_RATE, 1 / count) * (value - mean)
