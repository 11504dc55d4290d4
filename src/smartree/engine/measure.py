"""Measures what passes cost on this setup: the grid behind every decision."""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from smartree.cost.draft import DraftCost, DraftPoint
from smartree.cost.key import ProfileKey
from smartree.cost.padding import UnevenPoint
from smartree.cost.profile import Profile
from smartree.cost.table import CostPoint
from smartree.drafters.base import Drafter
from smartree.models.attention import ATTENTION_NAME
from smartree.models.folders import cache_folder
from smartree.models.load import LoadedModel, library_versions
from smartree.models.rehearsal import rehearsal
from smartree.models.runner import ModelRunner
from smartree.sampling_params import SamplingParams
from smartree.verify.sampler import Draw, Sampler

Progress = Callable[[int, int], None]
NATIVE_NAME = "smartree native 2"
"""With the number of the kernels: profiles of slower ones are of no use."""
_ROWS_PER_REQUEST = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_MOST_ROWS = 96
_BESIDE_A_PROMPT = 192  # rows of the largest pass of large batches: trees ride on prompts too
_LARGE_BATCH = 4
_UNEVEN_BATCHES = 3  # the largest of those measured
_DRAFT_ROWS = (1, 4, 10)
_LEVELS_IN_A_ROW = 3  # the first finds the target's weights in the processor's cache, the others the drafter's own
_CONTEXT, _LONG_CONTEXT = 256, 1024
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 30
_BUDGET_SECONDS = 10.0


