"""A chain of fixed length: the drafter's first choice at every level, whatever it costs and whatever it is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smartree.errors import InputError
from smartree.policies.chain import ChainPolicy
from smartree.tree import Candidates, Forest
from smartree.tree.forest import Ints
from tests.policies.steps import cost_of, draft, nothing_found, same_children, state_of

COST = cost_of(1, [1.0, 2.0])


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("batch", [1, 3])
def test_every_request_gets_a_chain_of_first_choices(length: int, batch: int) -> None:
    step = draft(ChainPolicy(length=length), COST, state_of(batch), same_children(0.3, 0.6, 0.1))
    forest, chosen = step.forest, step.selected
    assert step.levels == length
    assert forest.rank[chosen].tolist() == [0] * len(chosen)
    for request in range(batch):
        own = chosen[forest.request[chosen] == request]
        assert forest.depth[own].tolist() == list(range(1, length + 1))
        assert forest.parent[own].tolist() == [request, *own[:-1].tolist()]


def test_five_is_the_default() -> None:
    assert len(draft(ChainPolicy(), COST, state_of(1), same_children(0.9)).selected) == 5


def by_likelihood_reversed(forest: Forest, frontier: Ints) -> Candidates:
    """A drafter whose second candidate is its first choice."""
    offered = same_children(0.2, 0.7)(forest, frontier)
    return Candidates(
        offered.parents, offered.tokens, offered.probabilities, 1 - offered.ranks, offered.handles, offered.features
    )


def test_the_rank_decides_not_the_order_nor_the_probability() -> None:
    step = draft(ChainPolicy(length=2), COST, state_of(1), by_likelihood_reversed)
    assert step.forest.token[step.selected].tolist() == [1, 1]
    unlikely = draft(ChainPolicy(length=3), COST, state_of(1), same_children(1e-6, 0.9))
    assert len(unlikely.selected) == 3


def test_depth_limits_are_those_of_each_request() -> None:
    state = state_of(3)
    state = type(state)(3, 0, np.array([2, 0, 9]))
    step = draft(ChainPolicy(length=4), COST, state, same_children(0.9))
    assert np.bincount(step.forest.request[step.selected], minlength=3).tolist() == [2, 0, 4]


def test_a_drafter_without_an_idea_leaves_plain_decoding() -> None:
    step = draft(ChainPolicy(), COST, state_of(2), nothing_found)
    assert (step.levels, len(step.selected)) == (1, 0)


def test_it_looks_at_no_cost_and_at_no_token() -> None:
    chosen = []
    for seconds in ([1.0] * 9, list(np.arange(1.0, 10.0))):
        policy = ChainPolicy(cost_of(1, seconds))
        chosen.append(draft(policy, cost_of(1, seconds), state_of(1), same_children(0.5)).selected.tolist())
        assert policy.predicted_seconds == pytest.approx(seconds[5])
    assert chosen[0] == chosen[1]
    assert not ChainPolicy().inspects_tokens  # so sampled drafts are no harm


def test_without_a_cost_model_nothing_is_predicted() -> None:
    policy = ChainPolicy()
    draft(policy, COST, state_of(1), same_children(0.5))
    assert math.isnan(policy.predicted_seconds)


@pytest.mark.parametrize("length", [0, -1])
def test_a_chain_of_nothing_is_refused(length: int) -> None:
    with pytest.raises(InputError, match=f"length of at least 1; got {length}"):
        ChainPolicy(length=length)
