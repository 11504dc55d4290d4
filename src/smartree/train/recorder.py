"""Keeps the hidden states that the engine sees anyway while it writes a text: they need not be computed again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smartree.drafters.base import BaseDrafter, DraftRequest
from smartree.models.taps import chosen_rows
from smartree.tree.forest import Candidates, Forest, Ints


class FeatureRecorder(BaseDrafter):
    """Drafts nothing and remembers the hidden states of every running request."""

    name = "recorder"
    calibrated = True

    def __init__(self, layers: Sequence[int]) -> None:
        """Args:
        layers: of the target, as `LayerTaps` counts them.
        """
        self.feature_layers = tuple(layers)
        self._states: dict[int, list[torch.Tensor]] = {}

    def fresh(self) -> FeatureRecorder:
        """One that remembers nothing yet."""
        return FeatureRecorder(self.feature_layers)

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        """Nothing is drafted."""

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """Nothing is drafted."""
        return Candidates.empty()

    def absorb(
        self, request_ids: Sequence[int], counts: Sequence[int], features: torch.Tensor, rows: Ints | None = None
    ) -> None:
        """Remembers rows in the order of the text."""
        parts = chosen_rows(features, rows).split(list(counts))
        for request_id, mine in zip(request_ids, parts, strict=True):
            self._states.setdefault(request_id, []).append(mine.to(torch.bfloat16).cpu())

    def pop(self, request_id: int) -> torch.Tensor:
        """[rows, width] everything remembered of a request, which is forgotten then."""
        return torch.cat(self._states.pop(request_id))
