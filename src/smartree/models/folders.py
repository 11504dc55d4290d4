"""Where smartree keeps what it makes once: converted models, cost profiles."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """The user's cache folder for smartree; the environment variable SMARTREE_CACHE overrides it."""
    override = os.environ.get("SMARTREE_CACHE")
    return Path(override) if override else user_cache_path("smartree")
