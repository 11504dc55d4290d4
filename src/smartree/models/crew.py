"""The processes that share one model: rank 0 decides, the others run the same passes on their own shards."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from smartree.models.packed_pass import RowGroup

_FOREVER = timedelta(days=365)  # a chat or a server may be silent for long; the others just wait for its next order
_ENDING = timedelta(seconds=10)
_JOINING = timedelta(hours=2)  # loading large shards takes some processes longer than others


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Load a model: its number, and what `load_model` takes."""

    model: int
    name: str
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class RunnerOrder:
    """Make a runner of a loaded model with a cache of its own."""

    runner: int
    model: int
    slots: int
    window: int


@dataclass(frozen=True, slots=True)
class RowMove:
    """Rows of a slot become the rows from `start` on."""

    slot: int
    rows: tuple[int, ...]
    start: int

    def each(self) -> list[tuple[int, int, int]]:
        """The slot, a row of it, and where it goes, for every row that does not stay."""
        targets = range(self.start, self.start + len(self.rows))
        return [(self.slot, row, target) for row, target in zip(self.rows, targets, strict=True) if row != target]


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """The first `rows` rows of a slot go to another."""

    source: int
    target: int
    rows: int


@dataclass(frozen=True, slots=True)
class PassOrder:
    """Drop the runners in `dropped`, change the cache of a runner, then run one pass.

    Attributes:
        runner: its number.
        dropped: runners that nobody uses any more.
        changes: what happened to the cache since the last pass, in order.
        groups: who the rows belong to.
        tokens: [N] token ids.
        keep: [K] rows whose logits are wanted; None for all.
    """

    runner: int
    dropped: tuple[int, ...]
    changes: tuple[RowMove | SlotCopy, ...]
    groups: list[RowGroup]
    tokens: NDArray[np.int64]
    keep: NDArray[np.int64] | None


Order = LoadOrder | RunnerOrder | PassOrder | Literal["stop"]


class Crew:
    """One process's place among those that torchrun started.

    Rank 0 runs the program. The others make no decision, so that clocks, random seeds and the order of arrivals, which
    differ from process to process, can never let them part: they do what rank 0 orders until it says "stop". One order
    is sent per pass; it carries what happened to the cache since the last one.
    """

    def __init__(self) -> None:
        """Joins the others; waits for all of them."""
        if not dist.is_initialized():
            on_cuda = torch.cuda.is_available()
            if on_cuda:
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl" if on_cuda else "gloo", timeout=_JOINING)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Orders travel beside the model's own messages, on the CPU, whatever the model runs on.
        self._orders = dist.new_group(backend="gloo", timeout=_FOREVER)
        self._numbers = 0
        self._dropped: list[int] = []
        self._stopped = False
        if self.rank == 0:
            atexit.register(self.stop)

    def number(self) -> int:
        """A number that names one more model or runner."""
        self._numbers += 1
        return self._numbers

    def drop(self, runner: int) -> None:
        """Notes that a runner is used no more; the next pass tells the others."""
        self._dropped.append(runner)

    def dropped(self) -> tuple[int, ...]:
        """The runners dropped since the last call."""
        taken = tuple(self._dropped)
        del self._dropped[: len(taken)]
        return taken

    def send(self, order: Order) -> None:
        """Orders the others to do something (rank 0 only)."""
        dist.broadcast_object_list([order], src=0, group=self._orders, device=torch.device("cpu"))

    def receive(self) -> Order:
        """Waits for the next order (every rank but 0)."""
        box: list[Any] = [None]
        dist.broadcast_object_list(box, src=0, group=self._orders, device=torch.device("cpu"))
        order: Order = box[0]
        return order

    def agree(self, error: str | None) -> str | None:
        """What went wrong on the first rank where something did; None if all are well."""
        errors: list[str | None] = [None] * self.size
        dist.all_gather_object(errors, error, group=self._orders)
        return next((one for one in errors if one is not None), None)

    def stop(self) -> None:
        """Lets the others go (rank 0 only); harmless when repeated."""
        if not self._stopped:
            self._stopped = True
            self.send("stop")
            self.leave()

    def leave(self) -> None:
        """Ends the connections, all ranks at the same time: one that ends first would look like a crash."""
        # After a fault of rank 0 in the middle of a pass the others wait there, until torchrun ends them.
        with suppress(RuntimeError):
            dist.monitored_barrier(self._orders, timeout=_ENDING)
            dist.destroy_process_group()


class Mirror:
    """Rank 0's end of a runner that every rank has: what its cache goes through is told with the next pass."""

    def __init__(self, crew: Crew, model: int, slots: int, window: int) -> None:
        """Args:
        crew: the processes.
        model: number of the model that they loaded.
        slots: as the runner's.
        window: as the runner's.
        """
        self._crew, self._number = crew, crew.number()
        self._changes: list[RowMove | SlotCopy] = []
        crew.send(RunnerOrder(self._number, model, slots, window))
        weakref.finalize(self, crew.drop, self._number)

    def changed(self, changes: Sequence[RowMove | SlotCopy]) -> None:
        """Notes changes of the cache."""
        self._changes.extend(changes)

    def passing(self, groups: Sequence[RowGroup], tokens: NDArray[np.int64], keep: NDArray[np.int64] | None) -> None:
        """Orders the pass that this process is about to run."""
        bare = [group.bare() for group in groups]
        self._crew.send(PassOrder(self._number, self._crew.dropped(), tuple(self._changes), bare, tokens, keep))
        self._changes.clear()


def processes() -> int:
    """How many processes torchrun started; 1 without it.

    Some job managers set one of the variables for purposes of their own; only torchrun sets all of them.
    """
    started = all(os.environ.get(name, "").isdigit() for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    return max(int(os.environ["WORLD_SIZE"]), 1) if started else 1


@cache  # torch.distributed has one set of processes per program, and so has this
def crew() -> Crew:
    """This process's place; the first call waits for all processes."""
    return Crew()
