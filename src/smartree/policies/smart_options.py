"""Bounds of the default policy's search."""

from __future__ import annotations

from dataclasses import dataclass

from smartree.errors import InputError


@dataclass(frozen=True, slots=True)
class SmartOptions:
    """Bounds of the search; the defaults need no tuning.

    Attributes:
        max_depth: most levels.
        max_nodes: most nodes verified for one request (the paper's hard cap).
        width: most nodes of one request expanded in a level.
        least_path: path probability below which a node is not expanded in a level that costs nothing: it still takes
            bookkeeping. Levels that cost have a price instead.
        explore_share: share of all time that may be spent on looking again at speculation when it does not seem to
            pay, and a fifth of it on levels below those that do.
        explore_nodes: most nodes of such a look.
        use_price: False makes every step maximise its own ratio.
        padded: True for engines that pad every request to one width: a pass then carries B * (width + 1) rows.
        prompt_tokens: most prompt tokens in a pass that deep trees ride on. With more the pass is compute-bound, far
            beyond the rows that a profile measures: one level has to do, and nobody begins to speculate.
        hysteresis: gain, as a share of the step's tokens, below which the last size is kept; for engines where another
            size means another captured graph. Not where uneven trees cost (`cost/padding.py`).
    """

    max_depth: int = 16
    max_nodes: int = 300
    width: int = 10
    least_path: float = 0.01
    explore_share: float = 0.005
    explore_nodes: int = 4
    use_price: bool = True
    padded: bool = False
    prompt_tokens: int = 32
    hysteresis: float = 0.0

    def __post_init__(self) -> None:
        if min(self.max_depth, self.max_nodes, self.width, self.explore_nodes) < 1:
            raise InputError("smart needs max_depth, max_nodes, width and explore_nodes of at least 1.")
        if not 0 <= self.explore_share < 1:
            raise InputError(f"smart's explore_share is {self.explore_share}; it must be in [0, 1).")
        if not 0 <= self.hysteresis < 1:
            raise InputError(f"smart's hysteresis is {self.hysteresis}; it must be in [0, 1).")
