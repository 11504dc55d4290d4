"""Random models made on the device: nothing is downloaded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

_SEED = 20240909
_QUIET = 1 / 64  # of the layers' outputs, beside an embedding of size 1 per element
_SPIKE = 24.0  # logit of the next token; the others' have a standard deviation of _SPIKE / sqrt(hidden)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a LLaMA."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    window: int

    def config(self, layers: int | None = None, vocab: int | None = None) -> LlamaConfig:
        """The configuration, with other numbers of layers or tokens if given."""
        return LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=layers or self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            vocab_size=vocab or self.vocab,
            max_position_embeddings=self.window,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )


LLAMA_8B = Shape(4096, 14336, 32, 32, 8, 128256, 8192)
TINY = Shape(64, 128, 2, 4, 2, 512, 1024)


def blank(config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> LlamaForCausalLM:
    """A model whose weights are transformers' own random ones, made where it will run."""
    torch.manual_seed(_SEED)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(config, dtype=dtype)
    model.generation_config.eos_token_id = None
    return model.to(device).eval()


@torch.no_grad()
def lively(shape: Shape, dtype: torch.dtype, device: torch.device, seed: int = 0) -> LlamaForCausalLM:
    """A small random model in which attention decides the next token: a wrong mask or cache row changes the text."""
    model = blank(shape.config(), dtype, device)
    draw = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            continue
        noise = torch.randn(weight.shape, generator=draw)
        scale = 1.0 if "embed_tokens" in name else (6.0 if "lm_head" in name else 2.0) / math.sqrt(weight.shape[-1])
        weight.copy_((noise * scale).to(device))
    return model


@torch.no_grad()
def permuting(shape: Shape, dtype: torch.dtype, device: torch.device) -> tuple[LlamaForCausalLM, NDArray[np.int64]]:
    """A model of any size whose greedy text is known: token t is followed by successor[t], by a wide margin.

    All layers do their full work; their outputs are just small beside the embedding, so that rounding cannot change
    the text and a drafter can be right as often as it is told to be.

    Returns:
        The model, and [vocabulary] successors.
    """
    model = blank(shape.config(), dtype, device)
    successor = np.random.default_rng(_SEED).permutation(shape.vocab)
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.mul_(_QUIET)
    embeddings = model.get_input_embeddings().weight
    embeddings.normal_()
    rows = torch.from_numpy(successor).to(device)
    model.lm_head.weight.index_copy_(0, rows, embeddings * (_SPIKE / shape.hidden))
    return model, successor
