"""A corpus grows by whole lines and survives what interrupts it."""

from __future__ import annotations

import builtins
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from smartree.errors import InputError
from smartree.train.corpus import Corpus, Text

TEXTS = [Text(f"job:{place}", tuple(range(place + 1)), tuple(range(10, 12 + place))) for place in range(4)]


def filled(path: Path) -> Corpus:
    """A corpus of TEXTS."""
    corpus = Corpus(path)
    for text in TEXTS:
        corpus.append(text)
    return corpus


def test_texts_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "new" / "corpus.jsonl"
    corpus = filled(path)
    for one in (corpus, Corpus(path)):
        assert list(one) == TEXTS
        assert len(one) == 4
        assert one.keys == {text.key for text in TEXTS}
        assert one.answer_tokens == 2 + 3 + 4 + 5
    assert TEXTS[2].tokens == (0, 1, 2, 10, 11, 12, 13)


def test_an_empty_corpus(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus.jsonl")
    assert len(corpus) == corpus.answer_tokens == 0
    (tmp_path / "corpus.jsonl").touch()
    assert list(Corpus(tmp_path / "corpus.jsonl")) == []


def test_what_came_to_nothing_is_known_but_is_no_text(tmp_path: Path) -> None:
    corpus = filled(tmp_path / "corpus.jsonl")
    corpus.give_up("job:9")
    for one in (corpus, Corpus(corpus.path)):
        assert list(one) == TEXTS
        assert len(one) == 4
        assert "job:9" in one.keys
        assert one.given_up == {"job:9"}


@pytest.mark.parametrize("kept", [1, 10, 30])
def test_a_half_line_is_dropped_and_written_again(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    filled(path)
    last = len(path.read_bytes().splitlines(keepends=True)[-1])
    os.truncate(path, path.stat().st_size - last + kept)
    corpus = Corpus(path)
    assert list(corpus) == TEXTS[:3]
    assert TEXTS[3].key not in corpus.keys
    corpus.append(TEXTS[3])
    assert list(Corpus(path)) == TEXTS


def test_a_line_without_its_end_is_a_half_one(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    filled(path)
    os.truncate(path, path.stat().st_size - 1)
    assert list(Corpus(path)) == TEXTS[:3]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"",
        b"[1, 2]",
        b"3",
        b'{"key": "a", "prompt": [1]}',
        b'{"key": "a", "prompt": [1], "answer": ["x"]}',
        b'{"key": "a", "prompt": 1, "answer": [2]}',
        b'{"key": "\xff\xfe", "prompt": [1], "answer": [2]}',
        b"\x00\x00\x00\x00",
    ],
)
def test_a_damaged_line_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    filled(path)
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*content[:2], line + b"\n", *content[2:]]))
    with pytest.raises(InputError, match=r"corpus\.jsonl, line 3,") as error:
        Corpus(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["a folder", "below a file"])
def test_a_place_that_cannot_be_used_is_named(kind: str, tmp_path: Path) -> None:
    if kind == "a folder":
        path = tmp_path
    else:
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "corpus.jsonl"
    with pytest.raises(InputError, match="cannot be used") as error:
        Corpus(path)
    assert str(path) in str(error.value)


class FullFile(io.StringIO):
    """A file on a full disk: part of a line is written before it says so."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def write(self, text: str) -> int:
        with builtins.open(self._path, "ab") as file:
            file.write(text[:7].encode())
        raise OSError(28, "No space left on device")


def test_a_full_disk_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "corpus.jsonl"
    corpus = Corpus(path)
    corpus.append(TEXTS[0])
    monkeypatch.setattr(Path, "open", lambda self, *_args, **_settings: FullFile(self))
    with pytest.raises(InputError, match=r"No space left on device.*the 1 texts in it are kept") as error:
        corpus.append(TEXTS[1])
    assert "\n" not in str(error.value)
    assert TEXTS[1].key not in corpus.keys
    monkeypatch.undo()
    corpus.append(TEXTS[2])  # there is room again
    assert list(corpus) == list(Corpus(path)) == [TEXTS[0], TEXTS[2]]


def test_lines_are_plain_json(tmp_path: Path) -> None:
    filled(tmp_path / "corpus.jsonl")
    rows: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    assert rows[1] == {"key": "job:1", "prompt": [0, 1], "answer": [10, 11, 12]}
