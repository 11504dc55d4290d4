"""Clocks of a device: everything queued is finished before a clock is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import torch

_WARM_UP, _FEWEST = 5, 3  # where CUDA graphs are on, the fourth call records one


def finish(device: torch.device) -> None:
    """Waits until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Deadline:
    """How much of a time budget is left."""

    def __init__(self, seconds: float) -> None:
        self._end = perf_counter() + seconds

    @property
    def left(self) -> float:
        """Seconds; negative once it is over."""
        return self._end - perf_counter()


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """One call, from a device at rest to a device at rest."""
    finish(device)
    begin = perf_counter()
    run()
    finish(device)
    return perf_counter() - begin


def medians(runs: Sequence[Callable[[], object]], device: torch.device, seconds: float) -> list[float]:
    """Median seconds of each call, timed in turns so that a noisy moment does not hit one alone.

    Args:
        runs: the calls.
        device: where they run.
        seconds: to spend; each is called at least 8 times, 5 of them to warm up.
    """
    for run in runs:
        for _ in range(_WARM_UP):
            run()
    deadline, times, rounds = Deadline(seconds), [[] for _ in runs], 0
    while rounds < _FEWEST or deadline.left > 0:
        for own, run in zip(times, runs, strict=True):
            own.append(seconds_of(run, device))
        rounds += 1
    return [median(own) for own in times]
