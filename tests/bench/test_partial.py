"""The file of an interrupted bench."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from smartree.bench.cell import Cell
from smartree.bench.config import Group
from smartree.bench.partial import Partial, partial_path
from smartree.errors import InputError
from tests.bench.made import MEASURES

GROUP = Group("mt_bench", 0.0, 4)
CELL = Cell(GROUP, 1, {"none": MEASURES, "smart": replace(MEASURES, differing=(1, 3))})


def filled(file: Path) -> Partial:
    partial = Partial(file, {"seed": 1})
    partial.add_tree(GROUP, "5/4/16")
    partial.add_cell(CELL)
    return partial


def test_everything_comes_back(tmp_path: Path) -> None:
    filled(tmp_path / "p")
    again = Partial(tmp_path / "p", {"seed": 1})
    assert again.cells == [CELL]
    assert again.trees == {GROUP: "5/4/16"}
    assert again.find(GROUP, 1) == CELL
    assert again.find(GROUP, 0) is None


def test_what_cannot_be_compared_comes_back_too(tmp_path: Path) -> None:
    partial = Partial(tmp_path / "p", {})
    partial.add_cell(Cell(GROUP, 0, {"none": replace(MEASURES, prediction_error=float("nan"))}))
    assert math.isnan(Partial(tmp_path / "p", {}).cells[0].measures["none"].prediction_error)


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_line_that_was_being_written_is_dropped_and_written_again(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "p"
    filled(file)
    file.write_bytes(file.read_bytes()[:-cut])
    again = Partial(file, {"seed": 1})
    assert again.cells == []
    assert again.trees == {GROUP: "5/4/16"}
    again.add_cell(CELL)
    assert Partial(file, {"seed": 1}).cells == [CELL]


def test_an_interruption_of_the_very_first_line(tmp_path: Path) -> None:
    (tmp_path / "p").write_text('{"settings"', encoding="utf-8")
    Partial(tmp_path / "p", {"seed": 1}).add_tree(GROUP, "none")
    assert Partial(tmp_path / "p", {"seed": 1}).trees == {GROUP: "none"}


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"suite": 1, "temperature": 0.0, "batch": 1, "repeat": 0}'])
def test_damaged_files(tmp_path: Path, line: str) -> None:
    file = tmp_path / "p"
    filled(file)
    with file.open("a", encoding="utf-8") as end:
        end.write(line + "\n")
    with pytest.raises(InputError, match="--fresh starts anew"):
        Partial(file, {"seed": 1})
    assert Partial(file, {"seed": 1}, fresh=True).cells == []


def test_measures_of_another_version(tmp_path: Path) -> None:
    file = tmp_path / "p"
    filled(file)
    head, tree, cell = file.read_text(encoding="utf-8").splitlines()
    data = json.loads(cell)
    data["measures"]["none"]["news"] = 1
    file.write_text("\n".join([head, tree, json.dumps(data), ""]), encoding="utf-8")
    with pytest.raises(InputError, match="--fresh starts anew"):
        Partial(file, {"seed": 1})


def test_other_settings_are_named(tmp_path: Path) -> None:
    filled(tmp_path / "p")
    with pytest.raises(InputError, match=r"seed \(1 there, 2 here\), model \(not there there, x here\)|seed"):
        Partial(tmp_path / "p", {"seed": 2, "model": "x"})


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    partial = Partial(None, {})
    partial.add_cell(CELL)
    partial.remove()
    assert partial.cells == [CELL]
    assert list(tmp_path.iterdir()) == []


def test_unwritable(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Partial(tmp_path / "no" / "p", {})


def test_place_of_the_file(tmp_path: Path) -> None:
    assert partial_path(None) is None
    assert partial_path("-") is None
    assert partial_path("/dev/null") is None
    assert partial_path(str(tmp_path / "a.json")) == tmp_path / "a.json.partial"
