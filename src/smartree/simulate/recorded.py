"""Recorded candidate pools: JSON lines written by an engine, replayed by simulations.

One line holds one request's pool in one step:
`{"step": 0, "request": 0, "parents": [-1, 0, ...], "probabilities": [...], "ranks": [...], "accepted": [...]}`.
Parents are indices into the line (-1 the root, always before their children); probabilities are the drafter's own,
given the parent; a node is accepted if the target, decoding plainly from the root, would have produced it and all its
ancestors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smartree.errors import InputError
from smartree.simulate.pools import Flags, along_paths
from smartree.tree.forest import Candidates, Floats, Forest, Ints


@dataclass(frozen=True, slots=True)
class RecordedPool:
    """One request's candidates in one step.

    Attributes:
        step: number of the step.
        request: number of the request.
        parents: [n] index of the parent, -1 for children of the root.
        probabilities: [n] the drafter's probability given the parent, in (0, 1].
        ranks: [n] place among the siblings, 0 first.
        accepted: [n] whether the node and all its ancestors are accepted.

    Raises:
        InputError: the arrays do not fit together.
    """

    step: int
    request: int
    parents: Ints
    probabilities: Floats
    ranks: Ints
    accepted: Flags

    def __post_init__(self) -> None:
        where = f"The pool of request {self.request} in step {self.step}"
        count = len(self.parents)
        if not len(self.probabilities) == len(self.ranks) == len(self.accepted) == count:
            raise InputError(f"{where} needs one parent, probability, rank and accepted flag per node.")
        if self.step < 0 or self.request < 0:
            raise InputError(f"{where} has a negative number.")
        bad = np.flatnonzero((self.parents >= np.arange(count)) | (self.parents < -1))
        if len(bad):
            raise InputError(f"{where}: node {bad[0]} has parent {self.parents[bad[0]]}; a parent comes first.")
        bad = np.flatnonzero(~((self.probabilities > 0) & (self.probabilities <= 1)))
        if len(bad):
            raise InputError(f"{where}: node {bad[0]} has probability {self.probabilities[bad[0]]}, not in (0, 1].")
        if np.any(self.ranks < 0) or len(set(zip(self.parents.tolist(), self.ranks.tolist(), strict=True))) < count:
            raise InputError(f"{where}: two children of one node have the same rank, or a rank is negative.")
        hits = self.parents[self.accepted]
        if len(np.unique(hits)) < len(hits) or not np.all(self.accepted[hits[hits >= 0]]):
            raise InputError(f"{where}: the accepted nodes are not one path from the root.")

    def to_json(self) -> dict[str, Any]:
        """The pool as a line's JSON object."""
        return {
            "step": self.step,
            "request": self.request,
            "parents": self.parents.tolist(),
            "probabilities": [round(p, 6) if p > 1e-3 else p for p in self.probabilities.tolist()],
            "ranks": self.ranks.tolist(),
            "accepted": self.accepted.astype(int).tolist(),
        }

    @staticmethod
    def from_json(data: Any) -> RecordedPool:
        """Raises:
        InputError: a field is missing or malformed.
        """
        try:
            return RecordedPool(
                int(data["step"]),
                int(data["request"]),
                np.array(data["parents"], np.int64).reshape(-1),
                np.array(data["probabilities"], np.float64).reshape(-1),
                np.array(data["ranks"], np.int64).reshape(-1),
                np.array(data["accepted"], bool).reshape(-1),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                "A pool needs step, request, and lists parents, probabilities, ranks, accepted."
            ) from error


def write_pools(path: Path, pools: Iterable[RecordedPool]) -> None:
    """Writes pools, a line each."""
    with path.open("w", encoding="utf-8") as file:
        for pool in pools:
            file.write(json.dumps(pool.to_json(), separators=(",", ":")) + "\n")


def read_pools(path: Path) -> list[RecordedPool]:
    """Raises:
    InputError: the file cannot be read, holds nothing, or a line is no pool.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The pools file {path} cannot be read: {getattr(error, 'strerror', error)}.") from error
    pools = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            pools.append(RecordedPool.from_json(json.loads(line)))
        except json.JSONDecodeError as error:
            raise InputError(f"Line {number} of the pools file {path} is not JSON.") from error
        except InputError as error:
            raise InputError(f"Line {number} of the pools file {path}: {error}") from error
    if not pools:
        raise InputError(f"The pools file {path} holds no pools; record some first.")
    return pools


class RecordedPools:
    """Replays recorded pools for `batch` requests.

    Request i of the simulation takes the (i mod R)-th of R recorded requests, step t its next pool, round and round; a
    recorded request that serves several starts at a different place for each. A pool is replayed whatever was accepted
    before it, so a policy sees the positions that the recording stopped at.
    """

    calibrated = False

    def __init__(self, name: str, pools: Sequence[RecordedPool], batch: int) -> None:
        """Raises:
        InputError: no pools, or a batch below 1.
        """
        if batch < 1 or not pools:
            raise InputError(f"Replaying needs pools and a batch of at least 1; got {len(pools)} and {batch}.")
        self.name, self.batch = name, batch
        series: dict[int, list[RecordedPool]] = {}
        for pool in sorted(pools, key=lambda pool: pool.step):
            series.setdefault(pool.request, []).append(pool)
        self._series = [series[request] for request in sorted(series)]
        self._current: list[RecordedPool] = []
        self._offsets = np.zeros(batch, np.int64)
        self._accepted = np.empty(0)

    def begin(self, step: int) -> None:
        """Moves to a step."""
        turns = -(-self.batch // len(self._series))
        self._current = []
        for request in range(self.batch):
            series = self._series[request % len(self._series)]
            start = request // len(self._series) * len(series) // turns
            self._current.append(series[(start + step) % len(series)])
        sizes = [len(pool.parents) for pool in self._current]
        self._offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._accepted = np.concatenate([pool.accepted for pool in self._current]).astype(np.float64)

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """The recorded children of the frontier's nodes; a handle is a node's place in the batch's pools."""
        parts = [self._children(forest, int(node)) for node in frontier]
        if not parts:
            return Candidates.empty()
        parents, ranks, handles = (np.concatenate([part[i] for part in parts]) for i in range(3))
        every = np.concatenate([pool.probabilities for pool in self._current])
        raw = every[handles]
        return Candidates(parents, ranks, raw, ranks, handles, raw)

    def _children(self, forest: Forest, node: int) -> tuple[Ints, Ints, Ints]:
        request = int(forest.request[node])
        pool, offset = self._current[request], int(self._offsets[request])
        place = -1 if node < self.batch else int(forest.handle[node]) - offset
        found = np.flatnonzero(pool.parents == place)
        found = found[np.argsort(pool.ranks[found], kind="stable")]
        return np.full(len(found), node, np.int64), pool.ranks[found], offset + found

    def worth(self, forest: Forest) -> Floats:
        """[M] 1 for accepted nodes and roots, else 0: a recording knows what happened, not how likely it was."""
        return self.accepted(forest).astype(np.float64)

    def accepted(self, forest: Forest) -> Flags:
        """[M] whether a node and all its ancestors are accepted; nodes that nobody has drafted are not."""
        known = np.ones(len(forest))
        below = forest.handle[self.batch :]
        known[self.batch :] = self._accepted[below] * (below >= 0) if len(below) else known[self.batch :]
        return along_paths(forest, known) > 0
