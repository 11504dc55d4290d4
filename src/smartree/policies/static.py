"""A tree of fixed shape, as EAGLE-1 and Medusa use: positions by rank, whatever the probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smartree.cost.model import CostModel
from smartree.errors import InputError
from smartree.policies.base import BasePolicy, StepState
from smartree.tree.forest import Candidates, Forest, Ints

# EAGLE-1's 25 nodes: each entry is the path of ranks from the root.
EAGLE1_SHAPE: tuple[tuple[int, ...], ...] = (
    *((rank,) for rank in range(4)),
    *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)),
    *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)),
    *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2)),
    *((0, 0, 0, 0, 0), (0, 0, 0, 0, 1)),
)


class StaticPolicy(BasePolicy):
    """Keeps the nodes whose path of ranks is in the shape."""

    name = "static"
    inspects_tokens = False

    def __init__(self, cost: CostModel | None = None, *, shape: Sequence[Sequence[int]] = EAGLE1_SHAPE) -> None:
        """Raises:
        InputError: the shape is empty or a path's parent is missing.
        """
        paths = {tuple(path) for path in shape}
        orphan = next((path for path in sorted(paths) if len(path) > 1 and path[:-1] not in paths), None)
        if not paths or () in paths:
            raise InputError("static needs a shape of at least one path, and no path may be empty.")
        if orphan is not None:
            raise InputError(f"static needs a shape in which every path's parent is a path too; {orphan} has none.")
        super().__init__(cost, max_depth=max(len(path) for path in paths))
        self._shape = paths
        self._inner = {path[:-1] for path in paths}
        self._paths: dict[int, tuple[int, ...]] = {}

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """Starts every tree at its root."""
        self._paths = dict.fromkeys(range(forest.batch), ())
        return super().begin(state, forest)

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """Keeps what the shape holds; expands what has children in it."""
        pairs = zip(candidates.parents.tolist(), candidates.ranks.tolist(), strict=True)
        paths = [(*self._paths[parent], rank) for parent, rank in pairs]
        kept = np.array([index for index, path in enumerate(paths) if path in self._shape], np.int64)
        nodes = forest.append(candidates.take(kept))
        self._paths.update({node: paths[index] for node, index in zip(nodes.tolist(), kept.tolist(), strict=True)})
        inner = [node for node in nodes.tolist() if self._paths[node] in self._inner]
        return self.within_limits(forest, np.array(inner, np.int64))

    def select(self, forest: Forest) -> Ints:
        """Every node."""
        chosen = forest.best_first()
        self.predict(forest, chosen)
        return chosen
