"""What every policy answers: grow this level, draft another, and which nodes to verify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from smartree.cost.model import CostModel
from smartree.tree.forest import Candidates, Floats, Forest, Ints


@dataclass(frozen=True, slots=True)
class StepState:
    """What is known of a step before anything is drafted.

    Attributes:
        batch: B, requests that decode in this step.
        context: mean cached length of these requests.
        depth_limits: [B] depth of the deepest node that can still be of use (tokens and window left).
        extra_tokens: prompt tokens of joining requests that the same pass carries.
        generated: [B] tokens each request has generated so far; empty if nobody counted.
        unread: committed tokens of these requests that the drafter has to read before it can draft for them all.
    """

    batch: int
    context: int
    depth_limits: Ints
    extra_tokens: int = 0
    generated: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    unread: int = 0

    def is_like(self, before: StepState) -> bool:
        """True if this step is of the same kind as the one before it, as far as anybody can tell beforehand."""
        return self.batch == before.batch and not self.extra_tokens


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step brought: what a policy may learn from.

    Attributes:
        state: the step's state.
        forest: every node drafted.
        selected: ids of the nodes verified.
        tokens: tokens committed by all requests together.
        seconds: measured seconds of the step.
        target_seconds: measured seconds of its target pass; 0 if it was not timed.
        draft_seconds: measured seconds inside the drafter.
        level_seconds: of these, what each level took, the first one with what it has to read; empty if only the sum of
            all is known.
    """

    state: StepState
    forest: Forest
    selected: Ints
    tokens: int
    seconds: float
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    level_seconds: tuple[float, ...] = ()


class Policy(Protocol):
    """Decides the trees of a step. One instance serves one engine; it may learn between steps.

    Attributes:
        name: as given on the command line.
        inspects_tokens: True if the selection depends on which tokens were drafted or on their probabilities; such
            a policy must not be used with sampled drafts (design 4).
        speculates: False if the policy never drafts.
        predicted_seconds: what the cost model said of the last selection; nan without a cost model.
    """

    name: str
    inspects_tokens: bool
    speculates: bool
    predicted_seconds: float

    def least_planted(self, state: StepState) -> float | None:
        """Path probability below which a planted node (`Drafter.plant`) would be of no use in the step that begins.

        None if no node is to be planted: most policies start from roots.
        """
        ...

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """Starts a step; returns the roots worth drafting for."""
        ...

    def wants_level(self, forest: Forest, frontier: Ints) -> bool:
        """True if one more level, below `frontier`, pays."""
        ...

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """Records candidates in the forest; returns the nodes to be expanded next."""
        ...

    def select(self, forest: Forest) -> Ints:
        """Ids of the nodes to verify: closed under ancestors, parents before children."""
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learns from a finished step."""
        ...

    def learned(self) -> Mapping[str, Any]:
        """What a later engine on this setup may begin with, as a JSON object; empty if nothing."""
        ...

    def resume(self, learned: Mapping[str, Any]) -> None:
        """Begins with what an earlier engine's policy of this name has `learned`.

        Raises:
            KeyError, TypeError, ValueError: it is not what `learned` gives.
        """
        ...


class BasePolicy:
    """Shared defaults: drafts from every root to `max_depth`, records everything, learns costs only."""

    name = "base"
    inspects_tokens = True
    speculates = True

    def __init__(self, cost: CostModel | None = None, max_depth: int = 8) -> None:
        self.cost = cost
        self.max_depth = max_depth
        self.state = StepState(0, 0, np.empty(0, np.int64))
        self.predicted_seconds = float("nan")
        self._uneven_seconds = 0.0
        self._least_limit = 0

    def least_planted(self, state: StepState) -> float | None:
        """Nothing is to be planted."""
        return None

    def learned(self) -> Mapping[str, Any]:
        """What the clock has taught the cost model."""
        return {} if self.cost is None else {"costs": self.cost.to_json()}

    def resume(self, learned: Mapping[str, Any]) -> None:
        """Begins with what another engine's cost model was taught."""
        if self.cost is not None:
            self.cost.load_json(learned["costs"])

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """Starts a step; roots that can still use a node are the frontier."""
        self.state = state
        limits = state.depth_limits.tolist()
        self._least_limit = min(limits, default=0)
        return np.arange(len(limits)) if self._least_limit > 0 else np.flatnonzero(state.depth_limits > 0)

    def wants_level(self, forest: Forest, frontier: Ints) -> bool:
        """True until the depth limit or an empty frontier."""
        return len(frontier) > 0 and int(forest.depth[frontier[-1]]) < self.max_depth

    def within_limits(self, forest: Forest, nodes: Ints) -> Ints:
        """Those of `nodes` whose children can still be of use."""
        return nodes[forest.depth[nodes] < self.state.depth_limits[forest.request[nodes]]]

    def predict(self, forest: Forest, selected: Ints) -> None:
        """Notes what the cost model says of a pass that verifies `selected`, for comparison with the clock."""
        if self.cost is not None:
            state = self.state
            rows = state.batch + self._carried(forest, selected) + state.extra_tokens
            self._uneven_seconds = self._unevenness(forest, selected)
            self.predicted_seconds = self.cost.pass_seconds(state.batch, rows, state.context) + self._uneven_seconds

    def _carried(self, forest: Forest, selected: Ints) -> int:
        """Nodes that the pass pays for."""
        return len(selected)

    def _unevenness(self, forest: Forest, selected: Ints) -> float:
        """Seconds that the pass takes longer because requests have different numbers of nodes."""
        if self.cost is None:
            return 0.0
        return uneven_seconds(self.cost, forest, selected, self._carried(forest, selected), self.state.context)

    def observe(self, outcome: StepOutcome) -> None:
        """Lets the cost model compare its prediction with the clock; a pass that also read prompts says nothing."""
        state = outcome.state
        if self.cost is not None and outcome.target_seconds > 0 and state.extra_tokens == 0:
            rows = state.batch + self._carried(outcome.forest, outcome.selected)
            width = widest(outcome.forest, outcome.selected) if pads(self.cost, outcome.forest) else 0
            self.cost.observe(state.batch, rows, state.context, outcome.target_seconds, width)


def pads(cost: CostModel, forest: Forest) -> bool:
    """True if uneven trees of these requests cost something."""
    return forest.batch > 1 and not cost.padding.free


def uneven_seconds(cost: CostModel, forest: Forest, selected: Ints, carried: int, context: int) -> float:
    """Seconds that a pass with `selected`, which carries so many nodes, takes longer as its trees are uneven."""
    if not pads(cost, forest):
        return 0.0
    return cost.uneven_seconds(forest.batch, forest.batch + carried, widest(forest, selected), context)


def widest(forest: Forest, selected: Ints) -> int:
    """Rows of the request with most nodes, its root included."""
    return 1 + int(np.bincount(forest.request[selected], minlength=1).max())


def top_per_group(groups: Ints, scores: Floats, count: int) -> NDArray[np.bool_]:
    """[C] True for the `count` best scores of each group, earlier ones first on ties."""
    order = np.lexsort((np.arange(len(groups)), -scores, groups))
    sorted_groups = groups[order]
    first = np.searchsorted(sorted_groups, sorted_groups, side="left")
    keep = np.zeros(len(groups), bool)
    keep[order[np.arange(len(groups)) - first < count]] = True
    return keep
