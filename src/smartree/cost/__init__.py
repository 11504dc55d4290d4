"""What passes cost on the device at hand: measured, keyed, monotone. numpy and scipy only."""

from smartree.cost.draft import DraftCost, DraftPoint
from smartree.cost.fits import PowerExponential, fit_power_exponential, power_exponential_fits
from smartree.cost.key import ProfileKey
from smartree.cost.model import CostModel
from smartree.cost.profile import Profile
from smartree.cost.table import CostPoint, CostTable

__all__ = [
    "CostModel",
    "CostPoint",
    "CostTable",
    "DraftCost",
    "DraftPoint",
    "PowerExponential",
    "Profile",
    "ProfileKey",
    "fit_power_exponential",
    "power_exponential_fits",
]
