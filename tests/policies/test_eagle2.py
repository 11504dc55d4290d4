"""EAGLE-2's tree, counted as in EAGLE's code and compared with a beam in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smartree.errors import InputError
from smartree.policies import Eagle2Policy
from smartree.tree import Candidates, Forest
from smartree.tree.forest import Ints
from tests.policies.steps import cost_of, draft, same_children, state_of
from tests.tree.forests import ancestors

Path = tuple[int, ...]
COST = cost_of(1, [1.0, 2.0])


def offers(seed: int, request: int, path: Path, count: int) -> list[float]:
    """What a made-up drafter says of the children of a node: distinct probabilities in no order, sum below 1."""
    raw = np.random.default_rng([seed, request, *path]).random(count)
    return [float(value) for value in raw / (raw.sum() + 0.1)]


def path_of(forest: Forest, node: int) -> Path:
    """The tokens from the root to the node."""
    return tuple(int(forest.token[above]) for above in reversed(ancestors(forest, node)[:-1]))


class MadeUpDrafter:
    def __init__(self, seed: int, children: int) -> None:
        self.seed, self.children = seed, children
        self.widths: list[int] = []

    def __call__(self, forest: Forest, frontier: Ints) -> Candidates:
        self.widths.append(len(frontier))
        probabilities = [
            offers(self.seed, int(forest.request[node]), path_of(forest, int(node)), self.children) for node in frontier
        ]
        tokens = np.tile(np.arange(self.children), len(frontier))
        nothing = np.zeros(len(tokens), np.int64)
        return Candidates(
            np.repeat(frontier, self.children), tokens, np.ravel(probabilities), tokens, nothing, np.zeros(len(tokens))
        )


def reference(seed: int, request: int, children: int, *, total: int, depth: int, top_k: int) -> tuple[set[Path], int]:
    """EAGLE-2 for one request: the selected paths and the size of the pool."""
    beam: list[tuple[float, Path]] = [(1.0, ())]
    pool: list[tuple[float, Path]] = []
    for _ in range(depth + 1):
        level: list[tuple[float, Path]] = []
        for score, path in beam:
            offered = offers(seed, request, path, children)
            best = sorted(range(children), key=lambda token: -offered[token])[:top_k]
            level += [(score * offered[token], (*path, token)) for token in best]
        pool += level
        beam = sorted(level, reverse=True)[:top_k]
    return {path for _, path in sorted(pool, reverse=True)[: total - 1]}, len(pool)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("children", "total", "depth", "top_k"), [(6, 20, 3, 4), (3, 60, 4, 3), (4, 10, 2, 10), (2, 5, 6, 1)]
)
def test_the_tree_equals_a_plain_python_beam(seed: int, children: int, total: int, depth: int, top_k: int) -> None:
    policy = Eagle2Policy(total=total, depth=depth, top_k=top_k)
    step = draft(policy, COST, state_of(2), MadeUpDrafter(seed, children))
    for request in (0, 1):
        expected, pool = reference(seed, request, children, total=total, depth=depth, top_k=top_k)
        chosen = [int(node) for node in step.selected if step.forest.request[node] == request]
        assert {path_of(step.forest, node) for node in chosen} == expected
        assert int((step.forest.request == request).sum()) - 1 == pool


@pytest.mark.parametrize("batch", [1, 3])
def test_eagle_s_defaults_draft_710_candidates_and_verify_59(batch: int) -> None:
    drafter = MadeUpDrafter(0, 10)
    step = draft(Eagle2Policy(), COST, state_of(batch), drafter)
    assert len(step.forest) == batch * (1 + 10 + 7 * 100)
    assert np.bincount(step.forest.request[step.selected]).tolist() == [59] * batch
    assert drafter.widths == [batch] + 7 * [10 * batch]


def test_more_children_than_top_k_make_no_difference_to_the_counts() -> None:
    step = draft(Eagle2Policy(), COST, state_of(1), MadeUpDrafter(0, 15))
    assert (len(step.forest) - 1, len(step.selected)) == (710, 59)


def test_total_depth_and_top_k_bound_the_tree() -> None:
    step = draft(Eagle2Policy(total=7, depth=1, top_k=2), COST, state_of(1), MadeUpDrafter(1, 5))
    assert len(step.forest) - 1 == 2 + 1 * 4
    assert len(step.selected) == 6
    assert step.levels == 2


def test_a_total_of_one_is_the_root_alone() -> None:
    assert len(draft(Eagle2Policy(total=1), COST, state_of(1), MadeUpDrafter(0, 2)).selected) == 0


def test_depth_limits_end_the_tree_early() -> None:
    assert draft(Eagle2Policy(), COST, state_of(1, depth=2), MadeUpDrafter(0, 3)).levels == 2


def test_costs_change_nothing() -> None:
    # It is the baseline that does not look at the device.
    chosen = []
    for seconds in ([1.0] * 100, list(np.arange(1.0, 101.0))):
        cost = cost_of(1, seconds)
        policy = Eagle2Policy(cost)
        step = draft(policy, cost, state_of(1), same_children(0.5, 0.3))
        chosen.append(step.selected.tolist())
        assert policy.predicted_seconds == pytest.approx(seconds[59])
    assert chosen[0] == chosen[1]


def test_without_a_cost_model_nothing_is_predicted() -> None:
    policy = Eagle2Policy()
    draft(policy, COST, state_of(1), same_children(0.5))
    assert math.isnan(policy.predicted_seconds)


@pytest.mark.parametrize(("name", "size"), [("total", 0), ("depth", -1), ("top_k", 0)])
def test_impossible_sizes_are_refused_by_name(name: str, size: int) -> None:
    with pytest.raises(InputError, match=rf"{name} {size}"):
        Eagle2Policy(**{name: size})  # type: ignore[arg-type]
