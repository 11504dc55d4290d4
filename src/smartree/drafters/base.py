"""What a drafter is: it proposes children, level by level, for all requests of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
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
        feature_layers: layers of the target whose hidden states it reads (see `LayerTaps`); empty if none.
        experience: how often its drafts were accepted elsewhere, as `Calibration.to_json` writes it; None if it is not
            known, and of drafters that are `calibrated`.
        adopts: True if a request may begin with rows of another one, for whose tokens the target is not run again.
    """

    name: str
    proposal: Proposal
    by_level: bool
    calibrated: bool
    max_depth: int
    feature_layers: tuple[int, ...]
    experience: Mapping[str, Any] | None

    @property
    def adopts(self) -> bool:
        """See above."""
        ...

    @property
    def fingerprint(self) -> str:
        """Short hash of what it is, for profile keys."""
        ...

    def fresh(self) -> Drafter:
        """A drafter like this one that has seen nothing: every engine gets its own, as request ids repeat."""
        ...

    def rehearsal(self, batch: int, rows: int, context: int) -> Callable[[], None] | None:
        """One level to be timed: `rows` nodes for each of `batch` requests behind `context` tokens; None if levels
        cost nothing, or if `context` is beyond its window."""
        ...

    def plant(self, requests: Sequence[DraftRequest], forest: Forest, limits: Ints, least: float) -> None:
        """Plants what is known for nothing, before anybody decides; only for policies that take it.

        Args:
            requests: request i owns root i of the forest.
            forest: roots only.
            limits: [B] depth of the deepest node of each that is of use.
            least: path probability below which a node is of no use.
        """
        ...

    def unread(self, requests: Sequence[DraftRequest]) -> int:
        """Committed tokens of these requests that it has to read before it can draft for all of them."""
        ...

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        """Starts a step; request i owns root i of the forest. Cheap: costly work waits for `expand`."""
        ...

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """Children of the frontier's nodes, grouped by parent in frontier order."""
        ...

    def learn(self, forest: Forest, nodes: Ints, accepted: NDArray[np.bool_]) -> None:
        """Learns what became of nodes whose ancestors were all accepted: of planted ones only, unless `calibrated`."""
        ...

    def absorb(
        self, request_ids: Sequence[int], counts: Sequence[int], features: torch.Tensor, rows: Ints | None = None
    ) -> None:
        """Hears the target's hidden states of tokens that are now committed or about to be.

        Args:
            request_ids: whose rows follow each other; prompt chunks come in their order.
            counts: rows of each.
            features: [M, layers * hidden] states of `feature_layers`, side by side.
            rows: [sum of counts] those of `features` that are meant; None for all, in order.
        """
        ...

    def commit(self, forest: Forest, accepted: Ints) -> None:
        """Hears which nodes were accepted, each request's path in order."""
        ...

    def adopt(self, request_id: int, donor_id: int, most: int) -> int:
        """A new request begins with the first tokens of another one, which runs or was retired.

        Args:
            request_id: the new one.
            donor_id: the other.
            most: tokens that both begin with; the new one has more of its own.

        Returns:
            How many of them the target need not read again for this drafter's sake: for these no hidden states will
            come. If that is too few to be of use, `release` follows.
        """
        ...

    def retire(self, request_id: int) -> None:
        """A request has ended; what is known of it may be kept for `adopt` until `release`, or be forgotten."""
        ...

    def release(self, request_id: int) -> None:
        """Forgets a request that has ended or will be read again from its beginning; it may be unknown here."""
        ...


class BaseDrafter:
    """What most drafters share: they read no hidden states, learn nothing themselves, and their levels are free."""

    name = "base"
    proposal = Proposal.POINT_MASS
    by_level = False
    calibrated = False
    max_depth = 8
    feature_layers: tuple[int, ...] = ()
    experience: Mapping[str, Any] | None = None

    @property
    def fingerprint(self) -> str:
        """The name, unless there are weights to hash."""
        return self.name

    def rehearsal(self, batch: int, rows: int, context: int) -> Callable[[], None] | None:
        """Free levels need no timing."""
        return None

    def plant(self, requests: Sequence[DraftRequest], forest: Forest, limits: Ints, least: float) -> None:
        """Nothing comes for nothing."""

    def unread(self, requests: Sequence[DraftRequest]) -> int:
        """Reading costs nothing."""
        return 0

    def learn(self, forest: Forest, nodes: Ints, accepted: NDArray[np.bool_]) -> None:
        """The engine calibrates; a fixed model learns nothing."""

    def absorb(
        self, request_ids: Sequence[int], counts: Sequence[int], features: torch.Tensor, rows: Ints | None = None
    ) -> None:
        """It reads tokens, not hidden states."""

    def commit(self, forest: Forest, accepted: Ints) -> None:
        """Nothing to keep: the committed tokens arrive with the next `begin`."""

    @property
    def adopts(self) -> bool:
        """Those that read tokens do; those that read hidden states must keep them for it."""
        return not self.feature_layers

    def adopt(self, request_id: int, donor_id: int, most: int) -> int:
        """It reads the new request's tokens itself."""
        return most

    def retire(self, request_id: int) -> None:
        """Forgets the request."""
        self.release(request_id)

    def release(self, request_id: int) -> None:
        """Nothing is kept of a request."""
