"""A drafter that costs levels and a lookup that is free, in one tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.drafters.base import BaseDrafter, Drafter, DraftRequest
from smartree.drafters.ngram import NgramDrafter
from smartree.drafters.second_opinion import NOT_NAMED, SecondOpinion
from smartree.errors import InputError
from smartree.tree.forest import Candidates, Floats, Forest, Ints

_SHORTEST_MATCH = 3  # tokens; what follows one or two is guessed better by any model
_LEAST_PATH = 0.02
_MOST_TAKEN = 0.999
_NOBODY = np.empty(0, np.int64)
_NOT_JUDGED = -1


class JointDrafter(BaseDrafter):
    """The lookup's continuations are planted before anything is decided; the other drafter's levels add to them.

    A text that is quoted or edited is mostly looked up, for nothing; where the lookup has no word the tree is the other
    drafter's alone. The two share the children of a root: what both propose is kept once, and the other drafter's
    remaining children share the probability that the lookup leaves.
    """

    def __init__(self, levels: Drafter, lookup: NgramDrafter | None = None) -> None:
        """Args:
        levels: the drafter whose levels cost something.
        lookup: None makes one that only follows matches of three tokens and more.

        Raises:
            InputError: `levels` is a lookup itself.
        """
        if levels.calibrated or not levels.by_level:
            raise InputError(f"Lookup joins a model or a head, not {levels.name!r}, which looks up already.")
        self.levels, self.lookup = levels, lookup or NgramDrafter(shortest_match=_SHORTEST_MATCH)
        self.name, self.proposal = f"{levels.name}+{self.lookup.name}", levels.proposal
        self.by_level, self.max_depth = levels.by_level, levels.max_depth
        self.feature_layers, self.experience = levels.feature_layers, levels.experience
        self.opinion = SecondOpinion()
        self._judged, self._rates = _NOBODY, np.empty(0)  # of the planted nodes: their cells, and the lookup's word

    @property
    def fingerprint(self) -> str:
        """Lookup changes no times."""
        return self.levels.fingerprint

    def fresh(self) -> JointDrafter:
        """The same pair, having seen nothing."""
        return JointDrafter(self.levels.fresh(), self.lookup.fresh())

    def rehearsal(self, batch: int, rows: int, context: int) -> Callable[[], None] | None:
        """A level of the drafter that has levels."""
        return self.levels.rehearsal(batch, rows, context)

    def plant(self, requests: Sequence[DraftRequest], forest: Forest, limits: Ints, least: float) -> None:
        """Plants what the lookup finds and what is likely enough to be worth a row.

        Children of roots are planted if they are worth a row anywhere: they are what the lookup goes on learning from
        where it hardly pays.
        """
        self.lookup.begin(requests, forest)
        forest.plant(self.lookup.trees(limits, _LEAST_PATH, max(least, _LEAST_PATH)))
        self._judged, self._rates = np.full(forest.planted, _NOT_JUDGED), np.zeros(forest.planted)

    def unread(self, requests: Sequence[DraftRequest]) -> int:
        """What the drafter that has levels has to read."""
        return self.levels.unread(requests)

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        """Starts the step of the drafter that has levels."""
        self.levels.begin(requests, forest)

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """Children by the drafter that has levels, without those that are planted already.

        What it says of these changes what is thought of them.
        """
        candidates = self.levels.expand(forest, frontier)
        planted = forest.planted_below(candidates.parents)
        if len(planted) == 0:
            return candidates
        named = Named.of(forest, candidates, planted)
        self._judge(forest, named)
        return beside_planted(forest, candidates, named)

    def _judge(self, forest: Forest, named: Named) -> None:
        """Revises planted nodes by what the drafter that has levels says of them."""
        planted, rates = named.planted, forest.probability[named.planted]
        cells = self.opinion.cells(rates, named.ranks, named.probabilities)
        self._judged[planted - forest.batch], self._rates[planted - forest.batch] = cells, rates
        both = self.opinion.rates(cells, rates)
        parents = forest.parent[planted]
        taken = np.bincount(parents, both)[parents]
        forest.revise(planted, both / np.maximum(taken / _MOST_TAKEN, 1.0))

    def learn(self, forest: Forest, nodes: Ints, accepted: NDArray[np.bool_]) -> None:
        """The lookup learns from its own nodes; and it is learned what the other drafter's word about them is worth."""
        self.lookup.learn(forest, nodes, accepted)
        places = nodes - forest.batch
        judged = self._judged[places] != _NOT_JUDGED
        if judged.any():
            places = places[judged]
            self.opinion.learn(self._judged[places], self._rates[places], accepted[judged])

    def absorb(
        self, request_ids: Sequence[int], counts: Sequence[int], features: torch.Tensor, rows: Ints | None = None
    ) -> None:
        """Hidden states are for the drafter that has levels."""
        self.levels.absorb(request_ids, counts, features, rows)

    def commit(self, forest: Forest, accepted: Ints) -> None:
        """Nodes that the other drafter did not draft are news to it: it reads them with the next step."""
        self.levels.commit(forest, accepted)

    @property
    def adopts(self) -> bool:
        """If the drafter that has levels does; the lookup reads tokens."""
        return self.levels.adopts

    def adopt(self, request_id: int, donor_id: int, most: int) -> int:
        """Hands what the other drafter knows to a new request."""
        return self.levels.adopt(request_id, donor_id, most)

    def retire(self, request_id: int) -> None:
        """A request has ended: the lookup forgets it."""
        self.levels.retire(request_id)
        self.lookup.release(request_id)

    def release(self, request_id: int) -> None:
        """Forgets a request."""
        self.levels.release(request_id)
        self.lookup.release(request_id)


