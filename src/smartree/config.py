"""Configuration of the engine; checked once, then never changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smartree.errors import InputError

DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
LEAST_CACHE = 16
"""Rows of a block: the cache is counted in blocks."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What to run and on what.

    Attributes:
        model: "demo", a folder, or a Hugging Face id.
        drafter: "auto", "head", "ngram", "none", or a head or model (folder or id) that drafts for the target, with
            "+ngram" behind it if lookup is to join.
        policy: name of a policy of smartree.policies.
        dtype: element type of weights and cache; "auto" takes the checkpoint's on CUDA and bfloat16 on a CPU.
        device: "auto", "cpu", "cuda" or "cuda:N".
        max_batch: most requests decoded together.
        max_model_len: longest prompt plus output, in tokens; None takes the model's window.
        prefill_tokens: most prompt tokens packed into one step beside the decoding requests.
        cache_tokens: cache rows of all requests together, in tokens; None takes max_batch times the window.
        prefix_reuse: whether requests share the cached rows of equal beginnings.
        profile: file with a cost profile of this setup; None uses the saved one or measures it once.
        cuda_graphs: whether target passes are recorded as CUDA graphs (docs/devices.md); has no effect on a CPU.

    Raises:
        InputError: a value is out of range.
    """

    model: str
    drafter: str = "auto"
    policy: str = "smart"
    dtype: str = "auto"
    device: str = "auto"
    max_batch: int = 16
    max_model_len: int | None = None
    prefill_tokens: int = 512
    profile: Path | None = None
    cache_tokens: int | None = None
    prefix_reuse: bool = True
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype {self.dtype!r} is unknown; choose one of {', '.join(DTYPES)}.")
        if self.max_batch < 1:
            raise InputError(f"batch is {self.max_batch}; it must be at least 1.")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise InputError(f"max_model_len is {self.max_model_len}; it must be at least 2.")
        if self.prefill_tokens < 1:
            raise InputError(f"prefill_tokens is {self.prefill_tokens}; it must be at least 1.")
        if self.cache_tokens is not None and self.cache_tokens < LEAST_CACHE:
            raise InputError(f"cache_tokens is {self.cache_tokens}; it must be at least {LEAST_CACHE}.")
