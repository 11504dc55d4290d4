"""What every rank but 0 does: follow rank 0's orders; and loading, which begins it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from smartree.errors import InputError
from smartree.models.crew import Crew, LoadOrder, PassOrder, RunnerOrder, crew, processes
from smartree.models.load import LoadedModel, load_model
from smartree.models.runner import ModelRunner


def load_target(name: str, dtype: str, device: str, tensor_parallel: bool | None = None) -> LoadedModel:
    """Loads a model, shared among the processes that torchrun started.

    On every rank but 0 it never returns: the process follows rank 0 and then ends.

    Args:
        name: as `load_model`.
        dtype: as `load_model`.
        device: as `load_model`.
        tensor_parallel: None shares the model if there are several processes; True insists; False loads all of it.

    Raises:
        InputError: the model cannot be loaded or shared, or there is nobody to share it with.
        SystemExit: on every rank but 0, once rank 0 is done.
    """
    if tensor_parallel and processes() == 1:
        raise InputError(
            "Tensor parallelism needs several processes; start the program with `torchrun --nproc-per-node 2 ...`."
        )
    if tensor_parallel is False or processes() == 1:
        return load_model(name, dtype, device)
    together = crew()
    if together.rank > 0:
        follow(together)
        raise SystemExit(0)
    order = LoadOrder(together.number(), name, dtype, device)
    together.send(order)
    loaded, error = _load_shard(together, order)
    if loaded is None:
        raise InputError(error or f"Model {name!r} cannot be loaded.")
    return replace(loaded, crew=together, number=order.model)


def run_together(program: Callable[[], int]) -> int:
    """Runs a program on rank 0 while the other processes, if there are any, follow it; returns the exit code.

    The others need not know what the program does, nor that it ends without ever loading a model.
    """
    if processes() == 1:
        return program()
    if int(os.environ["RANK"]) > 0:
        with suppress(KeyboardInterrupt):  # rank 0 says that it was interrupted
            follow(crew())
        return 0
    try:
        return program()
    finally:
        crew().stop()


def follow(together: Crew) -> None:
    """Follows rank 0 until it says "stop"."""
    models: dict[int, LoadedModel] = {}
    runners: dict[int, ModelRunner] = {}
    while True:
        order = together.receive()
        if order == "stop":
            together.leave()
            return
        if isinstance(order, LoadOrder):
            loaded, _ = _load_shard(together, order)
            if loaded is not None:
                models[order.model] = loaded
        elif isinstance(order, RunnerOrder):
            runners[order.runner] = ModelRunner(models[order.model], order.slots, order.window)
        else:
            for dropped in order.dropped:
                runners.pop(dropped, None)
            _run(runners[order.runner], order)


def _load_shard(together: Crew, order: LoadOrder) -> tuple[LoadedModel | None, str | None]:
    """This rank's part of a model; None, and what is wrong, if it fails on any rank."""
    loaded, error = None, None
    try:
        loaded = load_model(order.name, order.dtype, order.device, together.size)
    except InputError as refusal:
        error = str(refusal)
    error = together.agree(error)
    return (None, error) if error else (loaded, None)


def _run(runner: ModelRunner, order: PassOrder) -> None:
    """The same changes and the same pass as rank 0's; the logits are rank 0's business."""
    runner.change_cache(order.changes)
    runner.forward(order.groups, order.tokens, order.keep)
