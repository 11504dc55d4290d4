"""Verification: walk down each tree as long as a child carries the target's own token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smartree.tree.packed import PackedTrees

Choose = Callable[[Sequence[int], Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Walk:
    """What a step commits for one request.

    Attributes:
        rows: rows of the accepted nodes, root excluded, in order.
        tokens: one token more than rows: the accepted ones, then the bonus token.
    """

    rows: list[int]
    tokens: list[int]


def walk(packed: PackedTrees, choose: Choose) -> list[Walk]:
    """Walks all trees level by level.

    Args:
        packed: the verified trees.
        choose: given request indices and the row each of them stands on, the target's own next token for each. It
            is asked once per level, for the requests that still walk, never for rows that nobody reaches: what it
            remembers of a request's text (penalties, grammars) only grows.

    The tree was fixed before `choose` drew anything, so the tokens are the target's (design 4).
    """
    starts = packed.starts.tolist()
    tokens, parents = packed.tokens.tolist(), packed.parents.tolist()
    children = {(parent, token): row for row, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    walks = [Walk([], []) for _ in starts[:-1]]
    standing = list(starts[:-1])
    active = list(range(len(walks)))
    while active:
        chosen = choose(active, [standing[request] for request in active])
        walking = []
        for request, token in zip(active, chosen, strict=True):
            walks[request].tokens.append(token)
            child = children.get((standing[request], token))
            if child is not None:
                walks[request].rows.append(child)
                standing[request] = child
                walking.append(request)
        active = walking
    return walks
