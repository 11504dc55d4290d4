"""Feeds an engine that is driven step by step: a prompt enters as soon as another one is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Protocol

from benchmarks.peers.worker_protocol import Reply


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step gave to one prompt: its number, its new tokens, and whether that were the last ones."""

    number: int
    tokens: list[int]
    done: bool


class StepEngine(Protocol):
    """An engine that decodes step by step."""

    def add(self, number: int, prompt: Sequence[int], max_tokens: int) -> None:
        """Queues a prompt."""
        ...

    def step(self) -> list[Progress]:
        """Runs one step."""
        ...


def keep_full(engine: StepEngine, prompts: Sequence[Sequence[int]], batch: int, max_tokens: int) -> Reply:
    """Decodes all prompts, `batch` of them at a time.

    Steps that read a prompt, and those of a batch that the end of the queue has left with holes, are in the seconds but
    not in the time of a step.
    """
    waiting = deque(enumerate(prompts))
    tokens: list[list[int]] = [[] for _ in prompts]
    running: set[int] = set()
    times = []
    begin = perf_counter()
    while waiting or running:
        while waiting and len(running) < batch:
            number, prompt = waiting.popleft()
            engine.add(number, prompt, max_tokens)
            running.add(number)
        steady = len(running) == batch and all(tokens[number] for number in running)
        before = perf_counter()
        progress = engine.step()
        if steady:
            times.append(perf_counter() - before)
        for one in progress:
            tokens[one.number].extend(one.tokens)
            if one.done:
                running.discard(one.number)
    seconds = perf_counter() - begin
    return Reply(tokens, seconds, 1e3 * median(times) if times else None, len(times))
