"""Plain decoding: no tree at all."""

from __future__ import annotations

import numpy as np

from smartree.policies.base import BasePolicy, StepState
from smartree.tree.forest import Candidates, Forest, Ints

_NOTHING = np.empty(0, np.int64)


class NonePolicy(BasePolicy):
    """Verifies roots only: the baseline that everything is compared with."""

    name = "none"
    inspects_tokens = False
    speculates = False

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """No root is drafted for."""
        self.state = state
        return _NOTHING

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """Records nothing."""
        return _NOTHING

    def select(self, forest: Forest) -> Ints:
        """Selects nothing."""
        self.predict(forest, _NOTHING)
        return _NOTHING
