"""A cost profile: measurements of one setup, as JSON (design 7)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from smartree.cost.draft import DraftCost, level_points
from smartree.cost.fits import curve_fits
from smartree.cost.key import ProfileKey
from smartree.cost.model import CostModel
from smartree.cost.padding import UnevenPoint, fit_padding
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
        calibration: what an engine on this setup has learned of its drafter, as `Calibration.to_json` writes it; None
            if nothing was saved.
        uneven: measured passes of requests with different numbers of rows; none where that costs nothing.
        learned: what policies on this setup have learned, as `Policy.learned` gives it, by their names.
    """

    key: ProfileKey | None
    verify: tuple[CostPoint, ...]
    draft: DraftCost = field(default_factory=DraftCost)
    seconds: float = 0.0
    calibration: Mapping[str, Any] | None = None
    uneven: tuple[UnevenPoint, ...] = ()
    learned: Mapping[str, Any] = field(default_factory=dict)

    def cost_model(self) -> CostModel:
        """The model that policies ask."""
        table = CostTable(self.verify)
        return CostModel(table, self.draft, padding=fit_padding(self.uneven, table))

    def to_json(self) -> dict[str, Any]:
        """The profile as the JSON object of design 7."""
        draft: dict[str, Any] = {"seconds_per_step": self.draft.seconds_per_step}
        if self.draft.levels:
            draft = {"levels": [{"batch": p.batch, "width": p.width, "seconds": p.seconds} for p in self.draft.levels]}
        learned: dict[str, Any] = {} if self.calibration is None else {"calibration": dict(self.calibration)}
        if self.learned:
            learned["learned"] = dict(self.learned)
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
            "uneven": [asdict(point) for point in self.uneven],
            "draft": draft,
            "fits": {str(batch): fit.to_json() for batch, fit in curve_fits(self.verify, self.draft).items()},
            "seconds": self.seconds,
        } | learned

    @staticmethod
    def from_json(data: Any) -> Profile:
        """Raises:
        InputError: a part is missing or malformed.
        """
        if not isinstance(data, dict) or not isinstance(data.get("verify"), list):
            raise InputError('A cost profile is a JSON object with a list "verify"; make one with `smartree profile`.')
        points = [_point(row, "tokens", 0) for row in data["verify"]]
        measured = {(point.batch, point.tokens) for point in points}
        plain = data.get("autoregressive", [])
        if not isinstance(plain, list):
            raise InputError('The cost profile\'s "autoregressive" must be a list of rows.')
        for row in plain:
            # A row of the contract has no context: it belongs to the batch's smallest measured one.
            contexts = [p.context for p in points if isinstance(row, dict) and p.batch == row.get("batch")]
            point = _point(row, "batch", min(contexts, default=0))
            if (point.batch, point.tokens) not in measured:
                points.append(point)
        key = ProfileKey.from_json(data["key"]) if data.get("key") else None
        seconds = data.get("seconds", 0.0)
        if not isinstance(seconds, int | float) or not math.isfinite(seconds):
            raise InputError('The cost profile\'s "seconds" must be a number.')
        calibration = data.get("calibration")
        if not isinstance(calibration, dict | None):
            raise InputError('The cost profile\'s "calibration" must be an object.')
        learned = data.get("learned", {})
        if not isinstance(learned, dict) or not _is_finite(learned):
            raise InputError('The cost profile\'s "learned" must be an object, and its numbers finite.')
        return Profile(
            key,
            tuple(points),
            _draft_cost(data.get("draft", {})),
            float(seconds),
            calibration,
            _uneven_points(data.get("uneven", [])),
            learned,
        )

    def save(self, path: Path) -> None:
        """Writes the profile so that an interruption leaves the old file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        work = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            work.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")
            os.replace(work, path)
        finally:
            work.unlink(missing_ok=True)

    @staticmethod
    def load(path: Path) -> Profile:
        """Raises:
        InputError: the file cannot be read or is no profile.
        """
        try:
            return Profile.from_json(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(f"The cost profile {path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise InputError(f"The cost profile {path} is not UTF-8 text.") from error
        except json.JSONDecodeError as error:
            raise InputError(f"The cost profile {path} is not JSON (line {error.lineno}).") from error


def _is_finite(data: Any) -> bool:
    """True if no number in a JSON value is NaN or infinite."""
    if isinstance(data, dict):
        return all(_is_finite(value) for value in data.values())
    if isinstance(data, list):
        return all(_is_finite(value) for value in data)
    return not isinstance(data, float) or math.isfinite(data)


def _point(row: Any, tokens: str, context: int) -> CostPoint:
    """One row of a profile; `tokens` names its field of verified tokens, `context` is the default."""
    try:
        return CostPoint(int(row["batch"]), int(row[tokens]), int(row.get("context", context)), float(row["seconds"]))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"The cost profile row {row} needs numbers for batch, {tokens} and seconds.") from error


def _uneven_points(rows: Any) -> tuple[UnevenPoint, ...]:
    """The "uneven" part of a profile."""
    if not isinstance(rows, list):
        raise InputError('The cost profile\'s "uneven" must be a list of rows.')
    points = []
    for row in rows:
        point = _point(row, "tokens", 0)
        width = row.get("width")
        if not isinstance(width, int) or not _possible(point, width):
            raise InputError(f"The cost profile's uneven row {row} needs a positive time and the width of its widest.")
        points.append(UnevenPoint(point.batch, point.tokens, width, point.context, point.seconds))
    return tuple(points)


def _possible(point: CostPoint, width: int) -> bool:
    """True if every request has a row or more, and the widest `width`."""
    rows = point.batch >= 1 and width + point.batch - 1 <= point.tokens <= point.batch * width
    return rows and point.context >= 0 and 0 < point.seconds < math.inf


def _draft_cost(data: Any) -> DraftCost:
    """The "draft" part of a profile."""
    try:
        levels = level_points(data.get("levels", []))
        seconds = float(data.get("seconds_per_step", 0.0))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError('The cost profile\'s "draft" needs seconds_per_step or levels, as numbers.') from error
    return DraftCost(seconds, levels)
