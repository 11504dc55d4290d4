"""Where prompts come from and which are taken."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smartree.bench.suites import load_suite, spread, suites_of
from smartree.errors import InputError


def write(folder: Path, name: str, count: int) -> None:
    rows = [json.dumps({"question": f"{name} {number}"}) for number in range(1, count + 1)]
    (folder / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")


def test_prompts_are_spread_so_that_every_part_of_a_file_is_in() -> None:
    families = [family for family in range(6) for _ in range(80)]  # as in Spec-Bench
    for count in (6, 7, 12, 13):
        assert {families[place] for place in spread(range(480), count)} == set(range(6))
    assert spread(range(5), 5) == [0, 1, 2, 3, 4]
    assert spread(range(10), 1) == [5]
    assert spread([], 0) == []


def test_files_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path, "gsm8k_test", 9)
    write(tmp_path, "own", 4)
    suite = load_suite("gsm8k", tmp_path, 3, oracle=False)
    assert suite.measured_rows == (2, 5, 8)
    assert [prompt.text for prompt in suite.measured] == ["gsm8k_test 2", "gsm8k_test 5", "gsm8k_test 8"]
    assert suite.search == ()
    assert [prompt.text for prompt in load_suite("own", tmp_path, 12, oracle=False).measured] == [
        "own 1", "own 2", "own 3", "own 4",
    ]  # fmt: skip
    assert suites_of(tmp_path) == ["gsm8k", "own"]


@pytest.mark.parametrize(("rows", "count"), [(9, 3), (9, 9), (9, 12), (2, 12), (40, 12)])
def test_the_oracle_searches_on_other_prompts(tmp_path: Path, rows: int, count: int) -> None:
    write(tmp_path, "own", rows)
    suite = load_suite("own", tmp_path, count, oracle=True)
    assert len(suite.search) >= 1
    assert len(suite.measured) >= 1
    assert not set(suite.search_rows) & set(suite.measured_rows)
    plain = load_suite("own", tmp_path, count, oracle=False)
    if rows >= count + len(suite.search):
        assert suite.measured == plain.measured


def test_suites_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Suite mt_bench needs --data"):
        load_suite("mt_bench", None, 1, oracle=False)
    with pytest.raises(InputError, match="does not exist"):
        load_suite("mt_bench", tmp_path / "nowhere", 1, oracle=False)
    with pytest.raises(InputError, match=r"looked for .*mt_bench.jsonl; the folder has no .jsonl file"):
        load_suite("mt_bench", tmp_path, 1, oracle=False)
    write(tmp_path, "gsm8k_test", 1)
    with pytest.raises(InputError, match=r"looked for .*humaneval.jsonl; the folder has gsm8k"):
        load_suite("humaneval", tmp_path, 1, oracle=False)
    with pytest.raises(InputError, match="oracle needs two"):
        load_suite("gsm8k", tmp_path, 1, oracle=True)


def test_built_in_prompts_need_no_folder() -> None:
    suite = load_suite("built-in", None, 12, oracle=False)
    assert len(suite.measured) == 12
    assert suite.measured[0].id == "chat-tea"


def test_hub_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r'pip install "smartree\[bench\]"'):
        load_suite("org/data", None, 1, oracle=False)


def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(path: str, config: str | None) -> Any:
        asked.append((path, config))
        if path == "org/missing":
            raise FileNotFoundError("no such data set\nand more")
        return {"train": [{"question": "train"}], "test": [{"question": f"test {n}", "answer": 1} for n in range(3)]}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    suite = load_suite("org/data:main", None, 2, oracle=False)
    assert [prompt.text for prompt in suite.measured] == ["test 0", "test 2"]
    assert asked == [("org/data", "main")]
    with pytest.raises(InputError, match=r"cannot be loaded from the hub: no such data set$"):
        load_suite("org/missing", None, 2, oracle=False)
