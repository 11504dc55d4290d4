"""What one run of one engine gave, and the file in which unfinished comparisons are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smartree.errors import InputError


@dataclass(frozen=True, slots=True)
class Record:
    """One run.

    Attributes:
        entry: engine/mode.
        batch: prompts decoded together.
        repeat: which run of this kind; every entry's n-th run lies near the others' n-th in time.
        tokens: decoded.
        seconds: of the run, prompts included.
        step_ms: of a typical step with a full batch and no prompt in it; None where the engine does not tell.
        agreement: share of the tokens before the first one that differs from smartree's plain ones, mean over prompts;
            None if smartree has not decoded them.
    """

    entry: str
    batch: int
    repeat: int
    tokens: int
    seconds: float
    step_ms: float | None
    agreement: float | None

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together."""
        return self.tokens / self.seconds


class RecordFile:
    """Records, on disk as soon as they are added; the first line says with which settings they were made.

    Several comparisons may add to it one after another, for other engines or batches.

    Attributes:
        records: of all runs.
        about: what each entry says of itself.
        references: smartree's plain tokens by batch size.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], fresh: bool) -> None:
        """Args:
            path: of the file; None keeps nothing on disk.
            settings: what records depend on.
            fresh: forget what is there.

        Raises:
            InputError: the file was made with other settings, or is not one of these files.
        """
        self.records: list[Record] = []
        self.about: dict[str, dict[str, Any]] = {}
        self.references: dict[int, list[list[int]]] = {}
        self._path = path
        if path is None:
            return
        if fresh or not path.is_file():
            path.write_text(json.dumps({"settings": settings}) + "\n", encoding="utf-8")
            return
        self._read(path, json.loads(json.dumps(settings)))

    def has(self, entry: str, batch: int, repeat: int) -> bool:
        """Whether this run is there."""
        return any((one.entry, one.batch, one.repeat) == (entry, batch, repeat) for one in self.records)

    def add(self, record: Record) -> None:
        """Keeps a record."""
        self.records.append(record)
        self._append({"run": asdict(record)})

    def add_about(self, entry: str, about: dict[str, Any]) -> None:
        """Keeps what an entry says of itself."""
        self.about[entry] = about
        self._append({"about": about, "entry": entry})

    def add_reference(self, batch: int, tokens: list[list[int]]) -> None:
        """Keeps the tokens that others are held against."""
        self.references[batch] = tokens
        self._append({"reference": tokens, "batch": batch})

    def _append(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def _read(self, path: Path, settings: dict[str, Any]) -> None:
        content = path.read_text(encoding="utf-8")
        whole = content[: content.rfind("\n") + 1]  # what follows was being written when a comparison was ended
        try:
            first, *rest = (json.loads(line) for line in whole.splitlines())
            there = first["settings"]
            for line in rest:
                self._take(line)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not what this benchmark writes; --fresh starts anew.") from error
        names = [name for name in {**settings, **there} if settings.get(name) != there.get(name)]
        if names:
            raise InputError(
                f"{path} holds runs with other settings ({', '.join(names)}): give the same ones to go on with it, "
                "--fresh to start anew, or another --json."
            )
        if len(whole) < len(content):
            os.truncate(path, len(whole.encode()))

    def _take(self, line: dict[str, Any]) -> None:
        if "about" in line:
            self.about[line["entry"]] = line["about"]
        elif "reference" in line:
            self.references[line["batch"]] = line["reference"]
        else:
            self.records.append(Record(**line["run"]))


def agreement(tokens: list[list[int]], reference: list[list[int]]) -> float:
    """Share of the tokens before the first one that differs, mean over prompts."""
    shares = []
    for mine, theirs in zip(tokens, reference, strict=True):
        same = next(
            (place for place, pair in enumerate(zip(mine, theirs, strict=True)) if len(set(pair)) > 1), len(mine)
        )
        shares.append(same / len(mine))
    return sum(shares) / len(shares)
