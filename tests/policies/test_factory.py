"""Policies by name, and one sentence for a name or a cost profile that is missing."""

from __future__ import annotations

import pytest

from smartree.errors import InputError
from smartree.policies import NEED_COST, POLICY_NAMES, make_policy
from tests.policies.steps import cost_of

COST = cost_of(1, [1.0, 1.0, 1.0, 1.1, 1.2, 1.5])


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_name_makes_the_policy_of_that_name(name: str) -> None:
    policy = make_policy(name, COST)
    assert policy.name == name
    assert policy.speculates == (name != "none")
    # Trees of a fixed shape do not depend on what was drafted.
    assert policy.inspects_tokens == (name not in ("none", "chain", "static"))


def test_every_call_makes_a_fresh_policy() -> None:
    assert make_policy("smart", COST) is not make_policy("smart", COST)


@pytest.mark.parametrize("name", ["", "Smart", "eagle3", "no such policy"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InputError) as caught:
        make_policy(name, COST)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in POLICY_NAMES)


@pytest.mark.parametrize("name", NEED_COST)
def test_a_missing_cost_profile_is_named_with_the_way_out(name: str) -> None:
    with pytest.raises(InputError, match=rf"'{name}' needs a cost profile; .*smartree profile"):
        make_policy(name, None)


@pytest.mark.parametrize("name", [name for name in POLICY_NAMES if name not in NEED_COST])
def test_the_others_do_without_a_cost_profile(name: str) -> None:
    assert make_policy(name, None).name == name
