"""Policies by name."""

from __future__ import annotations

from smartree.cost.model import CostModel
from smartree.errors import InputError
from smartree.policies.base import Policy
from smartree.policies.eagle2 import Eagle2Policy
from smartree.policies.none import NonePolicy
from smartree.policies.paper import PaperPolicy
from smartree.policies.smart import SmartPolicy

POLICY_NAMES = ("none", "smart", "paper", "eagle2")
NEED_COST = ("smart", "paper")


def make_policy(name: str, cost: CostModel | None) -> Policy:
    """A fresh policy with its default options.

    Raises:
        InputError: the name is unknown, or the policy needs a cost model and there is none.
    """
    if name not in POLICY_NAMES:
        raise InputError(f"Policy {name!r} is unknown; choose one of {', '.join(POLICY_NAMES)}.")
    if name == "none":
        return NonePolicy(cost)
    if name == "eagle2":
        return Eagle2Policy(cost)
    if cost is None:
        raise InputError(f"Policy {name!r} needs a cost profile; measure one with `smartree profile`.")
    return SmartPolicy(cost) if name == "smart" else PaperPolicy(cost)
