"""Who has rows in the caches: lets requests in, takes rows back, hands equal beginnings on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from smartree.drafters.base import Drafter
from smartree.engine.budget import BLOCK
from smartree.engine.drafting import Draft
from smartree.engine.prefixes import LEAST_SHARED, Donor, Prefixes
from smartree.engine.prompt_share import PromptShare
from smartree.engine.request import Request
from smartree.engine.scheduler import Scheduler, StepPlan
from smartree.models.runner import ModelRunner

_TREE_BLOCKS = 4  # of a decoding request: rows of ended requests make way for a tree of that size


class Tenancy:
    """Keeps the scheduler's books, the target's cache and the drafter's in step with each other."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        drafter: Drafter | None,
        prefix_reuse: bool,
        share: PromptShare,
    ) -> None:
        """Args:
        scheduler: decides who runs.
        runner: holds the target's rows.
        drafter: holds its own; None if there is none.
        prefix_reuse: whether joining requests start with rows of others, where the drafter can follow.
        share: how many prompt tokens a step takes.
        """
        self._scheduler, self._runner, self._drafter, self._share = scheduler, runner, drafter, share
        self._prefixes = Prefixes(runner.seating) if prefix_reuse and (drafter is None or drafter.adopts) else None

    def plan(self) -> StepPlan:
        """The next step; rows that it takes from others are free afterwards."""
        preempted = self._scheduler.admit()
        for request in preempted:
            request.stats.preemptions += 1
            self.release(request)
        held_back, reused = self._reuse()
        joining = len(self._scheduler.joining)
        tokens = self._share.tokens(self._scheduler.decoding, joining) if joining else 0
        plan = self._scheduler.plan(self._runner.seating.cached, held_back, tokens)
        free = self._scheduler.free_blocks
        if self._prefixes is not None:
            room = max(0, free - _TREE_BLOCKS * len(plan.decoding))
            for request_id in self._prefixes.make_room(self._scheduler.budget, room):
                self._forget(request_id)
            free -= sum(-(-rows // BLOCK) for rows in self._runner.seating.retired.values())
        return replace(plan, free_blocks=free, preempted=len(preempted), reused=reused)

    def fit(self, plan: StepPlan, draft: Draft) -> Draft:
        """The trees cut to the rows that are free."""
        lengths = np.array([len(request.tokens) for request in plan.decoding], np.int64)
        kept = self._scheduler.budget.trim(draft.forest, draft.selected, lengths, plan.free_blocks)
        return draft if kept is draft.selected else replace(draft, selected=kept)

    def end(self, request: Request) -> None:
        """A request is complete: its rows may stay as long as nobody needs them."""
        self._scheduler.leave(request)
        if self._prefixes is None:
            self.release(request)
            return
        self._prefixes.keep(request)
        if self._drafter is not None:
            self._drafter.retire(request.id)

    def release(self, request: Request) -> None:
        """Frees everything that a request has."""
        self._runner.seating.release(request.id)
        self._forget(request.id)

    def _forget(self, request_id: int) -> None:
        if self._drafter is not None:
            self._drafter.release(request_id)

    def _reuse(self) -> tuple[set[int], int]:
        """Gives joining requests the rows that others have; who is to wait for somebody's rows, and tokens reused."""
        held_back: set[int] = set()
        reused = 0
        if self._prefixes is None:
            return held_back, reused
        before = self._scheduler.decoding
        for request in self._scheduler.joining:
            if not self._runner.seating.cached.get(request.id):
                donor = self._prefixes.donor(request, before)
                if donor is not None and not donor.ready:
                    held_back.add(request.id)
                elif donor is not None:
                    reused += self._adopt(request, donor)
            before.append(request)
        return held_back, reused

    def _adopt(self, request: Request, donor: Donor) -> int:
        """Tokens that the request need not read any more."""
        rows = donor.rows
        if self._drafter is not None and rows >= LEAST_SHARED:
            rows = self._drafter.adopt(request.id, donor.id, rows)
        if rows < LEAST_SHARED:
            self._forget(request.id)
            return 0
        self._runner.share(donor.id, request.id, rows)
        request.stats.reused += rows
        return rows
