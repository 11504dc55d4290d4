"""Compiles the kernels once for this machine and loads them; says why where that is impossible."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from ctypes import POINTER, c_int32, c_void_p
from functools import cache
from pathlib import Path

import torch

from smartree.models.folders import cache_folder
from smartree.models.native.structs import Cache, Gathered, Group, Matrix, Model

SWITCH = "SMARTREE_NATIVE"
_SOURCE = Path(__file__).with_name("kernels.cpp")
_INCLUDED = Path(__file__).with_name("kernels_int8.h")
_NEEDED = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared", "-w")
_COMPILERS = ("g++", "c++", "clang++")


class NativeUnavailableError(Exception):
    """The kernels cannot be used here; the message says why."""


class Library:
    """The kernels, with the types of their arguments.

    Attributes:
        takes_int8: whether the processor multiplies bytes, so that a linear layer may be an `Int8Linear`.
    """

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        self.new_session = loaded.smartree_new_session
        self.new_session.argtypes, self.new_session.restype = [], c_void_p
        self.free_session = loaded.smartree_free_session
        self.free_session.argtypes, self.free_session.restype = [c_void_p], None
        self.takes_int8 = bool(loaded.smartree_takes_int8())
        self.run_pass = loaded.smartree_pass
        self.run_pass.argtypes = [
            *(c_void_p, POINTER(Model), POINTER(Cache), POINTER(Group), c_int32, POINTER(Gathered), POINTER(Gathered)),
            *(c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_int32),
        ]
        self.run_pass.restype = c_int32
        self.linear = loaded.smartree_linear
        self.linear.argtypes = [c_void_p, POINTER(Matrix), POINTER(Gathered), c_int32, c_void_p, c_int32]
        self.linear.restype = None
        self.move = loaded.smartree_move
        self.move.argtypes = [POINTER(Cache), c_int32, c_int32, c_int32, c_void_p, c_void_p, c_void_p, c_int32, c_int32]
        self.move.restype = None
        self.argmax = loaded.smartree_argmax
        self.argmax.argtypes = [c_void_p, c_int32, c_void_p, c_int32, c_void_p, c_int32]
        self.argmax.restype = None
        self.gumbel = loaded.smartree_gumbel
        self.gumbel.argtypes = [c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_int32]
        self.gumbel.restype = None
        self.likeliest = loaded.smartree_likeliest
        self.likeliest.argtypes = [*(c_void_p, c_int32, c_int32, c_void_p, c_int32, c_void_p, c_void_p, c_int32)]
        self.likeliest.restype = None


class Session:
    """Memory that calls work in; one thread at a time uses it."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.handle = library.new_session()

    def __del__(self) -> None:
        self._library.free_session(self.handle)


def library() -> Library:
    """The kernels; compiled when they are first asked for, in a few seconds.

    Raises:
        NativeUnavailableError: another processor, no compiler, or the user switched them off.
    """
    found = _outcome()
    if isinstance(found, str):
        raise NativeUnavailableError(found)
    return found


def why_not() -> str | None:
    """Why the kernels cannot be used here; None if they can."""
    found = _outcome()
    return found if isinstance(found, str) else None


@cache
def _outcome() -> Library | str:
    """The kernels or why there are none, found out once."""
    try:
        return _load()
    except NativeUnavailableError as error:
        return str(error)


def _load() -> Library:
    if os.environ.get(SWITCH, "1") == "0":
        raise NativeUnavailableError(f"{SWITCH}=0")
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise NativeUnavailableError(f"{platform.system()} on {platform.machine()}")
    lacking = sorted(set(_NEEDED) - _processor_flags())
    if lacking:
        raise NativeUnavailableError(f"the processor has no {lacking[0]}")
    names = [name for name in (os.environ.get("CXX"), *_COMPILERS) if name]
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        raise NativeUnavailableError("no C++ compiler was found; install g++")
    try:
        path = cache_folder() / "native" / f"kernels-{_digest(compiler)}.so"
        if not path.is_file():
            _compile(compiler, path)
        return Library(path)
    except OSError as error:
        raise NativeUnavailableError(f"the kernels cannot be stored or loaded: {error}") from error


def _processor_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))


def _digest(compiler: str) -> str:
    """A name that changes with the source, the compiler, the processor and torch, whose OpenMP the kernels share."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    flags = " ".join(sorted(_processor_flags()))
    parts = [_SOURCE.read_text(), _INCLUDED.read_text(), version, flags, " ".join(_FLAGS), str(torch.__version__)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: str, path: Path) -> None:
    """Compiles beside the target, then renames: an interruption leaves no half file."""
    print("Compiling smartree's kernels for this processor (once, a few seconds) ...", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *_FLAGS, str(_SOURCE), *_openmp(), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise NativeUnavailableError(f"{compiler} could not compile the kernels: {reason}")
        os.replace(made, path)


def _openmp() -> Sequence[str]:
    """torch's own OpenMP library: a second one would bring a second set of threads for the same cores."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    found += sorted((Path(torch.__file__).parent.parent / "torch.libs").glob("libgomp*.so*"))
    return [str(found[0])] if found else []
