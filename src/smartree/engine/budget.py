"""How many cache rows there are for all requests together, counted in blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smartree.config import LEAST_CACHE
from smartree.errors import InputError
from smartree.tree.forest import Forest, Ints, Proposal

BLOCK = LEAST_CACHE
"""Rows of a block."""


class RowBudget:
    """Rows over all requests. A request takes whole blocks: for its text so far, and in a step for its tree."""

    def __init__(self, rows: int) -> None:
        """Args:
            rows: of the whole cache; what does not fill a block is lost.

        Raises:
            InputError: there are fewer than a block's.
        """
        if rows < BLOCK:
            raise InputError(f"cache_tokens is {rows}; it must be at least {BLOCK}.")
        self.total = rows // BLOCK

    @property
    def rows(self) -> int:
        """Rows that one request alone can use."""
        return self.total * BLOCK

    @staticmethod
    def blocks(rows: int) -> int:
        """Blocks that hold so many rows."""
        return -(-rows // BLOCK)

    def require(self, prompt: int, most: int, window: int) -> None:
        """Raises:
        InputError: a request with so many tokens, and up to `most` to come, would not fit into the whole cache.
        """
        rows = min(prompt + most, window) - 1  # nobody reads the last token
        if rows > self.rows:
            raise InputError(
                f"A prompt of {prompt} tokens with max_tokens {most} needs {rows} cache rows, but there are "
                f"{self.rows}: shorten them or raise cache_tokens."
            )

    @staticmethod
    def room(rows: int, free: int) -> int:
        """Rows that one request can still get: the rest of its last block, and blocks that nobody has."""
        return -rows % BLOCK + free * BLOCK

    def trim(self, forest: Forest, selected: Ints, lengths: Ints, free: int) -> Ints:
        """Those of the selected nodes that find a row.

        Args:
            forest: where the nodes are.
            selected: node ids, parents first.
            lengths: [B] tokens of each request: its rows with the root's.
            free: blocks that nobody has.

        Returns:
            `selected` itself if there is room for all; else what fits, in the same order, closed under ancestors.
        """
        if self.blocks(len(selected)) + forest.batch <= free:
            return selected
        owners = forest.request[selected]
        if int(_more_blocks(lengths, np.bincount(owners, minlength=forest.batch)).sum()) <= free:
            return selected
        # Sampled nodes must not be dropped by their probabilities (design 4): these go in the order of drafting.
        order = selected if forest.proposal is Proposal.POINT_MASS else np.sort(selected)
        slack, kept = (-lengths % BLOCK).tolist(), []
        for node, owner in zip(order.tolist(), forest.request[order].tolist(), strict=True):
            if slack[owner] == 0 and free > 0:
                slack[owner], free = BLOCK, free - 1
            if slack[owner] > 0:  # once an owner finds no row it finds none later, so no child outlives its parent
                slack[owner] -= 1
                kept.append(node)
        return np.array(kept, np.int64)


def _more_blocks(lengths: Ints, nodes: NDArray[np.int64]) -> Ints:
    """[B] blocks that so many nodes need beyond those of the texts."""
    held: Ints = -(-lengths // BLOCK)
    more: Ints = -(-(lengths + nodes) // BLOCK) - held
    return more
