"""Suites of prompts: files of a data folder, the built-in ones, and data sets of the hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartree.bench.config import BUILT_IN
from smartree.cli.prompts import Prompt, parse_row, read_prompts
from smartree.errors import InputError

if TYPE_CHECKING:
    from smartree.engine.llm import LLM

# Files whose name is not the suite's.
_FILES = {"gsm8k": "gsm8k_test"}
_SPLITS = ("test", "validation", "train")  # the first one that a data set of the hub has is taken
_MOST_ROWS = 2000  # of a data set of the hub


@dataclass(frozen=True, slots=True)
class Suite:
    """The prompts of a suite that a bench uses.

    Attributes:
        name: of the suite.
        measured: prompts whose decoding is measured.
        search: other ones, on which the oracle looks for its tree; empty without an oracle.
        measured_rows: which ones of the suite those are, the first one being 1.
        search_rows: the same of the search prompts.
    """

    name: str
    measured: tuple[Prompt, ...]
    search: tuple[Prompt, ...]
    measured_rows: tuple[int, ...]
    search_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EncodedSuite:
    """A suite as the tokens that the model is given."""

    measured: tuple[list[int], ...]
    search: tuple[list[int], ...]


def encode(llm: LLM, suite: Suite, raw: bool) -> EncodedSuite:
    """The tokens of a suite's prompts.

    Raises:
        InputError: a prompt does not fit the model; the sentence names its file and line.
    """
    measured, search = (
        tuple(prompt.encode(llm, raw) for prompt in prompts) for prompts in (suite.measured, suite.search)
    )
    return EncodedSuite(measured, search)


def load_suite(name: str, folder: Path | None, count: int, oracle: bool) -> Suite:
    """Reads a suite and chooses its prompts.

    Args:
        name: "built-in", a file of the folder without ".jsonl" ("gsm8k" is gsm8k_test.jsonl), or "org/dataset", with
            ":config" where the hub has several.
        folder: of the files.
        count: measured prompts, spread evenly over the suite, so that every part of it is in.
        oracle: choose others for the oracle's search too, a third as many.

    Raises:
        InputError: the suite is not there, cannot be read, or has too few prompts.
    """
    prompts = _read(name, folder)
    wanted = min(count, len(prompts))
    searched = max(1, -(-wanted // 3)) if oracle else 0
    wanted = min(wanted, len(prompts) - searched)
    if wanted < 1:
        raise InputError(f"Suite {name} has one prompt; oracle needs two, to search on one and be measured on another.")
    measured = spread(range(len(prompts)), wanted)
    taken = set(measured)
    search = spread([place for place in range(len(prompts)) if place not in taken], searched)
    return Suite(
        name,
        tuple(prompts[place] for place in measured),
        tuple(prompts[place] for place in search),
        tuple(place + 1 for place in measured),
        tuple(place + 1 for place in search),
    )


def spread(places: Sequence[int], count: int) -> list[int]:
    """`count` of the places at equal distances: the middle one of each of `count` parts."""
    return [places[(2 * part + 1) * len(places) // (2 * count)] for part in range(count)]


def suites_of(folder: Path) -> list[str]:
    """Names of the suites that a folder has."""
    names = {stem: name for name, stem in _FILES.items()}
    return sorted(names.get(file.stem, file.stem) for file in folder.glob("*.jsonl"))


def _read(name: str, folder: Path | None) -> list[Prompt]:
    if name == BUILT_IN:
        lines = files("smartree.cli").joinpath("demo_prompts.jsonl").read_text(encoding="utf-8").splitlines()
        return [parse_row(line, f"built-in prompt {number}") for number, line in enumerate(lines, 1)]
    if "/" in name:
        return _from_hub(name)
    if folder is None:
        raise InputError(f"Suite {name} needs --data, the folder of its file; without one there is only {BUILT_IN}.")
    if not folder.is_dir():
        raise InputError(f"The data folder {folder} does not exist.")
    file = folder / f"{_FILES.get(name, name)}.jsonl"
    if not file.is_file():
        found = suites_of(folder)
        has = f"the folder has {', '.join(found)}" if found else "the folder has no .jsonl file"
        raise InputError(f"Suite {name} is not there: looked for {file}; {has}.")
    return read_prompts(str(file))


def _from_hub(name: str) -> list[Prompt]:
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise InputError(
            f'Suite {name} is a data set of the hub, which needs datasets; `pip install "smartree[bench]"` brings it.'
        ) from error
    path, _, config = name.partition(":")
    try:
        splits: Any = load_dataset(path, config or None)
    except (OSError, ValueError, RuntimeError) as error:  # no network, no such data set, a configuration to choose
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"Suite {name} cannot be loaded from the hub: {reason}") from error
    split = next((split for split in _SPLITS if split in splits), None) or next(iter(splits))
    rows = splits[split]
    kept = range(len(rows)) if len(rows) <= _MOST_ROWS else spread(range(len(rows)), _MOST_ROWS)
    # Through JSON, so that a row of the hub and a line of a file are read by the same rules.
    return [parse_row(json.dumps(rows[place], default=str), f"{name}, {split} row {place + 1}") for place in kept]
