"""One measurement: every policy decodes the same prompts once, in turns of a second or so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smartree.bench.config import ORACLE, PLAIN, Group
from smartree.bench.lane import Lane, Load
from smartree.bench.measures import Measures
from smartree.bench.stopwatch import TimedPolicy
from smartree.policies.factory import NEED_COST
from smartree.policies.fixed import TreeSize, fixed_tree

if TYPE_CHECKING:
    from smartree.engine.llm import LLM

_TURNS = 16
"""Turns of every policy in a measurement: a slow moment of the machine then hits all of them alike."""

Advance = Callable[[str, float], None]
"""Called with a policy's name and the share of the whole measurement that has been done since the last call."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One repeat of a group.

    Attributes:
        group: suite, temperature and batch size.
        repeat: 0, 1, ...
        measures: by policy.
    """

    group: Group
    repeat: int
    measures: dict[str, Measures]


def make_lane(llm: LLM, policy: str, batch: int, tree: TreeSize | None = None) -> Lane:
    """A policy with an engine of its own.

    Args:
        llm: the model.
        policy: its name; for "oracle" the tree says what it does.
        batch: requests decoded together.
        tree: a fixed tree in place of a policy of that name.
    """
    if tree is not None:
        inner = TimedPolicy(fixed_tree(tree, llm.knowledge.cost_model()))
    else:
        inner = TimedPolicy(llm.knowledge.make_policy(PLAIN if policy == ORACLE else policy))
    # A lane decodes its prompts several times, and every time they are to be read like new ones.
    return Lane(policy, inner, llm.make_engine(inner, max_batch=batch, prefix_reuse=False), batch)


def measure_cell(
    llm: LLM, lanes: Sequence[Lane], load: Load, advance: Advance, *, reverse: bool = False
) -> dict[str, Measures]:
    """Measures by name of the lane. Later lanes begin with what those that learn have learned here, as in a server.

    Args:
        llm: the model.
        lanes: one of them plain decoding, to whose tokens the others' are compared.
        load: what to decode.
        advance: hears of progress.
        reverse: let the last one begin.
    """
    run_lanes(lanes, load, advance, reverse=reverse)
    for lane in lanes:
        if lane.name in NEED_COST:
            llm.learn_from(lane.engine)
    plain = next(lane for lane in lanes if lane.name == PLAIN).outputs
    return {lane.name: lane.close(None if lane.name == PLAIN else plain) for lane in lanes}


def run_lanes(lanes: Sequence[Lane], load: Load, advance: Advance, *, reverse: bool = False) -> None:
    """Opens the lanes' windows and decodes all measured prompts in each.

    Lanes take turns by work done, not by time: each decodes the next sixteenth of the measured work, then the next
    lane decodes the same sixteenth. Who goes first alternates.
    """
    share = 1 / (len(lanes) * (_TURNS + 1))
    for lane in lanes:
        lane.open(load)
        advance(lane.name, share)
    for turn in range(1, _TURNS + 1):
        for lane in lanes if (turn % 2 == 0) == reverse else reversed(lanes):
            lane.advance(turn / _TURNS)
            advance(lane.name, share)
