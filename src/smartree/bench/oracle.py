"""The best fixed tree in hindsight, found by trying: a screening of the grid, then races among the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smartree.bench.cell import Advance, make_lane, run_lanes
from smartree.bench.config import PLAIN, tree_name
from smartree.bench.estimate import Round
from smartree.bench.lane import Lane, Load
from smartree.bench.screening import screen
from smartree.policies.fixed import TreeSize

if TYPE_CHECKING:
    from smartree.engine.llm import LLM

_SCREEN_TOKENS = 24
_RACERS = 8
# Each round decodes more tokens a prompt and keeps fewer of the lanes; plain decoding takes part from the start.
_ROUNDS = ((24, 4), (48, 2), (96, 1))


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

    work = [each.lanes * each.tokens for each in rounds(search.grid)]

    def part(place: int) -> Advance:
        return lambda name, done: advance(name, done * work[place] / sum(work))

    grid, load = list(search.grid), search.load
    if len(grid) > _RACERS:
        grid = screen(llm, grid, search.batch, _shortened(load, _SCREEN_TOKENS), _RACERS, part(0))
    lanes = [make_lane(llm, PLAIN, search.batch)]
    lanes += [make_lane(llm, tree_name(size), search.batch, size) for size in grid]
    for place, (tokens, most) in enumerate(_ROUNDS, 1):
        lanes = _race(lanes, _shortened(load, tokens), part(place))[:most]
    return lanes[0].name


def rounds(grid: Sequence[TreeSize]) -> list[Round]:
    """What a search consists of: the screening, then the races."""
    widths = len({size.top_k for size in grid}) if len(grid) > _RACERS else 0
    found, lanes = [Round(widths, _SCREEN_TOKENS, new=True)], min(len(grid), _RACERS) + 1
    for tokens, most in _ROUNDS:
        found.append(Round(lanes, tokens, new=len(found) == 1))
        lanes = min(lanes, most)
    return found


def _race(lanes: Sequence[Lane], load: Load, advance: Advance) -> list[Lane]:
    """The lanes by speed, the fastest first."""
    run_lanes(lanes, load, advance)
    rates = {lane.name: lane.close().rate for lane in lanes}
    return sorted(lanes, key=lambda lane: -rates[lane.name])


def _shortened(load: Load, tokens: int) -> Load:
    return replace(load, max_tokens=min(load.max_tokens, tokens))
