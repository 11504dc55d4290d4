"""The kernels are compiled once and reused; where that is impossible, one sentence says why and torch takes over."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from smartree.models.native import library as module
from smartree.models.native.library import SWITCH, Library, NativeUnavailableError, library, why_not
from tests.models.native.small import needs_kernels

COMPILES = """#!/bin/sh
if [ "$1" = --version ]; then echo "copier 1"; exit 0; fi
echo "$@" >> {log}
for last; do :; done
cp {compiled} "$last"
"""
FAILS = """#!/bin/sh
if [ "$1" = --version ]; then echo "failing 1"; exit 0; fi
for last; do :; done
echo half > "$last"
echo "{words}" >&2
exit 1
"""


@pytest.fixture(autouse=True)
def with_processor(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has all but the compiler, and nothing compiled yet."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(module, "_processor_flags", lambda: set(module._NEEDED))


def use_compiler(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "compiler") -> Path:
    path = folder / name
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path


def compiled_file() -> Path:
    """The kernels that this process has loaded."""
    assert why_not() is None
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split()[-1] for line in lines if "/kernels-" in line))


def refusal() -> str:
    """Why loading fails; a single line."""
    with pytest.raises(NativeUnavailableError) as error:
        module._load()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    assert refusal() == "SMARTREE_NATIVE=0"


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert refusal() == "Linux on aarch64"
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert refusal() == "Darwin on aarch64"


def test_an_older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_processor_flags", lambda: set(module._NEEDED) - {"avx512_bf16"})
    assert refusal() == "the processor has no avx512_bf16"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert refusal() == "no C++ compiler was found; install g++"


@pytest.mark.parametrize("words", ["kernels.cpp:7:1: error: no such thing", "out of luck"])
def test_a_compiler_that_fails(words: str, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = use_compiler(FAILS.format(words=words), tmp_path, monkeypatch)
    assert refusal() == f"{compiler} could not compile the kernels: {words}"
    assert list((own_cache / "native").iterdir()) == []  # no half file, which the next run would load


def test_a_compiler_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler("\x7fELF, but no more of it", tmp_path, monkeypatch)
    assert refusal().startswith("the kernels cannot be stored or loaded: ")


def test_a_compiler_that_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler("#!/bin/sh\n", tmp_path, monkeypatch)
    assert refusal().startswith("the kernels cannot be stored or loaded: ")


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler("#!/bin/sh\n", tmp_path, monkeypatch)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SMARTREE_CACHE", str(tmp_path / "file"))
    assert refusal().startswith("the kernels cannot be stored or loaded: ")


def test_included_files_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = str(use_compiler(COMPILES.format(log=tmp_path / "log", compiled=""), tmp_path, monkeypatch))
    before = module._digest(compiler)
    changed = tmp_path / module._INCLUDED.name
    changed.write_text(module._INCLUDED.read_text() + " ")
    monkeypatch.setattr(module, "_INCLUDED", changed)
    assert module._digest(compiler) != before


@needs_kernels
def test_what_was_compiled_is_reused(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And made anew for another compiler or other flags."""
    log = tmp_path / "log"
    script = COMPILES.format(log=log, compiled=compiled_file())
    use_compiler(script, tmp_path, monkeypatch)
    for _ in range(3):
        assert isinstance(module._load(), Library)
    assert len(log.read_text().splitlines()) == 1
    [made] = (own_cache / "native").iterdir()
    assert made.read_bytes() == compiled_file().read_bytes()
    use_compiler(script.replace("copier 1", "copier 2"), tmp_path, monkeypatch, "newer")
    module._load()
    monkeypatch.setattr(module, "_FLAGS", ("-O2", *module._FLAGS[1:]))
    module._load()
    monkeypatch.setattr(module, "_processor_flags", lambda: {*module._NEEDED, "amx"})
    module._load()
    assert len(log.read_text().splitlines()) == 4
    assert len(list((own_cache / "native").iterdir())) == 4
    assert all(str(module._SOURCE) in line and "-march=native" in line for line in log.read_text().splitlines())


def test_a_file_that_is_no_library(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = use_compiler("#!/bin/sh\necho copier 1\n", tmp_path, monkeypatch)
    (own_cache / "native").mkdir(parents=True)
    (own_cache / "native" / f"kernels-{module._digest(str(compiler))}.so").write_text("half of it")
    assert refusal().startswith("the kernels cannot be stored or loaded: ")


def test_the_outcome_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_outcome", lambda: "a reason")
    assert why_not() == "a reason"
    with pytest.raises(NativeUnavailableError, match="a reason"):
        library()
