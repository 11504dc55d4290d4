"""The texts that a head learns from: prompts with the target's own answers, one JSON line each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from smartree.errors import InputError


@dataclass(frozen=True, slots=True)
class Text:
    """One conversation as token ids.

    Attributes:
        key: which job wrote it; unique in a corpus.
        prompt: tokens the target was given.
        answer: tokens it answered.
    """

    key: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt + self.answer


class Corpus:
    """A file of texts that grows by whole lines: an interruption loses the line being written and nothing else.

    Attributes:
        path: the file.
        keys: jobs that need not be done again.
        given_up: those of them that came to nothing: a line without an answer.
        answer_tokens: of all texts.
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the file.

        Raises:
            InputError: a line is no text, or the file cannot be read.
        """
        self.path = path
        self.keys: set[str] = set()
        self.given_up: set[str] = set()
        self.answer_tokens = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._drop_half_line()
                for text in self._lines():
                    self._count(text)
        except OSError as error:
            raise InputError(f"{path} cannot be used: {error.strerror}.") from error

    def __len__(self) -> int:
        return len(self.keys) - len(self.given_up)

    def __iter__(self) -> Iterator[Text]:
        return (text for text in self._lines() if text.answer)

    def _lines(self) -> Iterator[Text]:
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield self._parse(line, number)

    def give_up(self, key: str) -> None:
        """Notes that a job came to nothing, so that nobody tries it again.

        Raises:
            InputError: as `append`.
        """
        self.append(Text(key, (), ()))

    def append(self, text: Text) -> None:
        """Adds a text.

        Raises:
            InputError: it cannot be written, above all because the disk is full; what was there stays whole.
        """
        row = {"key": text.key, "prompt": list(text.prompt), "answer": list(text.answer)}
        line = json.dumps(row, separators=(",", ":")) + "\n"
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, size)
            raise InputError(
                f"{self.path} cannot be written ({error.strerror}); make room and start again: the {len(self)} texts "
                "in it are kept."
            ) from error
        self._count(text)

    def _count(self, text: Text) -> None:
        self.keys.add(text.key)
        if not text.answer:
            self.given_up.add(text.key)
        self.answer_tokens += len(text.answer)

    def _drop_half_line(self) -> None:
        with self.path.open("rb+") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole != len(content):
                file.truncate(whole)
                os.fsync(file.fileno())

    def _parse(self, line: bytes, number: int) -> Text:
        try:
            row = json.loads(line)
            return Text(str(row["key"]), tuple(map(int, row["prompt"])), tuple(map(int, row["answer"])))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{self.path}, line {number}, holds no text of a corpus (key, prompt, answer); remove the line or the "
                "file."
            ) from error
