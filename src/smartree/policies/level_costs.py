"""What the levels of a step cost: the drafter's time by the profile, corrected by the clock."""

from __future__ import annotations

import numpy as np

from smartree.cost.model import CostModel
from smartree.policies.base import StepOutcome
from smartree.policies.unread import Unread
from smartree.tree.forest import Floats

_UNEVEN_STEPS = 20  # over which the mean of what being uneven costs forgets


class LevelCosts:
    """Prices levels, adds up those of the step, and learns from what they really took.

    Attributes:
        unread: what the drafter has still to read.
        scouting: True if this step's first level is for the scouts only.
        seconds: modelled seconds of this step's levels so far.
        count: of this step's levels so far.
        free: True if drafting costs nothing.
    """

    def __init__(self, model: CostModel) -> None:
        """Args:
        model: the costs of the setup.
        """
        self._model = model
        self.free = not model.draft.by_level and model.draft.seconds_per_step == 0
        self.unread = Unread()
        self._batch, self._usual = 1, False
        self._uneven, self._uneven_steps = 0.0, 0
        self.begin(1)

    def begin(self, batch: int) -> None:
        """Starts a step of `batch` requests."""
        self._batch = batch
        self.scouting, self.count = False, 0
        self.seconds, self._modelled = 0.0, list[float]()
        # Every level of a step is asked about several times.
        self._clock = self._model.refinement.scale
        self._curve = self._model.draft.levels_of(batch) if self._model.draft.by_level else None

    def add(self, depth: int, width: int) -> None:
        """Counts a level below nodes at `depth`, `width` of them. The pass itself pays for being uneven."""
        modelled = self._by_profile(depth, width)
        self.count += 1
        self.seconds += modelled if self._curve is None else self._model.drafting.level(modelled, depth == 0)
        self._modelled.append(modelled)

    def of(self, depth: int, width: int) -> float:
        """Seconds that a level adds to the step: the drafter's, and what goes with it.

        Whether a level pays is asked of path probabilities alone, so that its trees come out uneven is part of it.
        """
        modelled = self._by_profile(depth, width)
        return modelled if self._curve is None else self._model.drafting.level(modelled, depth == 0) + self._uneven

    def by_width(self, widths: int) -> Floats:
        """[widths] seconds that the drafter and what goes with it take for a deeper level of 1, 2, ... rows."""
        if self._curve is None:
            return np.zeros(widths)
        return self._model.drafting.deeper_levels(self._clock * self._curve.first(widths))

    def reading(self, rows: int) -> float:
        """Seconds of a level that reads so many committed tokens."""
        return self._clock * self._curve.at(rows) if self._curve is not None else 0.0

    def _by_profile(self, depth: int, width: int) -> float:
        """The drafter's time; the first level also reads what was committed since the last one."""
        if self._curve is None:
            return self._clock * self._model.draft.seconds_per_step if depth == 0 else 0.0
        return self._clock * self._curve.at(width if depth else max(width, self._backlog()))

    def _backlog(self) -> int:
        """Rows that the first level reads; where all requests begin, a long backlog has been asked about before."""
        batch, unread = self._batch, self.unread
        return unread.of_scouts(batch) if self.scouting else min(unread.rows, unread.usual(batch))

    def beside(self, outcome: StepOutcome) -> float:
        """Seconds that a step took outside drafter and target pass, more than a plain one."""
        if outcome.target_seconds <= 0:
            return 0.0
        return self._model.drafting.beside(outcome.seconds - outcome.target_seconds - outcome.draft_seconds)

    def learn(self, outcome: StepOutcome, uneven_seconds: float) -> None:
        """Lets the cost model compare what drafting cost with the clock.

        Only steps that follow another one with drafts say what a level costs: others read more. What requests bring
        that joined between the two does count: as long as it speculates, the drafter has to read all of it.

        Args:
            outcome: the step.
            uneven_seconds: that its pass took longer, by the model, as its trees were uneven.
        """
        usual, drafted, scouted = self._usual, self.count > 0, self.scouting
        self._usual = drafted and not self.scouting
        alone = outcome.state.extra_tokens == 0
        # What is planted may leave a level little to add, which says nothing against the next one.
        self.unread.update(
            outcome.state.batch, outcome.tokens, drafted, self.scouting, alone and not outcome.forest.planted
        )
        if not drafted and len(outcome.forest) > outcome.state.batch:
            return  # neither a plain step nor one with levels
        timed = self._model.draft.by_level and outcome.target_seconds > 0 and outcome.state.extra_tokens == 0
        rest = outcome.seconds - outcome.target_seconds - outcome.draft_seconds
        clock = outcome.level_seconds
        seconds = sum(clock) if clock else outcome.draft_seconds
        first = (self._modelled[0], clock[0]) if clock and drafted else None
        if timed and (usual or not drafted):
            self._model.drafting.observe(self.count, sum(self._modelled), seconds, rest, first)
        elif timed and scouted and drafted:
            self._model.drafting.observe_look(self.count, sum(self._modelled), seconds, rest, first)
        if drafted and self._model.draft.by_level:
            self._uneven_steps = min(self._uneven_steps + 1, _UNEVEN_STEPS)
            self._uneven += (uneven_seconds / self.count - self._uneven) / (self._uneven_steps + 1)
