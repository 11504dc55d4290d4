"""The target's hidden states of every text, cached on disk: computed once, read in every epoch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from smartree.errors import InputError
from smartree.models.load import LoadedModel
from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner
from smartree.train.corpus import Text

Progress = Callable[[int, int], None]
_PASS_ROWS = 512  # tokens of a pass: enough to keep the processor busy, few enough to stay in its caches


class FeatureStore:
    """Hidden states by text key, bfloat16, in one file that only grows, with an index beside it.

    Rows are written before their index line, so an interruption costs the text at hand and nothing else.
    """

    def __init__(self, folder: Path, layers: Sequence[int], hidden: int) -> None:
        """Opens or makes a store.

        Args:
            folder: where its files are.
            layers: tapped layers, as `LayerTaps` counts them.
            hidden: size of one state.

        Raises:
            InputError: the store there is of other layers or another size, or it is damaged.
        """
        self.layers, self.width = tuple(layers), len(layers) * hidden
        self.folder = folder
        self._rows, self._index = folder / "features.bin", folder / "features.jsonl"
        self._places: dict[str, tuple[int, int]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open(hidden)
        except OSError as error:
            raise InputError(f"{folder} cannot be used: {error.strerror}.") from error

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def total_bytes(self) -> int:
        """Size on disk."""
        return sum(rows for _, rows in self._places.values()) * self.width * 2

    def append(self, key: str, states: torch.Tensor) -> None:
        """Adds the states [rows, width] of a text.

        Raises:
            InputError: the disk is full; what was there stays whole.
        """
        start = self._end()
        numbers = states.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
        size = self._index.stat().st_size
        try:
            with self._rows.open("r+b") as file:
                file.seek(start * self.width * 2)
                file.write(numbers.tobytes())
            with self._index.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, start, len(numbers)]) + "\n")
        except OSError as error:
            with suppress(OSError):
                os.truncate(self._index, size)
            raise InputError(
                f"{self.folder} cannot be written ({error.strerror}); make room and start again: the {len(self)} texts "
                "there are kept."
            ) from error
        self._places[key] = (start, len(numbers))

    def read(self, key: str) -> torch.Tensor:
        """[rows, width] bfloat16 states of a text."""
        start, rows = self._places[key]
        count = rows * self.width
        numbers = np.fromfile(self._rows, np.int16, count, offset=start * self.width * 2)
        return torch.from_numpy(numbers).view(torch.bfloat16).view(rows, self.width)

    def _end(self) -> int:
        return max((start + rows for start, rows in self._places.values()), default=0)

    def _open(self, hidden: int) -> None:
        header = [list(self.layers), hidden, "bfloat16"]
        self._rows.touch()
        self._index.touch()
        content = self._index.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # the line being written when it was interrupted
            os.truncate(self._index, whole)
        if whole == 0:
            content = json.dumps(header).encode() + b"\n"
            whole = len(content)
            self._index.write_bytes(content)
        damaged = f"{self._index} is damaged; remove the folder to compute its features again."
        try:
            stored, *entries = [json.loads(line) for line in content[:whole].splitlines()]
            self._places = {str(key): (int(start), int(rows)) for key, start, rows in entries}
            layers, size, _ = stored
        except (ValueError, TypeError) as error:
            raise InputError(damaged) from error
        if stored != header:
            raise InputError(
                f"{self.folder} holds features of layers {layers} with {size} numbers each, not of "
                f"{list(self.layers)} with {hidden}; choose another folder."
            )
        if self._rows.stat().st_size < self._end() * self.width * 2:
            raise InputError(damaged.replace(str(self._index), str(self._rows)))


def compute_features(
    target: LoadedModel, texts: Iterable[Text], store: FeatureStore, limit_bytes: int, progress: Progress | None = None
) -> None:
    """Computes what the store lacks, up to a size.

    Args:
        target: the model.
        texts: whose states are wanted.
        store: where they go.
        limit_bytes: largest size of the store.
        progress: called with (texts done, texts in all).
    """
    missing = [text for text in texts if text.key not in store]
    runner = feature_runner(target, store.layers, max((len(text.tokens) for text in missing), default=1))
    for done, text in enumerate(missing, 1):
        if store.total_bytes >= limit_bytes:
            return
        store.append(text.key, features_of(runner, text.tokens))
        if progress is not None:
            progress(done, len(missing))


def feature_runner(target: LoadedModel, layers: Sequence[int], longest: int) -> ModelRunner:
    """Runs texts of up to `longest` tokens and taps `layers`."""
    return ModelRunner(target, slots=1, window=longest, tapped=layers)


def features_of(runner: ModelRunner, tokens: Sequence[int]) -> torch.Tensor:
    """[len(tokens) - 1, width] states of all tokens but the last, which nothing follows."""
    assert runner.taps is not None
    parts = []
    inputs = np.array(tokens[:-1], np.int64)
    for start in range(0, len(inputs), _PASS_ROWS):
        chunk = inputs[start : start + _PASS_ROWS]
        runner.forward([causal_group(0, start, len(chunk))], chunk, keep=np.zeros(1, np.int64))
        parts.append(runner.taps.rows(torch.arange(len(chunk), device=runner.device)).cpu())
    return torch.cat(parts)
