"""Who takes part in the next step: requests join and leave between steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from smartree.engine.request import Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens start .. end - 1 of a joining request; `last` if they complete its prompt."""

    request: Request
    start: int
    end: int

    @property
    def last(self) -> bool:
        """True if the prompt is complete with this chunk."""
        return self.end == self.request.prompt_length


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: trees of the decoding requests and chunks of the joining ones, in seating order.

    Attributes:
        decoding: requests that decode.
        chunks: prompt chunks, oldest request first.
        seated: every request that needs a cache slot, decoding ones first.
    """

    decoding: list[Request]
    chunks: list[Chunk]
    seated: list[Request]


class Scheduler:
    """First come, first served; prompt tokens share a step with the decoding requests up to a budget."""

    def __init__(self, max_batch: int, prefill_tokens: int) -> None:
        self._max_batch, self._prefill_tokens = max_batch, prefill_tokens
        self._waiting: deque[Request] = deque()
        self._joining: list[Request] = []
        self._decoding: list[Request] = []

    def add(self, request: Request) -> None:
        """Queues a request."""
        self._waiting.append(request)

    @property
    def unfinished(self) -> int:
        """Requests waiting, joining or decoding."""
        return len(self._waiting) + len(self._joining) + len(self._decoding)

    def plan(self, cached: Mapping[int, int]) -> StepPlan:
        """The next step.

        Args:
            cached: rows in the cache by request id; a request not in it has none.
        """
        while self._waiting and len(self._joining) + len(self._decoding) < self._max_batch:
            self._joining.append(self._waiting.popleft())
        budget = self._prefill_tokens
        chunks = []
        for request in self._joining:
            if budget == 0:
                break
            start = cached.get(request.id, 0)
            end = min(request.prompt_length, start + budget)
            budget -= end - start
            chunks.append(Chunk(request, start, end))
        return StepPlan(list(self._decoding), chunks, self._decoding + self._joining)

    def joined(self, request: Request) -> None:
        """The prompt of a joining request is complete: it decodes from now on."""
        self._joining.remove(request)
        self._decoding.append(request)

    def leave(self, request: Request) -> None:
        """A request has ended. The last decoding one takes its place, so that only that one changes its slot."""
        if request in self._joining:
            self._joining.remove(request)
        elif request in self._decoding:
            place = self._decoding.index(request)
            last = self._decoding.pop()
            if last is not request:
                self._decoding[place] = last
        else:
            self._waiting.remove(request)
