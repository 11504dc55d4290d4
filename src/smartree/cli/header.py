"""The header of JSON files: what ran, on what, with which settings."""

from __future__ import annotations

import platform
from collections.abc import Collection
from dataclasses import asdict, fields
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from smartree import __version__

if TYPE_CHECKING:
    from smartree.engine.llm import LLM
    from smartree.sampling_params import SamplingParams


def run_header(llm: LLM, params: SamplingParams | None = None, **more: Any) -> dict[str, Any]:
    """Everything that somebody needs to run the same again, then `more`."""
    import torch

    from smartree.engine.measure import device_name

    on_cpu = llm.target.device.type == "cpu"
    header: dict[str, Any] = {
        "model": llm.config.model,
        "drafter": getattr(llm.drafter, "name", "none"),
        "policy": llm.config.policy,
        "dtype": str(llm.target.dtype).removeprefix("torch."),
        "device": str(llm.target.device),
        "device_name": device_name(llm.target.device),
        "kernels": llm.target.kernels,
        "threads": torch.get_num_threads() if on_cpu else 0,
        "max_batch": llm.config.max_batch,
        "window": llm.window,
        "versions": {
            "smartree": __version__,
            "python": platform.python_version(),
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
    }
    if params is not None:
        names = ("max_tokens", "temperature", "top_k", "top_p", "seed")
        header["sampling"] = {name: getattr(params, name) for name in names} | _unusual(params, names)
    return header | more


def _unusual(params: SamplingParams, named: Collection[str]) -> dict[str, Any]:
    """The other settings that are not at their defaults."""
    settings = asdict(params)
    defaults = {one.name: one.default for one in fields(params)}
    return {name: value for name, value in settings.items() if name not in named and value != defaults[name]}
