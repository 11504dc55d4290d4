"""Plain decoding drafts nothing, whatever it is offered."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.policies import NonePolicy
from smartree.tree import Forest
from tests.policies.steps import cost_of, draft, same_children, state_of


def test_nothing_is_drafted_and_nothing_selected() -> None:
    cost = cost_of(3, [0.5, 9.0])
    policy = NonePolicy(cost)
    step = draft(policy, cost, state_of(3), same_children(1.0))
    assert (step.levels, len(step.selected), len(step.forest)) == (0, 0, 3)
    assert policy.predicted_seconds == pytest.approx(0.5)


def test_candidates_offered_anyway_are_not_recorded() -> None:
    policy, forest = NonePolicy(), Forest(np.zeros(1, np.int64))
    policy.begin(state_of(1), forest)
    assert len(policy.grow(forest, same_children(0.9)(forest, np.array([0])))) == 0
    assert len(forest) == 1


def test_the_engine_is_told_that_it_never_speculates() -> None:
    assert not NonePolicy().speculates
    assert not NonePolicy().inspects_tokens  # so sampled drafts are no harm
