"""Which engines take part, and where each of them lives."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from smartree.errors import InputError


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of the comparison.

    Attributes:
        name: what options and results call it.
        plain: how it decodes plainly.
        speculation: what it has of its own to speculate with.
        place: its Python, or its program, in the folder that `setup.sh` fills; None runs in this Python.
        program: whether `place` is a program, driven from this Python.
        speculates_up_to: largest batch that its speculation is for; None has no limit.
        worker: name of its worker where that is not its own.
        compiled: compiles the model before it begins.
        by_default: takes part without being named.
    """

    name: str
    plain: str
    speculation: str
    place: str | None = None
    program: bool = False
    speculates_up_to: int | None = None
    worker: str | None = None
    compiled: bool = False
    by_default: bool = True

    @property
    def module(self) -> str:
        """Of its worker."""
        return f"benchmarks.peers.{self.worker or self.name}_worker"

    def label(self, mode: str) -> str:
        """What tables and pictures call one of its modes."""
        return f"{self.name} {self.speculation if mode == SPECULATION else self.plain}".strip()


PLAIN, SPECULATION = "plain", "speculation"
MODES = (PLAIN, SPECULATION)
ENGINES = (
    Engine("smartree", "none", "smart"),
    Engine("transformers", "generate", "prompt lookup 6", speculates_up_to=1),
    Engine("vllm", "eager", "n-gram 4", place="vllm/bin/python"),
    Engine(
        "vllm_compiled",
        "",
        "n-gram 4",
        place="vllm/bin/python",
        worker="vllm",
        compiled=True,
        by_default=False,  # starts for minutes
    ),
    Engine("openvino", "paged", "prompt lookup 5", place="openvino/bin/python"),
    Engine("llama_cpp", "server", "n-gram 5", place="llama.cpp/llama-server", program=True),
)
GGUF_FOLDER = "models"


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine in one of its modes, and the programs that run it.

    Attributes:
        engine: the engine.
        mode: "plain" or "speculation".
        python: runs its worker.
        program: of an engine that is no Python package, else None.
    """

    engine: Engine
    mode: str
    python: str
    program: str | None

    @property
    def name(self) -> str:
        """Of the entry, in files."""
        return f"{self.engine.name}/{self.mode}"

    def takes(self, batch: int) -> bool:
        """Whether it is for batches of this size."""
        most = self.engine.speculates_up_to
        return self.mode == PLAIN or most is None or batch <= most


def parse_places(texts: list[str]) -> dict[str, str]:
    """`NAME=PATH` options.

    Raises:
        InputError: one of them is none, or names no engine of the comparison.
    """
    names = [engine.name for engine in ENGINES]
    places = {}
    for text in texts:
        name, sign, path = text.partition("=")
        if not sign or not path or name not in names:
            raise InputError(f"--python {text} is not NAME=PATH with NAME one of {', '.join(names)}.")
        places[name] = path
    return places


def line_up(names: list[str], folder: Path | None, places: Mapping[str, str]) -> tuple[list[Entry], list[str]]:
    """The entries that can run, and a line for each engine that cannot.

    Args:
        names: of the engines wanted.
        folder: what `setup.sh` filled; None if there is none.
        places: paths given by hand, which win.

    Raises:
        InputError: an engine is unknown.
    """
    known = {engine.name: engine for engine in ENGINES}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise InputError(f"Engine {unknown!r} is not one of {', '.join(known)}.")
    entries, skipped = [], []
    for name in names:
        engine = known[name]
        path = _path(engine, folder, places.get(name))
        if path is None or not path.is_file():
            where = path or f"no folder to look for {engine.place} in"
            skipped.append(
                f"{name} is left out ({where}): run benchmarks/peers/setup.sh, or give --python {name}=PATH."
            )
            continue
        python, program = (sys.executable, str(path)) if engine.program else (str(path), None)
        entries += [Entry(engine, mode, python, program) for mode in MODES]
    return entries, skipped


def _path(engine: Engine, folder: Path | None, given: str | None) -> Path | None:
    if given is not None:
        return Path(given).absolute()
    if engine.place is None:
        return Path(sys.executable)
    return None if folder is None else (folder / engine.place).absolute()
