"""Offline decisions: candidate pools and a cost profile in, chosen nodes and predicted speedup out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smartree.cost.model import CostModel
from smartree.errors import InputError
from smartree.policies.base import Policy, StepState, top_per_group
from smartree.policies.factory import make_policy
from smartree.policies.scan import scan
from smartree.policies.smart_options import SmartOptions
from smartree.tree.draft_tree import DraftTree, forest_of
from smartree.tree.forest import Candidates, Forest, Ints


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy would do with given pools.

    Attributes:
        selected: per request, the chosen nodes' indices in its pool, rising.
        expected_tokens: E: tokens the step is expected to commit, one bonus token per request included.
        step_seconds: modelled draft and verify seconds of the step.
        speedup: R: expected tokens per second over plain decoding's.
    """

    selected: tuple[tuple[int, ...], ...]
    expected_tokens: float
    step_seconds: float
    speedup: float

    def to_json(self) -> dict[str, Any]:
        """The plan as the JSON object of the contract."""
        return {
            "selected": [list(nodes) for nodes in self.selected],
            "expected_tokens": self.expected_tokens,
            "step_seconds": self.step_seconds,
            "speedup": self.speedup,
        }


def parse_pools(data: Any) -> list[DraftTree]:
    """Pools from `{"requests": [{"parents": [...], "probabilities": [...]}, ...]}`.

    Raises:
        InputError: no requests, or one that is no tree; the sentence names it.
    """
    requests = data.get("requests") if isinstance(data, dict) else None
    if not isinstance(requests, list) or not requests:
        raise InputError('The candidates need a list "requests" with at least one request.')
    trees = []
    for index, request in enumerate(requests):
        try:
            parents, probabilities = request["parents"], request["probabilities"]
            if not (isinstance(parents, list) and isinstance(probabilities, list)):
                raise TypeError
            if any(type(parent) is not int for parent in parents):
                raise InputError("every parent must be a whole number.")
            if any(type(value) not in (int, float) for value in probabilities):
                raise InputError("every probability must be a number.")
            trees.append(DraftTree.of(parents, probabilities))
        except InputError as error:
            raise InputError(f"Request {index} of the candidates is no tree: {error}") from error
        except (KeyError, TypeError, OverflowError) as error:
            raise InputError(f'Request {index} of the candidates needs lists "parents" and "probabilities".') from error
    return trees


def plan(
    trees: Sequence[DraftTree], cost: CostModel, policy: str, price: float | None = None, context: int = 0
) -> Plan:
    """What `policy` chooses from pools that a drafter would propose.

    `smart` chooses how many levels to draft and which nodes to verify, exactly: for every number of levels the best
    size is scanned for, level 0 being plain decoding. The other policies are asked level by level.

    Args:
        trees: one pool per request.
        cost: of any machine.
        policy: its name.
        price: tokens per second that time is worth; None maximises the step's own ratio. Only `smart` uses it.
        context: cached length of the requests.

    Raises:
        InputError: unknown policy, no pools, a price that is not positive, or a batch the profile does not cover.
    """
    batch, known = len(trees), cost.table.batches
    if batch == 0:
        raise InputError("A plan needs at least one request.")
    if not known[0] <= batch <= known[-1]:
        raise InputError(f"The profile covers batches {', '.join(map(str, known))}, and {batch} requests were given.")
    if price is not None and not (np.isfinite(price) and price > 0):
        raise InputError(f"The price is {price}; it must be a positive number of tokens per second.")
    chosen, pool = make_policy(policy, cost), forest_of(trees)
    exact = policy == "smart"
    selected, levels = _best_levels(pool, cost, price, context) if exact else _replay(pool, chosen, context)
    tokens = batch + float(pool.path[selected].sum())
    seconds = float(cost.verify(batch, batch + len(selected), context)) + _draft_seconds(pool, cost, levels)
    seconds += cost.overhead
    plain = cost.autoregressive(batch, context) + cost.overhead
    return Plan(_by_request(trees, pool, selected), tokens, seconds, tokens / seconds * plain / batch)


def _best_levels(pool: Forest, cost: CostModel, price: float | None, context: int) -> tuple[Ints, int]:
    """The best number of levels and the nodes to verify; ties go to fewer levels."""
    batch, most = pool.batch, SmartOptions().max_nodes
    best_value, best = -np.inf, (np.empty(0, np.int64), 0)
    order = pool.best_first()
    for levels in range(int(pool.depth.max(initial=0)) + 1):
        drafted = order[pool.depth[order] <= levels]
        drafted = drafted[top_per_group(pool.request[drafted], pool.path[drafted], most)]
        verify = cost.verify(batch, batch + np.arange(len(drafted) + 1), context)
        seconds = verify + cost.overhead + _draft_seconds(pool, cost, levels)
        choice = scan(pool.path[drafted], seconds, batch, price)
        value = choice.tokens / choice.seconds if price is None else choice.tokens - price * choice.seconds
        if value > best_value:
            best_value, best = value, (drafted[: choice.count], levels)
    return best


def _draft_seconds(pool: Forest, cost: CostModel, levels: int) -> float:
    """Seconds of drafting that many levels of the pool, whole."""
    if levels == 0:
        return 0.0
    if not cost.draft.by_level:
        return cost.draft.seconds_per_step
    seconds = 0.0
    for depth in range(1, levels + 1):
        parents = np.unique(pool.parent[pool.depth == depth])
        seconds += cost.draft.level_seconds(pool.batch, len(parents))
    return seconds


def _replay(pool: Forest, policy: Policy, context: int) -> tuple[Ints, int]:
    """Asks a policy level by level, as a drafter that proposes the pool would; ids are the pool's."""
    limits = np.full(pool.batch, max(int(pool.depth.max(initial=0)), 1), np.int64)
    forest = Forest(pool.token[: pool.batch])
    frontier = policy.begin(StepState(pool.batch, context, limits), forest)
    children: dict[int, list[int]] = {}
    for node in pool.best_first().tolist():
        children.setdefault(int(pool.parent[node]), []).append(node)
    levels = 0
    while len(frontier) and policy.wants_level(forest, frontier):
        candidates = _children(pool, children, forest, frontier)
        if len(candidates) == 0:
            break
        frontier = policy.grow(forest, candidates)
        levels += 1
    handles = forest.handle[policy.select(forest)]
    return handles[handles >= 0], levels  # others are nodes that nobody has drafted


def _children(pool: Forest, children: dict[int, list[int]], forest: Forest, frontier: Ints) -> Candidates:
    """The pool's children of a frontier; a candidate's handle is its id in the pool."""
    parents, nodes, ranks = [], [], []
    for node in frontier.tolist():
        place = node if node < forest.batch else int(forest.handle[node])
        for rank, child in enumerate(children.get(place, [])):
            parents.append(node)
            nodes.append(child)
            ranks.append(rank)
    ids = np.array(nodes, np.int64)
    return Candidates(
        np.array(parents, np.int64),
        pool.token[ids],
        pool.probability[ids],
        np.array(ranks, np.int64),
        ids,
        np.zeros(len(ids)),
    )


def _by_request(trees: Sequence[DraftTree], pool: Forest, selected: Ints) -> tuple[tuple[int, ...], ...]:
    offsets = np.concatenate([[0], np.cumsum([len(tree) for tree in trees])])
    requests = pool.request[selected]
    places = pool.handle[selected] - offsets[requests]
    return tuple(tuple(sorted(places[requests == index].tolist())) for index in range(len(trees)))
