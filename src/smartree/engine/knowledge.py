"""What is known of a setup: what its passes cost, and what engines have learned on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smartree.cost.model import CostModel
from smartree.cost.profile import Profile
from smartree.drafters.base import Drafter
from smartree.engine.engine import CALIBRATION_LAG, Engine
from smartree.engine.measure import Progress, measure, profile_key, profile_path
from smartree.errors import InputError
from smartree.models.load import LoadedModel
from smartree.policies.base import Policy
from smartree.policies.calibration import Calibration
from smartree.policies.factory import NEED_COST, make_policy
from smartree.policies.smart import SmartPolicy

# A profile times levels alone. In a step they come behind a pass that has emptied the caches, and each of them takes
# time outside the drafter too; how much, steps will tell.
_USUAL_SCALE = 1.3
_MOST_BESIDE = 0.0005  # seconds a level


class Knowledge:
    """A setup's profile, and policies and calibrations that begin with what it says.

    Attributes:
        profile: the measured costs, with what was learned; None if nothing was measured.
    """

    def __init__(
        self,
        target: LoadedModel,
        drafter: Drafter | None,
        max_batch: int,
        window: int,
        profile: Profile | None = None,
        path: Path | None = None,
    ) -> None:
        """Args:
            target: the model.
            drafter: None if there is none.
            max_batch: most requests decoded together.
            window: longest text.
            profile: of this setup, if one is given.
            path: the file that it came from.

        Raises:
            InputError: the profile is of another setup, or from a file that does not say of which.
        """
        self._target, self._drafter, self._max_batch, self._window = target, drafter, max_batch, window
        self._path = path
        self.profile = profile
        if profile is not None and profile.key is not None:
            profile.key.require(profile_key(target, drafter))
        elif profile is not None and path is not None:
            raise InputError(f"The cost profile {path} names no setup; measure this one with `smartree profile`.")

    def ensure_profile(self, progress: Progress | None = None) -> None:
        """Takes the saved profile, or measures one, if there is none yet."""
        if self.profile is None:
            self.profile = self.saved_profile() or self.measure(progress)

    def saved_profile(self) -> Profile | None:
        """The profile of this setup in the user's cache folder, if there is one that goes far enough."""
        path = profile_path(profile_key(self._target, self._drafter))
        profile = Profile.load(path) if path.is_file() else None
        covers = profile is not None and max(point.batch for point in profile.verify) >= self._max_batch
        return profile if covers else None

    def measure(self, progress: Progress | None = None) -> Profile:
        """Measures this setup and saves the profile in the user's cache folder."""
        profile = measure(self._target, self._drafter, self._max_batch, self._window, progress)
        profile.save(profile_path(profile_key(self._target, self._drafter)))
        return profile

    def cost_model(self) -> CostModel | None:
        """The measured costs, with what steps are expected to add to them; None if nothing was measured."""
        if self.profile is None:
            return None
        model = self.profile.cost_model()
        if self.profile.draft.levels:
            thinnest = min(point.seconds for point in self.profile.draft.levels)
            model.drafting.expect(_USUAL_SCALE, min(thinnest / 2, _MOST_BESIDE))
        return model

    def make_policy(self, name: str) -> Policy:
        """A policy by name that begins with what an earlier one of this name has learned on this setup, or else with
        what is known of the drafter.

        Raises:
            InputError: it is unknown, needs a profile that was not measured, or what the profile says it has learned
                is malformed.
        """
        policy = make_policy(name, self.cost_model())
        learned = self.profile.learned.get(name) if self.profile is not None else None
        known = self._acceptance()
        if learned is None and known is not None and isinstance(policy, SmartPolicy):
            policy.expect(Calibration.rates_of(known))
        if learned is not None:
            try:
                policy.resume(learned)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"What {name!r} has learned is malformed in the cost profile; delete it or profile again."
                ) from error
        return policy

    def calibration(self) -> Calibration:
        """What engines on this setup have learned of the drafter, else what came with it, else nothing."""
        calibration, known = Calibration(lag=CALIBRATION_LAG), self._acceptance()
        if known is not None:
            calibration.load_json(known)
        return calibration

    def _acceptance(self) -> Mapping[str, Any] | None:
        """The same as it was saved."""
        saved = self.profile.calibration if self.profile is not None else None
        return saved if saved is not None or self._drafter is None else self._drafter.experience

    def learn_from(self, engine: Engine) -> bool:
        """Takes what an engine has learned into the profile.

        Returns:
            False if there is nothing to learn: no profile of this setup, or no drafter.
        """
        if self.profile is None or self.profile.key is None or engine.drafter is None:
            return False
        if not engine.drafter.calibrated:
            self.profile = replace(self.profile, calibration=engine.calibration.to_json())
        own = getattr(engine.policy, "cost", None)  # an own policy's corrections may be of another table
        if engine.policy.name in NEED_COST and engine.stats.steps and own and own.table.points == self.profile.verify:
            learned = {**self.profile.learned, engine.policy.name: engine.policy.learned()}
            self.profile = replace(self.profile, learned=learned)
        return True

    def save(self) -> None:
        """Writes the profile where it came from, if it is this setup's.

        Raises:
            OSError: it cannot be written.
        """
        if self.profile is not None and self.profile.key is not None:
            self.profile.save(self._path or profile_path(self.profile.key))
