"""What the parts of the device check share: the device, the large model, made when first needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from device.models import LLAMA_8B, TINY, Shape, blank, permuting
from numpy.typing import NDArray

from smartree.cost.profile import Profile
from smartree.drafters.model import ModelDrafter
from smartree.models.load import LoadedModel, prepare_model

_DRAFT_VOCAB = 32000  # of EAGLE-3 heads for this model
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured at which size.

    Attributes:
        shape: of the target.
        batches: of the cost curves.
        rows: tokens a request brings to a pass.
        most_rows: largest pass.
        contexts: cached rows that a pass stands behind; the first is that of the profile.
        window: longest sequence.
        prompt: tokens of a prompt in the policies' part.
        policy_batches: of the policies' part.
        copied: bytes of a copy that measures the bandwidth.
    """

    shape: Shape
    batches: tuple[int, ...]
    rows: tuple[int, ...]
    most_rows: int
    contexts: tuple[int, ...]
    window: int
    prompt: int
    policy_batches: tuple[int, ...]
    copied: int


LARGE = Sizes(
    LLAMA_8B, (1, 4, 16, 32, 64), (1, 2, 4, 8, 16, 32, 64, 128), 1024, (512, 1536), 2048, 128, (1, 8, 32), 2**31
)
SMALL = Sizes(TINY, (1, 4), (1, 4, 16), 64, (32,), 256, 16, (1, 4), 2**24)


class Setup:
    """The device and what is on it."""

    def __init__(self, device: torch.device, sizes: Sizes, cuda_graphs: bool = False) -> None:
        self.device, self.sizes, self.cuda_graphs = device, sizes, cuda_graphs
        self.dtype = torch.bfloat16
        self.profile: Profile | None = None
        """Of the target and its drafter; the part that measures cost curves leaves it here."""

    @cached_property
    def _made(self) -> tuple[LoadedModel, NDArray[np.int64]]:
        model, successor = permuting(self.sizes.shape, self.dtype, self.device)
        return prepare_model(model, None, "random LLaMA"), successor

    @property
    def target(self) -> LoadedModel:
        """The large model."""
        return self._made[0]

    @property
    def successor(self) -> NDArray[np.int64]:
        """[vocabulary] what it says after each token."""
        return self._made[1]

    @cached_property
    def carrier(self) -> ModelDrafter:
        """One layer of the target's size and a head's vocabulary: what an EAGLE-3 head costs, about."""
        shape = self.sizes.shape
        config = shape.config(layers=1, vocab=min(_DRAFT_VOCAB, shape.vocab))
        loaded = prepare_model(blank(config, self.dtype, self.device), None, "one layer")
        return ModelDrafter(loaded, shape.vocab, max(self.sizes.batches), self.sizes.window)
