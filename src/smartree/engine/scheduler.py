"""Who takes part in the next step: requests join and leave between steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from smartree.engine.budget import RowBudget
from smartree.engine.request import Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens start .. end - 1 of a joining request."""

    request: Request
    start: int
    end: int
    last: bool = field(init=False)
    """True if all that it has is read with this chunk, whose last row then gives the next token."""

    def __post_init__(self) -> None:
        # Now, as the request grows in the step itself.
        object.__setattr__(self, "last", self.end == len(self.request.tokens))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: trees of the decoding requests and chunks of the joining ones, in seating order.

    Attributes:
        decoding: requests that decode.
        chunks: prompt chunks, oldest request first.
        seated: every request that needs a cache slot, decoding ones first.
        free_blocks: blocks of the cache that the trees may take.
        preempted: requests that gave up their rows for it.
        reused: tokens that joining requests need not read, because another one's rows were copied.
    """

    decoding: list[Request]
    chunks: list[Chunk]
    seated: list[Request]
    free_blocks: int = 0
    preempted: int = 0
    reused: int = 0


class Scheduler:
    """First come, first served, within a batch size, a budget of cache rows and one of prompt tokens a step.

    Rows: a request that runs holds the blocks of its text so far (a joining one those of the text it is to read), not
    of its longest output. If they do not suffice, the youngest gives up its rows and goes back to the front of the
    queue, its tokens kept; the oldest never does, so there is always progress. A request joins when there are blocks
    for its text and one more for every request that runs already, so that it is not thrown out in the next step.

    Prompt tokens: one half goes to prompts in the order of arrival, the other half to those with the least left to
    read, so that neither a long prompt nor many short ones hold the others up. Decoding requests are not held up by
    prompts at all.
    """

    def __init__(self, max_batch: int, prefill_tokens: int, budget: RowBudget) -> None:
        """Args:
        max_batch: most requests that run.
        prefill_tokens: most prompt tokens in a step.
        budget: cache rows.
        """
        self.budget = budget
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

    @property
    def joining(self) -> list[Request]:
        """Requests that read their text, oldest first."""
        return sorted(self._joining, key=lambda request: request.id)

    @property
    def decoding(self) -> list[Request]:
        """Requests that decode, in the order of their slots."""
        return list(self._decoding)

    @property
    def free_blocks(self) -> int:
        """Blocks that no running request holds."""
        return self.budget.total - sum(self._held(request) for request in (*self._joining, *self._decoding))

    def expired(self, now: float) -> list[Request]:
        """Requests past their deadline, wherever they are."""
        return [
            request
            for request in (*self._waiting, *self._joining, *self._decoding)
            if request.deadline is not None and now >= request.deadline
        ]

    def admit(self) -> list[Request]:
        """Makes sure that everybody who runs has rows, and lets waiting requests join.

        Returns:
            Requests that gave up their rows, which have to be freed.
        """
        preempted = []
        while self.free_blocks < 0:
            youngest = max((*self._joining, *self._decoding), key=lambda request: request.id)
            self.leave(youngest)
            self._waiting.appendleft(youngest)
            preempted.append(youngest)
        while not preempted and self._waiting and self._may_join(self._waiting[0]):
            self._joining.append(self._waiting.popleft())
        return preempted

    def _may_join(self, request: Request) -> bool:
        running = len(self._joining) + len(self._decoding)
        if running == self._max_batch:
            return False
        return running == 0 or self._held(request) + running <= self.free_blocks

    def _held(self, request: Request) -> int:
        return self.budget.blocks(len(request.tokens))

    def plan(
        self, cached: Mapping[int, int], held_back: Collection[int] = (), prompt_tokens: int | None = None
    ) -> StepPlan:
        """The next step.

        Args:
            cached: rows in the cache by request id; a request not in it has none.
            held_back: ids of joining requests that read nothing in this step.
            prompt_tokens: most prompt tokens of this step; None takes the scheduler's own limit.
        """
        most = self._prefill_tokens if prompt_tokens is None else min(prompt_tokens, self._prefill_tokens)
        joining = self.joining
        readers = [request for request in joining if request.id not in held_back]
        left = {request.id: len(request.tokens) - cached.get(request.id, 0) for request in readers}
        taken = dict.fromkeys(left, 0)
        half = -(-most // 2)
        rest = most - half + _share(half, left, left, taken)
        _share(rest, sorted(left, key=lambda one: (left[one] - taken[one], one)), left, taken)
        ends = {request.id: len(request.tokens) - left[request.id] + taken[request.id] for request in readers}
        chunks = [
            Chunk(request, ends[request.id] - taken[request.id], ends[request.id])
            for request in readers
            if taken[request.id]
        ]
        return StepPlan(list(self._decoding), chunks, self._decoding + joining)

    def joined(self, request: Request) -> None:
        """The text of a joining request is complete: it decodes from now on."""
        self._joining.remove(request)
        self._decoding.append(request)

    def leave(self, request: Request) -> bool:
        """A request is over. The last decoding one takes its place, so that only that one changes its slot.

        Returns:
            False if it was not here.
        """
        if request in self._joining:
            self._joining.remove(request)
        elif request in self._decoding:
            place = self._decoding.index(request)
            last = self._decoding.pop()
            if last is not request:
                self._decoding[place] = last
        elif request in self._waiting:
            self._waiting.remove(request)
        else:
            return False
        return True


def _share(tokens: int, order: Iterable[int], left: Mapping[int, int], taken: dict[int, int]) -> int:
    """Gives out tokens in the order given, as many as each can still use; returns those that nobody wanted."""
    for one in order:
        more = min(tokens, left[one] - taken[one])
        taken[one] += more
        tokens -= more
    return tokens
