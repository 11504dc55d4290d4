"""smartree: hardware-aware tree speculative decoding.

The names below load on first use, so that `import smartree` and its core stay free of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smartree.errors import InputError
from smartree.guide import Guide
from smartree.sampling_params import SamplingParams

if TYPE_CHECKING:
    from smartree.engine.async_engine import AsyncEngine
    from smartree.engine.llm import LLM
    from smartree.engine.output import RequestOutput

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncEngine", "Guide", "InputError", "RequestOutput", "SamplingParams", "__version__"]

_LAZY = {
    "AsyncEngine": "smartree.engine.async_engine",
    "LLM": "smartree.engine.llm",
    "RequestOutput": "smartree.engine.output",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'smartree' has no attribute {name!r}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "transformers", "safetensors"):
            message = f'smartree.{name} needs {error.name}: install it with `pip install "smartree[engine]"`.'
            raise ImportError(message) from None
        raise
