"""The best fixed tree in hindsight, found by trying: a screening of the grid, then races among the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smartree.bench.cell import Advance, make_lane, run_lanes
from smartree.bench.config import PLAIN, tree_name
from smartree.bench.lane import Lane, Load
from smartree.bench.screening import screen
from smartree.policies.fixed import TreeSize

if TYPE_CHECKING:
    from smartree.engine.llm import LLM

_SCREEN_TOKENS = 24
_RACERS = 8
# Each round decodes more tokens a prompt and keeps fewer of the lanes; plain decoding takes part from the start.
_ROUNDS = ((24, 4), (48, 2), (96, 1))
SEARCH_SHARES = (0.2, 0.4, 0.2, 0.2)
"""About what the screening and the rounds take of a search."""


@dataclass(frozen=True, slots=True)
class Search:
    """What the oracle may choose, and on which prompts.

    Attributes:
        grid: the trees.
        batch: requests decoded together.
        load: the search prompts; outputs are cut shorter than its max_tokens in the first rounds.
    """

    grid: Sequence[TreeSize]
    batch: int
    load: Load


def search_tree(llm: LLM, search: Search, advance: Advance) -> str:
    """The fastest tree of the grid as "depth/top_k/total", or "none" where plain decoding is faster.

    Args:
        llm: the model, with a profile.
        search: what may be chosen.
        advance: hears of progress, shares of the whole search.
    """

    def part(share: float) -> Advance:
        return lambda name, done: advance(name, share * done)

    grid, load = list(search.grid), search.load
    if len(grid) > _RACERS:
        short = _shortened(load, _SCREEN_TOKENS)
        grid = screen(llm, grid, search.batch, short, _RACERS, part(SEARCH_SHARES[0]))
    lanes = [make_lane(llm, PLAIN, search.batch)]
    lanes += [make_lane(llm, tree_name(size), search.batch, size) for size in grid]
    for (tokens, most), share in zip(_ROUNDS, SEARCH_SHARES[1:], strict=True):
        if len(lanes) > 1:
            lanes = _race(lanes, _shortened(load, tokens), part(share))[:most]
    return lanes[0].name


def _race(lanes: Sequence[Lane], load: Load, advance: Advance) -> list[Lane]:
    """The lanes by speed, the fastest first."""
    run_lanes(lanes, load, advance)
    rates = {lane.name: lane.close().rate for lane in lanes}
    return sorted(lanes, key=lambda lane: -rates[lane.name])


def _shortened(load: Load, tokens: int) -> Load:
    return replace(load, max_tokens=min(load.max_tokens, tokens))
