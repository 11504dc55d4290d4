"""What is done so far of a bench, in a file beside its JSON: an interrupted bench goes on where it stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from smartree.bench.cell import Cell
from smartree.bench.config import Group
from smartree.bench.measures import Measures
from smartree.errors import InputError

_NOT_THERE = "not there"


class Partial:
    """The finished parts of a bench; with a path they are on disk as soon as they are added.

    A file of JSON lines: the settings, then one line for each tree that the oracle chose and for each cell. Lines are
    only ever appended, so that an interruption can spoil no more than the last one, which is then dropped.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], *, fresh: bool = False) -> None:
        """Args:
            path: of the file; None keeps nothing on disk.
            settings: what the results depend on; those of a file must be the same.
            fresh: forget what is there.

        Raises:
            InputError: the file is of another bench, cannot be read, or cannot be written.
        """
        self.path = path
        self.cells: list[Cell] = []
        self.trees: dict[Group, str] = {}
        if path is None:
            return
        if fresh:
            path.unlink(missing_ok=True)
        settings = json.loads(json.dumps(settings))
        if path.is_file() and self._read(path, settings):
            return
        try:
            path.write_text(json.dumps({"settings": settings}) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}.") from error

    def find(self, group: Group, repeat: int) -> Cell | None:
        """A finished cell."""
        return next((cell for cell in self.cells if (cell.group, cell.repeat) == (group, repeat)), None)

    def add_cell(self, cell: Cell) -> None:
        """Keeps a cell."""
        self.cells.append(cell)
        measures = {name: measures.to_json() for name, measures in cell.measures.items()}
        self._append(_group_json(cell.group) | {"repeat": cell.repeat, "measures": measures})

    def add_tree(self, group: Group, tree: str) -> None:
        """Keeps the oracle's choice."""
        self.trees[group] = tree
        self._append(_group_json(group) | {"tree": tree})

    def remove(self) -> None:
        """Removes the file: the bench is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _append(self, line: dict[str, Any]) -> None:
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path, settings: dict[str, Any]) -> bool:
        """Reads a file; False if there is nothing in it.

        Raises:
            InputError: it is of another bench or damaged.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
        whole = content[: content.rfind(b"\n") + 1]  # what follows was being written when the bench was ended
        if not whole:
            return False
        first, *rest = whole.decode("utf-8", errors="replace").splitlines()
        _require_same(path, _parsed(path, first).get("settings"), settings)
        for line in rest:
            self._take(path, _parsed(path, line))
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        return True

    def _take(self, path: Path, line: dict[str, Any]) -> None:
        try:
            group = Group(line["suite"], line["temperature"], line["batch"])
            if "tree" in line:
                self.trees[group] = line["tree"]
                return
            measures = {name: Measures.from_json(data) for name, data in line["measures"].items()}
            self.cells.append(Cell(group, line["repeat"], measures))
        except (KeyError, TypeError, AttributeError, InputError) as error:
            raise _damaged(path) from error


def partial_path(json_file: str | None) -> Path | None:
    """The file beside a --json file; None if the data goes nowhere, or where nothing can be beside it."""
    if json_file is None or json_file == "-":
        return None
    path = Path(json_file)
    return None if path.exists() and not path.is_file() else path.with_name(f"{path.name}.partial")


def _group_json(group: Group) -> dict[str, Any]:
    return {"suite": group.suite, "temperature": group.temperature, "batch": group.batch}


def _parsed(path: Path, line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise _damaged(path) from error
    if not isinstance(data, dict):
        raise _damaged(path)
    return data


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is not what this version of bench writes; --fresh starts anew.")


def _require_same(path: Path, there: Any, here: dict[str, Any]) -> None:
    """Raises:
    InputError: the settings differ; the sentence says in what.
    """
    if not isinstance(there, dict):
        raise _damaged(path)
    names = [name for name in {**here, **there} if there.get(name, _NOT_THERE) != here.get(name, _NOT_THERE)]
    if names:
        parts = [
            f"{n} ({_short(there.get(n, _NOT_THERE))} there, {_short(here.get(n, _NOT_THERE))} here)" for n in names
        ]
        raise InputError(
            f"{path} holds an unfinished bench with other settings: {', '.join(parts)}. Give the same settings to go "
            "on with it, --fresh to start anew, or another --json."
        )


def _short(value: Any) -> str:
    if isinstance(value, list):
        value = ",".join(str(one) for one in value)
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