@dataclass(frozen=True, slots=True)
class Named:
    """Where a drafter's candidates are planted already.

    Attributes:
        planted: [n] planted children of the candidates' parents.
        known: [C] True for candidates that are one of them.
        ranks: [n] place of each among the candidates for its parent, NOT_NAMED if it is none.
        probabilities: [n] that the drafter gives it, 0 if it does not name it.
    """

    planted: Ints
    known: NDArray[np.bool_]
    ranks: Ints
    probabilities: Floats

    @staticmethod
    def of(forest: Forest, candidates: Candidates, planted: Ints) -> Named:
        """Compares parents and tokens."""
        tokens = forest.token[planted]
        vocabulary = int(max(tokens.max(), candidates.tokens.max(initial=0))) + 1
        names = forest.parent[planted] * vocabulary + tokens
        order = names.argsort()
        ordered, keys = names[order], candidates.parents * vocabulary + candidates.tokens
        places = np.minimum(ordered.searchsorted(keys), len(names) - 1)
        known = ordered[places] == keys
        ranks, probabilities = np.full(len(planted), NOT_NAMED), np.zeros(len(planted))
        which = order[places[known]]
        ranks[which], probabilities[which] = candidates.ranks[known], candidates.probabilities[known]
        return Named(planted, known, ranks, probabilities)


def beside_planted(forest: Forest, candidates: Candidates, named: Named) -> Candidates:
    """Candidates beside the planted children of their parents.

    A candidate that is planted already is dropped. The others get what the planted ones leave: their probabilities are
    scaled so that, without the dropped ones, they add up to the part of the parent's probability that is left.
    """
    size, parents, planted = len(forest), candidates.parents, named.planted
    taken = np.bincount(forest.parent[planted], forest.probability[planted], size)
    dropped = np.bincount(forest.parent[planted], named.probabilities, size)
    scale = (1 - np.minimum(taken, _MOST_TAKEN)) / (1 - np.minimum(dropped, _MOST_TAKEN))
    kept = ~named.known
    probabilities = np.minimum(candidates.probabilities * scale[parents], 1.0)
    shared = Candidates(
        parents, candidates.tokens, probabilities, candidates.ranks, candidates.handles, candidates.features
    )
    return shared.take(kept)
