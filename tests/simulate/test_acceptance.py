"""The acceptance process: what is reported is what happens, or optimistic by exactly what is stated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smartree.errors import InputError
from smartree.policies import StepState
from smartree.policies.fixed import TreeSize, fixed_tree
from smartree.simulate.acceptance import PRESETS, AcceptanceLaw, ParametricPools, law_named
from smartree.simulate.loop import draft
from smartree.tree import Forest
from smartree.tree.forest import Floats, Ints

LAW = AcceptanceLaw("test", mean=0.8, optimism=0.0)


def grown(pools: ParametricPools, step: int) -> Forest:
    pools.begin(step)
    state = StepState(pools.batch, 0, np.full(pools.batch, 99, np.int64))
    return draft(fixed_tree(TreeSize(3, 4, 59)), pools, None, state).forest


def outcomes(law: AcceptanceLaw, steps: int = 60, batch: int = 16) -> tuple[Ints, Ints, Floats, Floats, Floats]:
    """Depth, rank, reported path probability, worth and outcome of every drafted node."""
    pools = ParametricPools(law, batch, steps, seed=5)
    parts = []
    for step in range(steps):
        forest = grown(pools, step)
        nodes = slice(batch, None)
        parts.append(
            (
                forest.depth[nodes],
                forest.rank[nodes],
                forest.path[nodes],
                pools.worth(forest)[nodes],
                pools.accepted(forest)[nodes].astype(float),
            )
        )
    depth, rank, path, worth, accepted = (np.concatenate([part[i] for part in parts]) for i in range(5))
    return depth, rank, path, worth, accepted


@pytest.mark.parametrize("optimism", [0.0, 0.2])
def test_every_depth_and_rank_is_accepted_as_often_as_its_path_probability_says(optimism: float) -> None:
    depth, rank, path, worth, accepted = outcomes(replace(LAW, optimism=optimism))
    np.testing.assert_allclose(worth, path * (1 - optimism) ** depth, rtol=1e-12)
    for d in (1, 2, 3):
        for r in range(4):
            cell = (depth == d) & (rank == r)
            spread = np.sqrt((worth[cell] * (1 - worth[cell])).sum())
            assert abs(accepted[cell].sum() - worth[cell].sum()) < 4 * spread, (d, r)


def test_likely_and_unlikely_nodes_are_both_calibrated() -> None:
    *_, worth, accepted = outcomes(LAW)
    for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.0)):
        cell = (worth >= low) & (worth < high)
        spread = np.sqrt((worth[cell] * (1 - worth[cell])).sum())
        assert abs(accepted[cell].sum() - worth[cell].sum()) < 4 * spread, (low, high)


def test_at_most_one_child_of_a_node_is_accepted_and_only_below_accepted_nodes() -> None:
    pools = ParametricPools(LAW, 8, 20, seed=1)
    for step in range(20):
        forest = grown(pools, step)
        nodes = np.flatnonzero(pools.accepted(forest))
        below = nodes[nodes >= 8]
        assert np.all(pools.accepted(forest)[forest.parent[below]])
        assert np.bincount(forest.parent[below], minlength=len(forest)).max() <= 1


def test_children_fall_by_rank_and_are_a_sub_distribution() -> None:
    forest = Forest(np.zeros(4, np.int64))
    pools = ParametricPools(LAW, 4, 3, seed=2)
    pools.begin(2)
    candidates = pools.expand(forest, np.arange(4))
    probabilities = candidates.probabilities.reshape(4, 10)
    assert np.all(np.diff(probabilities, axis=1) <= 0)
    assert np.all(probabilities.sum(axis=1) < 1)
    assert candidates.parents.tolist() == np.repeat(np.arange(4), 10).tolist()


def test_a_node_is_the_same_whoever_asks_and_whatever_the_batch() -> None:
    wide, narrow = ParametricPools(LAW, 8, 5, seed=3), ParametricPools(LAW, 2, 5, seed=3)
    for pools in (wide, narrow):
        pools.begin(4)
    all_roots = wide.expand(Forest(np.zeros(8, np.int64)), np.arange(8))
    second = wide.expand(Forest(np.zeros(8, np.int64)), np.array([1]))
    few = narrow.expand(Forest(np.zeros(2, np.int64)), np.arange(2))
    np.testing.assert_array_equal(all_roots.probabilities[10:20], second.probabilities)
    np.testing.assert_array_equal(all_roots.handles[:20], few.handles)
    np.testing.assert_array_equal(all_roots.probabilities[:20], few.probabilities)


def test_seeds_and_steps_differ() -> None:
    first, second = ParametricPools(LAW, 1, 2, seed=0), ParametricPools(LAW, 1, 2, seed=1)
    seen = set()
    for pools in (first, second):
        for step in range(2):
            pools.begin(step)
            seen.add(float(pools.expand(Forest(np.zeros(1, np.int64)), np.arange(1)).probabilities[0]))
    assert len(seen) == 4


def test_easy_steps_follow_easy_steps_as_stated() -> None:
    law = replace(LAW, node_spread=0.0, request_spread=0.0, step_spread=1.0, persistence=0.7, coverage=0.0)
    pools = ParametricPools(law, 1, 8000, seed=4)
    first = []
    for step in range(8000):
        pools.begin(step)
        first.append(pools.children(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint64))[0, 0])
    logits = np.log(first) - np.log1p(-np.array(first))
    assert np.corrcoef(logits[1:], logits[:-1])[0, 1] == pytest.approx(0.7, abs=0.03)
    assert logits.std() == pytest.approx(1.0, abs=0.06)


def test_every_preset_has_a_source_and_can_be_found() -> None:
    for name, law in PRESETS.items():
        assert law_named(name) is law
        assert law.source
    with pytest.raises(InputError, match="neither a preset"):
        law_named("eagle9")


@pytest.mark.parametrize(
    "change",
    [
        {"mean": float("nan")},
        {"node_spread": -1.0},
        {"persistence": 1.0},
        {"optimism": 1.0},
        {"coverage": 1.1},
        {"children": 0},
    ],
)
def test_impossible_laws_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError):
        replace(LAW, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch", "steps", "seed"), [(0, 1, 0), (1, 0, 0), (1, 1, -1), (1, 1, 2**31)])
def test_impossible_pools_are_refused(batch: int, steps: int, seed: int) -> None:
    with pytest.raises(InputError):
        ParametricPools(LAW, batch, steps, seed)


def test_a_step_beyond_the_end_is_refused() -> None:
    with pytest.raises(InputError, match="beyond the 3 steps"):
        ParametricPools(LAW, 1, 3).begin(3)
