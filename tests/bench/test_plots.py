"""Pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from smartree.bench.cell import Cell
from smartree.bench.config import BenchConfig
from smartree.bench.plots import draw_all, plot_folder
from smartree.bench.rows import all_rows
from smartree.errors import InputError
from smartree.policies.factory import POLICY_NAMES
from tests.bench.made import timed


def test_every_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    policies = (*POLICY_NAMES, "oracle")
    config = BenchConfig(("a", "b"), (1, 4), (0.0, 1.0), policies)
    cells = [
        Cell(group, 0, {policy: timed(1.0 + place + group.batch) for place, policy in enumerate(policies)})
        for group in config.groups()
    ]
    rows = all_rows(config, cells, {}, {"a": 5, "b": 5})
    files = draw_all(tmp_path, rows, "a title")
    assert {file.name for file in files} == {"speedup.png", "tau.png", "verified-tokens.png", "step-time.png"}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plot_folder(None) is None
    monkeypatch.setattr("smartree.bench.plots.find_spec", lambda name: object())
    assert plot_folder(str(tmp_path / "new" / "folder")) == tmp_path / "new" / "folder"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        plot_folder(str(tmp_path / "file"))
    monkeypatch.setattr("smartree.bench.plots.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "smartree\[plot\]"'):
        plot_folder(str(tmp_path))
