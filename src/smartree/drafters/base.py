"""What a drafter is: it proposes children, level by level, for all requests of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from smartree.tree.forest import Candidates, Forest, Ints, Proposal


class DraftRequest(Protocol):
    """What a drafter sees of a request."""

    @property
    def id(self) -> int:
        """Unique as long as the engine lives."""
        ...

    @property
    def tokens(self) -> Sequence[int]:
        """Committed tokens, prompt included; the last one is the root of the next tree."""
        ...

    @property
    def temperature(self) -> float:
        """Sampling temperature, 0 for argmax."""
        ...


class Drafter(Protocol):
    """Proposes tokens. Knows no policy: it is asked for the children of the nodes that somebody else chose.

    Attributes:
        name: as given on the command line.
        proposal: how its tokens are chosen (design 4).
        by_level: True if every level costs a pass; False if the first one pays for all.
        calibrated: True if its probabilities are acceptance rates already.
        max_depth: deepest level it can give.
    """

    name: str
    proposal: Proposal
    by_level: bool
    calibrated: bool
    max_depth: int

    def fresh(self) -> Drafter:
        """A drafter like this one that has seen nothing: every engine gets its own, as request ids repeat."""
        ...

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        """Starts a step; request i owns root i of the forest. Cheap: costly work waits for `expand`."""
        ...

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """Children of the frontier's nodes, grouped by parent in frontier order."""
        ...

    def learn(self, forest: Forest, nodes: Ints, accepted: NDArray[np.bool_]) -> None:
        """Learns what became of nodes whose ancestors were all accepted."""
        ...

    def commit(self, forest: Forest, accepted: Ints) -> None:
        """Hears which nodes were accepted, each request's path in order."""
        ...

    def release(self, request_id: int) -> None:
        """Forgets a request that has ended."""
        ...
