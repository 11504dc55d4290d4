"""Small bfloat16 models of sizes that the native kernels take, and what the tests run on them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from smartree.models.load import LoadedModel, prepare_model
from smartree.models.native.library import _openmp, library, why_not
from smartree.models.packed_pass import RowGroup, causal_group
from smartree.models.runner import ModelRunner
from smartree.tree import DraftTree, forest_of, pack
from smartree.tree.packed import PackedTrees
from tests.tiny import VOCAB

needs_kernels = pytest.mark.skipif(why_not() is not None, reason=f"no native kernels: {why_not()}")
needs_int8 = pytest.mark.skipif(
    why_not() is not None or not library().takes_int8, reason="no native kernels that multiply bytes"
)

HIDDEN, INTERMEDIATE, HEAD_DIM = 64, 96, 32
SLIDING = 6  # positions a sliding layer looks back: fewer than prompts and deep trees have
_WINDOWS = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": SLIDING,
    "use_sliding_window": True,
}
_KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": SLIDING}),
    "sliding qwen2": (Qwen2Config, Qwen2ForCausalLM, _WINDOWS),
}
NATIVE_KINDS = tuple(_KINDS)
"""Grouped queries in all; biases in qwen2, head norms in qwen3, windows in the last two."""

NATIVE_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "target_hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "head_dim": HEAD_DIM,
}
"""Of an EAGLE head for these models, as changes of `tiny_spec`."""


def sizes(**changes: Any) -> dict[str, Any]:
    """Settings of a configuration."""
    usual: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    return usual | changes


def enliven(model: Any, seed: int, peak: float, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Random weights, large enough that attention decides which token comes next, and rounded to bfloat16."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=draw)
            if name.endswith("norm.weight"):
                weight.copy_(1 + 0.2 * noise)
            elif "embed_tokens" in name:
                weight.copy_(noise)
            elif name.endswith("bias"):
                weight.copy_(0.3 * noise)
            else:
                gain = peak if "lm_head" in name else 2.0 if "q_proj" in name or "k_proj" in name else 1.5
                weight.copy_(noise * gain / math.sqrt(weight.shape[1]))
    return model.to(torch.bfloat16).to(dtype).eval()  # type: ignore[no-any-return]


def native_model(
    kind: str = "llama", *, seed: int = 0, peak: float = 6.0, dtype: torch.dtype = torch.bfloat16, **changes: Any
) -> PreTrainedModel:
    """A random two-layer model; the same arguments give the same weights.

    Args:
        kind: one of NATIVE_KINDS.
        seed: of the weights.
        peak: standard deviation of the logits.
        dtype: of the weights, which are rounded to bfloat16 in any case.
        changes: of the sizes.
    """
    config_class, model_class, extra = _KINDS[kind]
    return enliven(model_class(config_class(**sizes(**(extra | changes)))), seed, peak, dtype)


def native_target(kind: str = "llama", **settings: Any) -> LoadedModel:
    """A model that runs natively."""
    loaded = prepare_model(native_model(kind, **settings), None, kind)
    assert loaded.kernels == "native"
    return loaded


@contextmanager
def threads(count: int, *, given: int | None = None) -> Iterator[None]:
    """So many threads for torch and the kernels; `given` of 1 lets OpenMP give one only, as a limit does."""
    before = torch.get_num_threads()
    [path] = _openmp()
    openmp = ctypes.CDLL(path)
    levels = openmp.omp_get_max_active_levels()
    torch.set_num_threads(count)
    if given == 1:
        openmp.omp_set_max_active_levels(0)
    try:
        yield
    finally:
        openmp.omp_set_max_active_levels(levels)
        torch.set_num_threads(before)


def random_tokens(draw: np.random.Generator, count: int) -> NDArray[np.int64]:
    """[count] tokens."""
    return draw.integers(0, VOCAB, count)


def one_by_one(runner: ModelRunner, tokens: Sequence[int], start: int = 0) -> torch.Tensor:
    """[n, vocabulary] logits of tokens that follow the first `start` rows of slot 0, a pass for each."""
    logits = [
        runner.forward([causal_group(0, start + place, 1)], np.array([token])) for place, token in enumerate(tokens)
    ]
    return torch.cat(logits)


def random_trees(draw: np.random.Generator, counts: Sequence[int]) -> PackedTrees:
    """A packed tree of any shape for each request, `counts[i]` nodes below its root."""
    trees = []
    for count in counts:
        straight = draw.random()
        parents = [node - 1 if draw.random() < straight else int(draw.integers(-1, node)) for node in range(count)]
        trees.append(DraftTree.of(parents, [0.5] * count, random_tokens(draw, count).tolist()))
    forest = forest_of(trees)
    forest.token[: len(counts)] = random_tokens(draw, len(counts))
    return pack(forest, np.arange(forest.batch, len(forest)))


def path_of(packed: PackedTrees, row: int) -> list[int]:
    """Rows from the root of its tree to a row."""
    rows = []
    while row >= 0:
        rows.append(row)
        row = int(packed.parents[row])
    return rows[::-1]


def tree_group(slots: Sequence[int], cached: Sequence[int], packed: PackedTrees) -> RowGroup:
    """Whole trees, each behind the `cached` rows of its slot."""
    base = np.array(cached)
    return RowGroup(slots, base, base, packed.sizes, packed.depths, above=packed.above())
