"""What is simulated: a device with a model by their roofline, or a measured profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from smartree.cost import CostModel, Profile
from smartree.errors import InputError
from smartree.simulate.devices import DEVICES, Device, Overheads, device_named
from smartree.simulate.models import ModelShape
from smartree.simulate.roofline import PassWork, cost_model, fits, pass_seconds
from smartree.tree.forest import Floats, Ints


class Setup(Protocol):
    """One device with one model.

    Attributes:
        device, model: names for rows.
        context: cached tokens per request.
        acceptance: name of the preset that describes its drafter.
    """

    @property
    def device(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def context(self) -> int: ...
    @property
    def acceptance(self) -> str: ...

    def cost(self, batch: int) -> CostModel:
        """The cost model for a batch size.

        Raises:
            InputError: this batch size cannot be simulated here.
        """
        ...

    def fits(self, batch: int) -> bool:
        """False if this batch size needs more memory than there is."""
        ...

    def bend(self) -> tuple[Ints, Floats]:
        """Verified tokens and seconds of passes from the plain step to far beyond the bend, at the smallest batch."""
        ...


@dataclass(frozen=True, slots=True)
class RooflineSetup:
    """A preset device and model."""

    hardware: Device
    shape: ModelShape
    overheads: Overheads = field(default_factory=Overheads)

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.hardware.name

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.shape.name

    @property
    def context(self) -> int:
        """Cached tokens per request."""
        return self.shape.context

    @property
    def acceptance(self) -> str:
        """Name of the preset of the model's draft head."""
        return self.shape.acceptance

    def cost(self, batch: int) -> CostModel:
        """The roofline's table for this batch size."""
        return cost_model(self.hardware, self.shape, batches=(batch,), overheads=self.overheads)

    def fits(self, batch: int) -> bool:
        """Whether the batch fits into memory."""
        return fits(self.hardware, self.shape, batch)

    def bend(self) -> tuple[Ints, Floats]:
        """Passes of one request with 1 to 1024 rows."""
        rows = np.arange(1, 1025)
        work = PassWork.of_target(self.shape)
        seconds = pass_seconds(self.hardware, self.overheads, work, 1, rows, self.context)
        return rows, seconds + self.overheads.pass_seconds


@dataclass(frozen=True, slots=True)
class ProfileSetup:
    """A measured profile: its own device, model and drafter.

    Attributes:
        name: of the device in rows.
        profile: as measured; the smallest context of its rows is the simulated one.
    """

    name: str
    profile: Profile

    @property
    def device(self) -> str:
        """The device that the profile's key names, else the file's name."""
        return self.profile.key.device if self.profile.key else self.name

    @property
    def model(self) -> str:
        """The model that the profile's key names."""
        return self.profile.key.model if self.profile.key else "profile"

    @property
    def context(self) -> int:
        """The smallest measured context."""
        return min(point.context for point in self.profile.verify)

    @property
    def acceptance(self) -> str:
        """Lookup drafting costs a constant; a drafter that costs by level is taken for an EAGLE-3 head."""
        return "eagle3-8b" if self.profile.draft.by_level else "lookup"

    def cost(self, batch: int) -> CostModel:
        """The measured table; a batch beyond its own sizes is refused."""
        known = sorted({point.batch for point in self.profile.verify})
        if not known[0] <= batch <= known[-1]:
            raise InputError(
                f"The profile {self.name} was measured for batch sizes {', '.join(map(str, known))}; {batch} is not "
                "among or between them."
            )
        return self.profile.cost_model()

    def fits(self, batch: int) -> bool:
        """A profile says nothing of memory."""
        return True

    def bend(self) -> tuple[Ints, Floats]:
        """Passes of the smallest measured batch, as far as it was measured."""
        smallest = min(point.batch for point in self.profile.verify)
        rows = np.arange(smallest, max(point.tokens for point in self.profile.verify if point.batch == smallest) + 1)
        return rows, self.cost(smallest).verify(smallest, rows, self.context)


def setups_for(devices: Sequence[str], models: Sequence[ModelShape], overheads: Overheads) -> list[Setup]:
    """Every device with every model; a profile's file stands for itself, whatever the models.

    Args:
        devices: names of presets, "all", or files that end in .json.
        models: shapes.
        overheads: the free parameters of the rooflines.

    Raises:
        InputError: a device is unknown, or a file is no profile.
    """
    setups: list[Setup] = []
    for name in devices:
        if name.endswith(".json") and name not in DEVICES:
            setups.append(ProfileSetup(Path(name).stem, Profile.load(Path(name))))
            continue
        chosen = list(DEVICES.values()) if name == "all" else [device_named(name)]
        setups += [RooflineSetup(device, model, overheads) for device in chosen for model in models]
    return setups
