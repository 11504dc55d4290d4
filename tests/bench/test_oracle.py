"""The oracle's search: screening of the grid, then races."""

from __future__ import annotations

import pytest

from smartree import LLM
from smartree.bench.config import tree_name
from smartree.bench.estimate import Round
from smartree.bench.lane import Load
from smartree.bench.oracle import Search, rounds, search_tree
from smartree.bench.screening import BestFirst, LargeRun, predicted_rate, screen
from smartree.cost.model import CostModel
from smartree.engine.trace import NodeTrace
from smartree.policies.fixed import ORACLE_GRID, TreeSize
from tests.tiny import flat_profile, random_prompts, steep_profile

SMALL = (TreeSize(1, 1, 1), TreeSize(2, 1, 2), TreeSize(3, 2, 6))


def load(tokens: int = 8) -> Load:
    return Load(random_prompts([8, 12], seed=3), tokens, 0.0, 0)


def node(parent: int, path: float, accepted: bool) -> NodeTrace:
    return NodeTrace(0, parent, path, path, True, accepted)


# a (0.9, accepted) with children c (0.5) and d (0.4, accepted), whose child is e (0.4, accepted); b (0.6) beside a.
NODES = [
    node(-1, 0.9, True), node(-1, 0.6, False), node(0, 0.5, False), node(0, 0.4, True), node(3, 0.4, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "cut"),
    [
        (TreeSize(3, 2, 9), (5, 3)),
        (TreeSize(3, 2, 4), (4, 2)),  # d before its child e, as likely as it is
        (TreeSize(2, 2, 9), (4, 2)),
        (TreeSize(1, 2, 9), (2, 1)),
        (TreeSize(3, 2, 1), (1, 1)),
    ],
)
def test_small_trees_are_cut_out_of_large_ones(size: TreeSize, cut: tuple[int, int]) -> None:
    assert BestFirst.of(NODES).cut(size) == cut


def test_nothing_drafted() -> None:
    assert BestFirst.of([]).cut(TreeSize(3, 2, 4)) == (0, 0)


def test_rates_follow_the_costs() -> None:
    run = LargeRun([BestFirst.of(NODES)], levels=3.0, draft_seconds=0.03)
    steep, flat = steep_profile().cost_model(), flat_profile().cost_model()

    def rate(size: TreeSize, cost: CostModel, by_level: bool = False) -> float:
        return predicted_rate(size, run, 2, cost, 0, by_level)

    assert rate(TreeSize(3, 2, 9), flat) > rate(TreeSize(1, 2, 1), flat)
    assert rate(TreeSize(3, 2, 9), steep) < rate(TreeSize(1, 2, 1), steep)
    assert rate(TreeSize(1, 2, 1), flat, by_level=True) > rate(TreeSize(1, 2, 1), flat)
    # 2 requests, 4 tokens each; 2 roots and 10 nodes at 0.01 s a row, and 0.03 s of drafting.
    assert rate(TreeSize(3, 2, 9), steep) == pytest.approx(8 / (0.12 + 0.03))


def test_screening_chooses_from_the_grid(llm: LLM) -> None:
    heard: list[float] = []
    chosen = screen(llm, ORACLE_GRID, 2, load(), 8, lambda name, share: heard.append(share))
    assert len(chosen) == len(set(chosen)) == 8
    assert set(chosen) <= set(ORACLE_GRID)
    assert sum(heard) == pytest.approx(1.0)


@pytest.mark.parametrize("grid", [SMALL, ORACLE_GRID[::12]])
def test_search(llm: LLM, grid: tuple[TreeSize, ...]) -> None:
    heard: list[float] = []
    chosen = search_tree(llm, Search(grid, 2, load()), lambda name, share: heard.append(share))
    assert chosen in {"none", *(tree_name(size) for size in grid)}
    assert sum(heard) == pytest.approx(1.0)


def test_rounds_get_fewer_and_longer() -> None:
    assert rounds(SMALL) == [Round(0, 24, True), Round(4, 24, True), Round(4, 48, False), Round(2, 96, False)]
    assert rounds(ORACLE_GRID)[:2] == [Round(4, 24, True), Round(9, 24, True)]
