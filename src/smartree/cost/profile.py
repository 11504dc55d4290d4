"""A cost profile: measurements of one setup, as JSON (design 7)."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smartree.cost.draft import DraftCost, level_points
from smartree.cost.fits import power_exponential_fits
from smartree.cost.key import ProfileKey
from smartree.cost.model import CostModel
from smartree.cost.table import CostPoint, CostTable
from smartree.errors import InputError


@dataclass(frozen=True, slots=True)
class Profile:
    """What `smartree profile` measures and saves.

    Attributes:
        key: the setup; None for hand-written profiles, which only `plan` and `simulate` accept.
        verify: measured target passes.
        draft: cost of drafting.
        seconds: how long measuring took.
    """

    key: ProfileKey | None
    verify: tuple[CostPoint, ...]
    draft: DraftCost = field(default_factory=DraftCost)
    seconds: float = 0.0

    def cost_model(self) -> CostModel:
        """The model that policies ask."""
        return CostModel(CostTable(self.verify), self.draft)

    def to_json(self) -> dict[str, Any]:
        """The profile as the JSON object of design 7."""
        draft: dict[str, Any] = {"seconds_per_step": self.draft.seconds_per_step}
        if self.draft.levels:
            draft = {"levels": [{"batch": p.batch, "width": p.width, "seconds": p.seconds} for p in self.draft.levels]}
        return {
            "key": self.key.to_json() if self.key else {},
            "autoregressive": [
                {"batch": p.batch, "context": p.context, "seconds": p.seconds}
                for p in self.verify
                if p.tokens == p.batch
            ],
            "verify": [
                {"batch": p.batch, "tokens": p.tokens, "context": p.context, "seconds": p.seconds} for p in self.verify
            ],
            "draft": draft,
            "fits": {str(batch): fit.to_json() for batch, fit in power_exponential_fits(self.verify).items()},
            "seconds": self.seconds,
        }

    @staticmethod
    def from_json(data: Any) -> Profile:
        """Raises:
        InputError: a part is missing or malformed.
        """
        if not isinstance(data, dict) or not isinstance(data.get("verify"), list):
            raise InputError('A cost profile is a JSON object with a list "verify"; make one with `smartree profile`.')
        points = []
        rows = [(row, row.get("tokens")) for row in data["verify"]]
        rows += [(row, row.get("batch")) for row in data.get("autoregressive", [])]
        for row, tokens in rows:
            try:
                point = CostPoint(int(row["batch"]), int(tokens), int(row.get("context", 0)), float(row["seconds"]))
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"The cost profile row {row} lacks batch, tokens or seconds.") from error
            points.append(point)
        draft = data.get("draft", {})
        try:
            levels = level_points(draft.get("levels", []))
            cost = DraftCost(float(draft.get("seconds_per_step", 0.0)), levels)
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError('The cost profile\'s "draft" needs seconds_per_step or levels.') from error
        key = ProfileKey.from_json(data["key"]) if data.get("key") else None
        return Profile(key, tuple(dict.fromkeys(points)), cost, float(data.get("seconds", 0.0)))

    def save(self, path: Path) -> None:
        """Writes the profile so that an interruption leaves the old file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            json.dump(self.to_json(), file, indent=1)
        os.replace(file.name, path)

    @staticmethod
    def load(path: Path) -> Profile:
        """Raises:
        InputError: the file cannot be read or is no profile.
        """
        try:
            return Profile.from_json(json.loads(path.read_text()))
        except OSError as error:
            raise InputError(f"The cost profile {path} cannot be read: {error.strerror}.") from error
        except json.JSONDecodeError as error:
            raise InputError(f"The cost profile {path} is not JSON (line {error.lineno}).") from error
