"""Decisions: which nodes to draft and verify. numpy and scipy only."""

from smartree.policies.base import Policy, StepOutcome, StepState
from smartree.policies.calibration import Calibration
from smartree.policies.eagle2 import Eagle2Policy
from smartree.policies.factory import NEED_COST, POLICY_NAMES, make_policy
from smartree.policies.none import NonePolicy
from smartree.policies.paper import PaperPolicy
from smartree.policies.scan import Choice, scan
from smartree.policies.smart import SmartPolicy
from smartree.policies.smart_options import SmartOptions

__all__ = [
    "NEED_COST",
    "POLICY_NAMES",
    "Calibration",
    "Choice",
    "Eagle2Policy",
    "NonePolicy",
    "PaperPolicy",
    "Policy",
    "SmartOptions",
    "SmartPolicy",
    "StepOutcome",
    "StepState",
    "make_policy",
    "scan",
]