def device_name(device: torch.device) -> str:
    """The processor's own name, with the number of cores in use on a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return name


def profile_key(target: LoadedModel, drafter: Drafter | None) -> ProfileKey:
    """The setup at hand."""
    torch_version, transformers_version = library_versions()
    return ProfileKey(
        device=device_name(target.device) + (f" x {target.shards}" if target.shards > 1 else ""),
        model=target.fingerprint,
        drafter=drafter.fingerprint if drafter is not None else "lookup",
        dtype=str(target.dtype).removeprefix("torch."),
        attention=ATTENTION_NAME if target.native is None else NATIVE_NAME,
        threads=torch.get_num_threads() if target.device.type == "cpu" else 0,
        torch=torch_version,
        transformers=transformers_version,
        smartree=version("smartree"),
    )


def profile_path(key: ProfileKey) -> Path:
    """Where the profile of a setup is kept."""
    return cache_folder() / "profiles" / f"{key.digest()}.json"


def grid(max_batch: int, window: int) -> list[tuple[int, int, int]]:
    """(batch, rows per request, context) of the passes to measure: powers of two up to `max_batch`."""
    batches = [2**power for power in range(max_batch.bit_length()) if 2**power <= max_batch]
    if batches[-1] != max_batch:
        batches.append(max_batch)
    context = max(1, min(_CONTEXT, window - 1 - max(_ROWS_PER_REQUEST)))
    points = [
        (batch, rows, context)
        for batch in batches
        for rows in _ROWS_PER_REQUEST
        if rows <= 4 or batch * rows <= _MOST_ROWS
    ]
    points += [
        (batch, _BESIDE_A_PROMPT // batch, context)
        for batch in batches
        if _LARGE_BATCH <= batch <= _BESIDE_A_PROMPT // 4 and context + _BESIDE_A_PROMPT // batch < window
    ]
    if window >= 2 * _LONG_CONTEXT:
        points += [(batch, rows, _LONG_CONTEXT) for batch in sorted({1, batches[-1]}) for rows in (1, 8)]
    return points


def uneven_shapes(max_batch: int, window: int) -> list[tuple[tuple[int, ...], int]]:
    """(rows of each request, context) of passes whose requests bring different numbers of rows."""
    batches = sorted({batch for batch, _, _ in grid(max_batch, window) if batch > 1})[-_UNEVEN_BATCHES:]
    shapes = []
    for batch in batches:
        context = next(context for one, _, context in grid(max_batch, window) if one == batch)
        half, wide = batch // 2, min(batch + 1, max(_ROWS_PER_REQUEST))
        sizes = [(1,) * (batch - half) + (2,) * half, (1,) * (batch - half) + (3,) * half, (1,) * (batch - 1) + (wide,)]
        shapes += [(each, context) for each in dict.fromkeys(sizes)]
    return shapes


def measure(
    target: LoadedModel,
    drafter: Drafter | None,
    max_batch: int,
    window: int,
    progress: Progress | None = None,
    seconds: float = _BUDGET_SECONDS,
) -> Profile:
    """Times target passes and draft levels over a grid, in rounds over all points, and takes medians.

    Args:
        target: the model.
        drafter: one that runs by level is measured too.
        max_batch: largest batch of interest.
        window: longest sequence of interest.
        progress: called with (passes done, passes expected).
        seconds: time to spend; at least 3 rounds are made.
    """
    begin = perf_counter()
    runner = ModelRunner(target, max_batch, window)
    passes: dict[tuple[str, int, int, int], Callable[[], None]] = {}
    for batch, rows, context in grid(max_batch, window):
        passes["verify", batch, rows, context] = _pass(runner, (rows,) * batch, context)
    # The native kernels give every row its own attention: nothing is padded.
    shapes = uneven_shapes(max_batch, window) if target.native is None else []
    for place, (sizes, context) in enumerate(shapes):
        passes["uneven", len(sizes), place, context] = _pass(runner, sizes, context)
    if drafter is not None:
        passes.update(_draft_levels(drafter.fresh(), sorted({batch for batch, _, _ in grid(max_batch, window)})))
    times = _time_rounds(passes, seconds, target.device, progress)
    points = tuple(
        CostPoint(batch, batch * rows, context, median(times["verify", batch, rows, context]))
        for kind, batch, rows, context in passes
        if kind == "verify"
    )
    levels = tuple(
        DraftPoint(batch, batch * rows, median(times["draft", batch, rows, context]) / _LEVELS_IN_A_ROW)
        for kind, batch, rows, context in passes
        if kind == "draft"
    )
    uneven = tuple(
        UnevenPoint(len(sizes), sum(sizes), max(sizes), context, median(times["uneven", len(sizes), place, context]))
        for place, (sizes, context) in enumerate(shapes)
    )
    seconds = perf_counter() - begin
    return Profile(profile_key(target, drafter), points, DraftCost(levels=levels), seconds, uneven=uneven)


def _pass(runner: ModelRunner, sizes: Sequence[int], context: int) -> Callable[[], None]:
    """A pass of the target, argmax included."""
    run, sampler = rehearsal(runner, sizes, context, False), Sampler(runner.vocab_size, runner.device)
    draws = [Draw(row, context, SamplingParams(), 0) for row in range(len(sizes))]

    def verify() -> None:
        logits = run()
        if runner.best is None:  # else the best tokens come with the pass, as in the engine
            sampler.draw(logits, draws)

    return verify


def _draft_levels(drafter: Drafter, batches: Sequence[int]) -> dict[tuple[str, int, int, int], Callable[[], None]]:
    """Levels of a drafter whose levels cost something, behind the context that its window allows."""
    passes = {}
    for batch in batches:
        for rows in _DRAFT_ROWS:
            for context in (_CONTEXT, _CONTEXT // 4, 1):
                level = drafter.rehearsal(batch, rows, context)
                if level is not None:
                    passes["draft", batch, rows, context] = _in_a_row(level)
                    break
    return passes


def _in_a_row(level: Callable[[], None]) -> Callable[[], None]:
    """Several levels, as a step drafts them."""

    def levels() -> None:
        for _ in range(_LEVELS_IN_A_ROW):
            level()

    return levels


def _time_rounds(
    passes: dict[tuple[str, int, int, int], Callable[[], None]],
    seconds: float,
    device: torch.device,
    progress: Progress | None,
) -> dict[tuple[str, int, int, int], list[float]]:
    """Times every pass once a round, in random order, so that a noisy moment does not hit one point alone.

    After the first rounds the shorter half goes on alone: most decisions are made there, and it has the noisier times.
    """
    times: dict[tuple[str, int, int, int], list[float]] = {key: [] for key in passes}
    order, shuffle = list(passes), random.Random(0).shuffle
    for run in passes.values():  # first calls allocate and choose kernels
        run()
    begin = perf_counter()
    half = len(order) // 2 + 1
    rounds, left, done = 0, _MOST_ROUNDS, 0
    expected = _FEWEST_ROUNDS * len(order) + (_MOST_ROUNDS - _FEWEST_ROUNDS) * half  # only ever falls
    while left > 0:
        shuffle(order)
        for key in order:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start = perf_counter()
            passes[key]()
            times[key].append(perf_counter() - start)
            done += 1
            if progress is not None:
                progress(done, expected)
        rounds += 1
        left -= 1
        if rounds == _FEWEST_ROUNDS:
            order = sorted(order, key=lambda key: median(times[key]))[:half]
        if rounds >= _FEWEST_ROUNDS:
            each = sum(median(times[key]) for key in order)
            left = max(0, min(left, int((seconds - (perf_counter() - begin)) / each)))
            expected = done + left * len(order)
    if progress is not None:
        progress(done, done)
    return times
