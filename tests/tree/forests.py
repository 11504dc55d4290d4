"""Forests for tests: candidates from plain lists, and hypothesis strategies for random growth and selections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from smartree.tree import Candidates, Forest
from smartree.tree.forest import Ints

# Ties are where orders go wrong, so certain children, halves and impossible ones come up often.
PROBABILITIES = st.one_of(st.sampled_from([1.0, 0.5, 0.0]), st.floats(0.0, 1.0))


def ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


def candidates_of(
    parents: Sequence[int],
    probabilities: Sequence[float],
    *,
    tokens: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
) -> Candidates:
    """Candidates with distinct tokens; ranks count up among the siblings unless given."""
    places = [list(parents[:index]).count(parent) for index, parent in enumerate(parents)]
    return Candidates(
        ints(parents),
        ints(range(len(parents)) if tokens is None else tokens),
        np.array(probabilities, np.float64),
        ints(places if ranks is None else ranks),
        np.full(len(parents), -1, np.int64),
        np.zeros(len(parents)),
    )


@st.composite
def growths(
    draw: st.DrawFn, max_batch: int = 3, max_appends: int = 4, max_new: int = 6
) -> tuple[int, list[Candidates]]:
    """A batch size and candidates to append one after the other, below any node there is by then."""
    batch = draw(st.integers(1, max_batch))
    size, appends = batch, []
    for _ in range(draw(st.integers(0, max_appends))):
        parents = draw(st.lists(st.integers(0, size - 1), max_size=max_new))
        probabilities = draw(st.lists(PROBABILITIES, min_size=len(parents), max_size=len(parents)))
        appends.append(candidates_of(parents, probabilities, tokens=range(size, size + len(parents))))
        size += len(parents)
    return batch, appends


def grow(batch: int, appends: Sequence[Candidates], capacity: int = 256) -> Forest:
    forest = Forest(np.arange(batch) + 100, capacity=capacity)
    for candidates in appends:
        forest.append(candidates)
    return forest


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    return grow(*draw(growths()))


def ancestors(forest: Forest, node: int) -> list[int]:
    """The node and everything above it, root last, by walking parents."""
    path = [node]
    while forest.parent[path[-1]] >= 0:
        path.append(int(forest.parent[path[-1]]))
    return path


@st.composite
def closed_selections(draw: st.DrawFn, forest: Forest) -> Ints:
    """Nodes below the roots, closed under ancestors, parents before children, in one of two orders."""
    wanted = draw(st.sets(st.integers(0, len(forest) - 1)))
    closed = {above for node in wanted for above in ancestors(forest, node)}
    order = forest.best_first() if draw(st.booleans()) else np.arange(forest.batch, len(forest))
    return ints([node for node in order if node in closed])
