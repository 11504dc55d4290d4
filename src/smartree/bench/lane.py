"""One policy's engine with a batch that is kept full, and the window in which it is measured.

A closed queue says little about a batch size: its last requests decode alone, and those of a policy that speculates
well leave early. So requests are fed in for as long as the measurement lasts:

- Opening: the batch is filled with requests of different lengths, so that they end one after another, as in a server
  that has been running for a while. New engines also warm up here.
- The window opens when the first place becomes free. Measured requests enter, each prompt once, as places become free.
- When the last measured one has entered, further requests keep the batch full; the window closes when the last
  measured one ends.

What is counted is everything that was generated in the window, by whichever request: requests cut by its beginning
and by its end make up for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from time import perf_counter

from smartree.bench.config import MOST_SEED
from smartree.bench.measures import Measures
from smartree.bench.stopwatch import TimedPolicy
from smartree.engine.engine import Engine
from smartree.engine.request import Request
from smartree.engine.stats import EngineStats
from smartree.sampling_params import SamplingParams

WARM_UP_STEPS = 64
"""Steps of a new engine before anything counts: kernels are chosen, prices and acceptance rates are learned."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a lane decodes.

    Attributes:
        prompts: tokens of the measured prompts.
        max_tokens: most tokens of an output.
        temperature: of all of them.
        seed: prompt i is decoded with seed + i, so that every policy gets the same tokens.
    """

    prompts: Sequence[list[int]]
    max_tokens: int
    temperature: float
    seed: int

    def params(self, number: int, share: float = 1.0) -> SamplingParams:
        """Of the request with this number; `share` of the tokens."""
        tokens = max(1, ceil(share * self.max_tokens))
        return SamplingParams(max_tokens=tokens, temperature=self.temperature, seed=self.seed + number)


class Lane:
    """A policy, its engine, and its window."""

    def __init__(self, name: str, policy: TimedPolicy, engine: Engine, batch: int) -> None:
        """Args:
        name: what the results call it.
        policy: the engine's.
        engine: fresh; it keeps what it learns from one window to the next.
        batch: requests decoded together.
        """
        self.name, self.policy, self.engine, self.batch = name, policy, engine, batch
        self._warm = False
        self._start(Load((), 1, 0.0, 0))

    def _start(self, load: Load) -> None:
        self._load = load
        self._measured: list[Request] = []
        self._running: list[Request] = []
        self._closing = 0
        self._seconds = 0.0
        self._decoding_tokens, self._decoding_seconds = 0, 0.0
        self._path_levels = 0
        self._errors: list[float] = []

    @property
    def outputs(self) -> list[list[int]]:
        """Tokens of the measured prompts."""
        return [request.output for request in self._measured]

    def open(self, load: Load) -> None:
        """Fills the batch, warms a new engine up, and opens the window.

        Raises:
            InputError: a prompt cannot be used.
        """
        self._start(load)
        self.engine.stats = EngineStats()
        opening: list[Request] = []
        while True:
            while self.engine.unfinished < self.batch:
                opening.append(self._opening_request(len(opening)))
            self.engine.step()
            place_is_free = self.engine.unfinished < self.batch
            all_joined = all(request.output for request in opening[: self.batch])
            if place_is_free and all_joined and (self._warm or self.engine.stats.steps >= WARM_UP_STEPS):
                break
        self._warm = True
        self._running = [request for request in opening if request.finish_reason is None]
        self.engine.stats = EngineStats()
        self.policy.seconds = 0.0

    def _opening_request(self, number: int) -> Request:
        """The last prompts first: those that run on into the window are then not the ones measured beside them."""
        load = self._load
        share = (number + 0.5) / self.batch if number < self.batch else 1.0
        tokens = load.prompts[-1 - number % len(load.prompts)]
        return self.engine.add(tokens, load.params(MOST_SEED + number, share))

    def advance(self, share: float) -> None:
        """Runs until that share of the measured work is done; at 1 every measured request has ended."""
        while self._share() < share:
            self._step()

    def _share(self) -> float:
        done = sum(
            1.0 if request.finish_reason is not None else len(request.output) / self._load.max_tokens
            for request in self._measured
        )
        return done / len(self._load.prompts)

    def _step(self) -> None:
        begin = perf_counter()
        while self.engine.unfinished < self.batch:
            self._running.append(self._next_request())
        reads_prompts = any(len(request.tokens) == request.prompt_length for request in self._running)
        stats = self.engine.stats
        tokens, requests, levels = stats.tokens, stats.requests_decoded, stats.draft_levels
        compared, measured, predicted = stats.compared_steps, stats.compared_seconds, stats.predicted_seconds
        self.engine.step()
        seconds = perf_counter() - begin
        self._seconds += seconds
        if not reads_prompts:
            self._decoding_tokens += stats.tokens - tokens
            self._decoding_seconds += seconds
        self._path_levels += (stats.draft_levels - levels) * (stats.requests_decoded - requests)
        if stats.compared_steps > compared:
            clock = stats.compared_seconds - measured
            self._errors.append(abs((stats.predicted_seconds - predicted) / clock - 1))
        self._running = [request for request in self._running if request.finish_reason is None]

    def _next_request(self) -> Request:
        """The next measured request; after the last, another one of the prompts, in the same order."""
        load, count = self._load, len(self._load.prompts)
        number = len(self._measured) if len(self._measured) < count else count + self._closing
        request = self.engine.add(load.prompts[number % count], load.params(number))
        if number < count:
            self._measured.append(request)
        else:
            self._closing += 1
        return request

    def close(self, plain: Sequence[list[int]] | None = None) -> Measures:
        """Ends what still runs and says what happened in the window.

        Args:
            plain: outputs of plain decoding; None if these are they.
        """
        for request in self._running:
            self.engine.abort(request)
        stats, outputs = self.engine.stats, self.outputs
        return Measures(
            tokens=stats.tokens,
            seconds=self._seconds,
            decoding_tokens=self._decoding_tokens,
            decoding_seconds=self._decoding_seconds,
            first_tokens=stats.first_tokens,
            steps=stats.decode_steps,
            requests=stats.requests_decoded,
            rows=stats.verified_rows,
            levels=stats.draft_levels,
            path_levels=self._path_levels,
            draft_seconds=stats.draft_seconds,
            policy_seconds=self.policy.seconds,
            bookkeeping_seconds=stats.bookkeeping_seconds,
            compared_steps=stats.compared_steps,
            compared_seconds=stats.compared_seconds,
            predicted_seconds=stats.predicted_seconds,
            prediction_error=median(self._errors) if self._errors else float("nan"),
            differing=() if plain is None else _differing(outputs, plain),
        )


def _differing(outputs: Sequence[list[int]], plain: Sequence[list[int]]) -> tuple[int, ...]:
    pairs = zip(outputs, plain, strict=True)
    return tuple(place for place, (mine, theirs) in enumerate(pairs) if mine != theirs)
