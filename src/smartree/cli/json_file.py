"""`--json FILE`: checked before any work is done, written in one go after it."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from smartree.errors import InputError


class JsonFile:
    """Where a command's data goes: nowhere, stdout ("-") or a file."""

    def __init__(self, target: str | None) -> None:
        """Raises:
        InputError: the file cannot be written.
        """
        self.target = target
        self.to_stdout = target == "-"
        if target is None or self.to_stdout:
            return
        path = Path(target)
        if path.is_dir():
            raise InputError(f"--json {target} is a folder; name a file in it.")
        if not path.parent.is_dir():
            raise InputError(f"The folder of --json {target} does not exist; make it first.")
        place = path if path.exists() and not path.is_file() else path.parent
        if not os.access(place, os.W_OK):
            raise InputError(f"--json {target} cannot be written: permission denied.")

    def write(self, data: Any) -> None:
        """Writes the data, if anybody asked for it; an interruption leaves an old file as it was."""
        if self.target is None:
            return
        text = _layout(_finite(data))
        if self.to_stdout:
            # Bytes, because a terminal's encoding may not know every character of a text.
            stream = getattr(sys.stdout, "buffer", None)
            if stream is None:
                sys.stdout.write(text)
            else:
                sys.stdout.flush()
                stream.write(_encoded(text))
                stream.flush()
            return
        path = Path(self.target)
        if path.exists() and not path.is_file():  # /dev/null and pipes are written to, never replaced
            path.write_bytes(_encoded(text))
            return
        _replace(path, _encoded(text))


def _layout(data: Any) -> str:
    """JSON that people can read too: of a file with rows, one row a line."""
    if not (isinstance(data, dict) and data.keys() == {"header", "rows"}):
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    header = json.dumps(data["header"], indent=1, ensure_ascii=False)
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in data["rows"])
    return f'{{"header": {header},\n"rows": [\n{rows}\n]}}\n'


def _replace(path: Path, content: bytes) -> None:
    path = path.resolve()  # a link stays a link
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _encoded(text: str) -> bytes:
    """UTF-8; half a surrogate pair, which no encoding can carry, becomes a JSON escape."""
    return text.encode("utf-8", errors="backslashreplace")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _finite(data: Any) -> Any:
    """The data with null in place of nan and infinity, which JSON does not have."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data
