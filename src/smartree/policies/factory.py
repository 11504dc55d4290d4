"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable

from smartree.cost.model import CostModel
from smartree.errors import InputError
from smartree.policies.base import Policy
from smartree.policies.chain import ChainPolicy
from smartree.policies.eagle2 import Eagle2Policy
from smartree.policies.none import NonePolicy
from smartree.policies.opt_tree import OptTreePolicy
from smartree.policies.paper import PaperPolicy
from smartree.policies.smart import SmartPolicy
from smartree.policies.static import StaticPolicy

POLICY_NAMES = ("none", "smart", "paper", "eagle2", "chain", "static", "opt-tree")
NEED_COST = ("smart", "paper")


def make_policy(name: str, cost: CostModel | None) -> Policy:
    """A fresh policy with its default options.

    Raises:
        InputError: the name is unknown, or the policy needs a cost model and there is none.
    """
    if name not in POLICY_NAMES:
        raise InputError(f"Policy {name!r} is unknown; choose one of {', '.join(POLICY_NAMES)}.")
    simple: dict[str, Callable[[CostModel | None], Policy]] = {
        "none": NonePolicy,
        "eagle2": Eagle2Policy,
        "chain": ChainPolicy,
        "static": StaticPolicy,
        "opt-tree": OptTreePolicy,
    }
    if name in simple:
        return simple[name](cost)
    if cost is None:
        raise InputError(f"Policy {name!r} needs a cost profile; measure one with `smartree profile`.")
    return SmartPolicy(cost) if name == "smart" else PaperPolicy(cost)
