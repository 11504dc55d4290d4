"""What a profile was measured on: a profile is only good for the same setup."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields

from smartree.errors import InputError, ProfileMismatchError


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """Everything that changes the cost of a pass (design 3.5)."""

    device: str
    model: str
    drafter: str
    dtype: str
    attention: str
    threads: int
    torch: str
    transformers: str
    smartree: str

    @staticmethod
    def from_json(data: object) -> ProfileKey:
        """Raises:
        InputError: a field is missing.
        """
        if not isinstance(data, dict):
            raise InputError("The cost profile has no key; measure it again with `smartree profile`.")
        missing = [field.name for field in fields(ProfileKey) if field.name not in data]
        if missing:
            raise InputError(f"The cost profile's key lacks {', '.join(missing)}; measure it with `smartree profile`.")
        return ProfileKey(**{field.name: data[field.name] for field in fields(ProfileKey)})

    def to_json(self) -> dict[str, str | int]:
        """The key as a JSON object."""
        return asdict(self)

    def digest(self) -> str:
        """A short name for files."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def require(self, other: ProfileKey) -> None:
        """Raises:
        ProfileMismatchError: `other`, the setup at hand, is not what the profile was measured on.
        """
        differing = [
            f"{field.name} (profile: {getattr(self, field.name)}, here: {getattr(other, field.name)})"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]
        if differing:
            raise ProfileMismatchError(
                f"The cost profile was measured on another setup: {'; '.join(differing)}; "
                "measure this one with `smartree profile`."
            )
