"""Where policies and drafters meet: who is asked what, and which pairs are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from smartree.drafters.base import Drafter
from smartree.engine.drafting import Draft, draft_trees, require_lossless
from smartree.errors import InputError
from smartree.policies import Calibration, NonePolicy, StepState, make_policy
from smartree.policies.base import BasePolicy, Policy
from smartree.tree.forest import Candidates, Forest, Ints, Proposal
from tests.drafters.grown import Text
from tests.tiny import ScriptedDrafter, flat_profile


def run(
    policy: Policy, drafter: Drafter | None, limits: list[int], calibration: Calibration | None = None, **kwargs: float
) -> Draft:
    requests = [Text(index, [index, index + 1], **kwargs) for index in range(len(limits))]
    state = StepState(len(limits), 10, np.array(limits))
    return draft_trees(policy, drafter, calibration or Calibration(), state, requests)


def two_children(text: Sequence[int]) -> list[tuple[int, float]]:
    return [(10, 0.8), (11, 0.1)]


class Everything(BasePolicy):
    """Drafts to its depth and selects all."""

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        return self.within_limits(forest, forest.append(candidates))

    def select(self, forest: Forest) -> Ints:
        return forest.best_first()


def test_levels_are_drafted_until_the_policy_has_enough() -> None:
    draft = run(Everything(max_depth=3), ScriptedDrafter(two_children, max_depth=9), [9, 9])
    assert draft.levels == 3
    assert len(draft.forest) == 2 * (1 + 2 + 4 + 8)
    assert len(draft.selected) == 2 * 14
    assert draft.forest.token[:2].tolist() == [1, 2]  # roots are the last committed tokens
    assert draft.seconds >= sum(draft.level_seconds) > 0
    assert len(draft.level_seconds) == 3


def test_levels_end_where_the_drafter_or_the_requests_end() -> None:
    assert run(Everything(max_depth=9), ScriptedDrafter(two_children, max_depth=2), [9]).levels == 2
    draft = run(Everything(max_depth=9), ScriptedDrafter(two_children, max_depth=9), [0, 1, 3])
    assert draft.levels == 3
    assert [int(draft.forest.depth[draft.forest.request == request].max()) for request in range(3)] == [0, 1, 3]


def test_an_empty_level_ends_the_draft() -> None:
    def once(text: Sequence[int]) -> list[tuple[int, float]]:
        return two_children(text) if len(text) == 2 else []

    draft = run(Everything(max_depth=9), ScriptedDrafter(once, max_depth=9), [9])
    assert (draft.levels, len(draft.forest)) == (1, 3)


@pytest.mark.parametrize("limits", [[], [0], [0, 0, 0]])
def test_without_room_the_drafter_is_not_asked(limits: list[int]) -> None:
    def never(text: Sequence[int]) -> list[tuple[int, float]]:
        raise AssertionError

    draft = run(Everything(), ScriptedDrafter(never), limits)
    assert (draft.levels, len(draft.selected), len(draft.forest)) == (0, 0, len(limits))


def test_no_drafter_and_no_policy_draft_nothing() -> None:
    def never(text: Sequence[int]) -> list[tuple[int, float]]:
        raise AssertionError

    assert run(NonePolicy(), ScriptedDrafter(never), [9, 9]).levels == 0
    for name in ("none", "smart", "paper", "eagle2"):
        draft = run(make_policy(name, flat_profile().cost_model()), None, [9, 9])
        assert (draft.levels, len(draft.selected), len(draft.forest)) == (0, 0, 2)


def test_the_forest_says_how_its_tokens_were_chosen() -> None:
    for proposal in Proposal:
        drafter = ScriptedDrafter(two_children, proposal=proposal)
        assert run(Everything(), drafter, [3]).forest.proposal is proposal


def test_probabilities_are_calibrated_unless_the_drafter_has_done_so() -> None:
    calibration = Calibration()
    drafter = ScriptedDrafter(two_children, max_depth=1)
    first = run(Everything(), drafter, [3], calibration)
    for _ in range(50):  # the target's choice is always the second child
        calibration.learn(first.forest, np.array([1, 2]), np.array([False, True]), np.array([False]))
    assert run(Everything(), drafter, [3], calibration).forest.probability[1:].tolist() == [0.8, 0.1]
    drafter.calibrated = False
    first = run(Everything(), drafter, [3], calibration)
    assert first.forest.feature[1:].tolist() == [0.8, 0.1]  # its own word is remembered for learning
    for _ in range(50):
        calibration.learn(first.forest, np.array([1, 2]), np.array([False, True]), np.array([False]))
    learned = run(Everything(), drafter, [3], calibration).forest.probability[1:]
    assert learned[0] < 0.3
    assert learned[1] > 0.7
    # What was learned at temperature 0 says nothing about sampling.
    assert run(Everything(), drafter, [3], calibration, temperature=1.0).forest.probability[1] == pytest.approx(0.8)


@pytest.mark.parametrize("name", ["smart", "paper", "eagle2"])
def test_sampled_proposals_and_pruning_by_tokens_do_not_go_together(name: str) -> None:
    policy = make_policy(name, flat_profile().cost_model())
    require_lossless(policy, None)
    require_lossless(policy, ScriptedDrafter(two_children))
    with pytest.raises(InputError, match=name) as error:
        require_lossless(policy, ScriptedDrafter(two_children, proposal=Proposal.SAMPLED))
    assert "scripted" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_policy_that_looks_at_no_token_may_use_sampled_proposals() -> None:
    require_lossless(NonePolicy(), ScriptedDrafter(two_children, proposal=Proposal.SAMPLED))
