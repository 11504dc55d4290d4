"""JSON files: valid whatever is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smartree.cli.json_file import JsonFile
from smartree.errors import InputError
from tests.cli.conftest import read_json


def test_numbers_and_texts_that_json_does_not_have(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    JsonFile(str(file)).write({"header": {"x": float("nan")}, "rows": [{"text": "\ud800 é", "y": (1.0, float("inf"))}]})
    assert read_json(file) == {"header": {"x": None}, "rows": [{"text": "\ud800 é", "y": [1.0, None]}]}


def test_one_row_a_line(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    JsonFile(str(file)).write({"header": {}, "rows": [{"a": [1, 2]}, {"a": [3]}]})
    assert file.read_text().splitlines()[1:] == ['"rows": [', '{"a": [1, 2]},', '{"a": [3]}', "]}"]
    JsonFile(str(file)).write({"header": {}, "rows": []})
    assert read_json(file) == {"header": {}, "rows": []}


def test_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("real.json")
    JsonFile(str(tmp_path / "link.json")).write([1])
    assert (tmp_path / "link.json").is_symlink()
    assert read_json(tmp_path / "real.json") == [1]


def test_interruption_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.json"
    file.write_text("old")

    def interrupt(*names: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        JsonFile(str(file)).write([1])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.json", "old")]


def test_nothing_asked_nothing_written(capsys: pytest.CaptureFixture[str]) -> None:
    JsonFile(None).write([1])
    assert capsys.readouterr().out == ""
    JsonFile("-").write([1])
    assert json.loads(capsys.readouterr().out) == [1]


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        JsonFile(str(tmp_path / "no" / "out.json"))
    with pytest.raises(InputError, match="is a folder"):
        JsonFile(str(tmp_path))
