"""Finds out whether a Hugging Face model is a stack that the kernels can run."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import silu
from transformers import PreTrainedModel

from smartree.models.cache import CacheShape
from smartree.models.native.decoder import NativeDecoder, NativeLayer
from smartree.models.native.library import why_not
from smartree.models.native.matrix import NativeLinear, fits
from smartree.models.surgery import FusedRMSNorm

_WIDTH = 32  # sizes are multiples of it
_CACHED_BYTES = 2**26  # a model of that size finds nothing of itself in a processor's cache when a pass begins
_LARGEST_HEAD, _MOST_SHARING = 512, 24  # what `seat` and `kQueries` of the kernels have room for
_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


def native_refusal(model: PreTrainedModel, shape: CacheShape) -> str | None:
    """Why the kernels cannot run a model; None if every layer has the parts of a LLaMA layer (Qwen's head norms and
    biases included) and no others.

    Whether the parts are put together in the same way is for numbers to say: `check_native` in `probe.py`.

    Args:
        model: with fused norms.
        shape: of its cache.
    """
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    if device.type != "cpu" or dtype != torch.bfloat16:
        return f"{str(dtype).removeprefix('torch.')} on {device.type}"
    lacking = why_not()
    if lacking is not None:
        return lacking
    base = getattr(model, "model", None)
    config = model.config.get_text_config(decoder=True)
    if "llama_4_scaling_beta" in (getattr(config, "rope_parameters", None) or {}):
        return "queries that are scaled by their position"  # Ministral 3: far out only, where numbers hardly tell
    if any(size % _WIDTH for size in (shape.head_dim, config.hidden_size, getattr(config, "intermediate_size", 1))):
        return f"sizes that are no multiples of {_WIDTH}"
    if not heads_fit(config.num_attention_heads, shape):
        return f"heads of more than {_LARGEST_HEAD}, or more than {_MOST_SHARING} of them on one key/value head"
    if not all(hasattr(base, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb")):
        return "parts that are not LLaMA's"
    assert base is not None
    plain = (
        fits(model.get_output_embeddings())
        and isinstance(base.norm, FusedRMSNorm)
        and _rotates_whole_heads(base.rotary_emb, shape)
        and all(_is_plain(layer) for layer in base.layers)
    )
    return None if plain else "parts that are not LLaMA's"


def heads_fit(heads: int, shape: CacheShape) -> bool:
    """True if attention's fixed-size buffers hold such heads.

    Args:
        heads: query heads.
        shape: of the cache.
    """
    return shape.head_dim <= _LARGEST_HEAD and heads <= _MOST_SHARING * shape.kv_heads


def _rotates_whole_heads(rotary: nn.Module, shape: CacheShape) -> bool:
    """True if rotations are the same in all layers, and of all of a head."""
    if len(inspect.signature(rotary.forward).parameters) != 2:
        return False
    cosines, _ = rotary(torch.empty(0, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.int64))
    return int(cosines.shape[-1]) == shape.head_dim


def _is_plain(layer: nn.Module) -> bool:
    if {name for name, _ in layer.named_children()} != _PARTS:
        return False
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    if not getattr(attention, "use_rope", True):  # some layers of SmolLM3
        return False
    own = {name for name, child in attention.named_children()} - set(_ATTENTION)
    norms = [getattr(attention, name) for name in own]
    norms += [layer.input_layernorm, layer.post_attention_layernorm]
    return (
        own in (set(), {"q_norm", "k_norm"})
        and all(isinstance(norm, FusedRMSNorm) for norm in norms)
        and len({norm.eps for norm in norms}) == 1
        and all(fits(getattr(attention, name, nn.Identity())) for name in _ATTENTION)
        and {name for name, _ in mlp.named_children()} == {*_MLP, "act_fn"}
        and all(fits(getattr(mlp, name)) for name in _MLP)
        and _is_silu(mlp.act_fn)
    )


def _is_silu(activation: Any) -> bool:
    probe = torch.linspace(-4, 4, 33)
    return bool(torch.allclose(activation(probe), silu(probe), atol=1e-6))


@torch.inference_mode()
def build_decoder(model: PreTrainedModel, shape: CacheShape, window: int) -> NativeDecoder:
    """The native form of a model that `looks_native`; its linear layers are `NativeLinear` already.

    Args:
        model: after the surgery.
        shape: of its cache.
        window: most positions.
    """
    linears = [module for module in model.modules() if isinstance(module, NativeLinear)]
    for linear in linears:
        linear.matrix.streamed = sum(one.packed.nbytes for one in linears) > _CACHED_BYTES
    base: Any = model.model
    positions = torch.arange(window)[None]
    cosines, sines = base.rotary_emb(torch.empty(0, dtype=torch.bfloat16), positions)
    return NativeDecoder(
        [_layer(layer, model.config) for layer in base.layers],
        shape,
        base.norm.weight.numel(),
        wide(base.norm),
        _linear(model.get_output_embeddings()),
        *(np.ascontiguousarray(part[0].float().numpy()) for part in (cosines, sines)),
    )


def _layer(layer: Any, config: Any) -> NativeLayer:
    attention, mlp = layer.self_attn, layer.mlp
    # Mistral's attention asks the configuration; LLaMA's looks everywhere, whatever an old configuration file says.
    declared = getattr(config, "sliding_window", None) if hasattr(type(config), "sliding_window") else None
    window = getattr(attention, "sliding_window", declared)
    linears = [getattr(attention, name) for name in _ATTENTION] + [getattr(mlp, name) for name in _MLP]
    return NativeLayer(
        tuple(_linear(linear) for linear in linears),
        norm_in=wide(layer.input_layernorm),
        norm_post=wide(layer.post_attention_layernorm),
        norm_q=wide(attention.q_norm) if hasattr(attention, "q_norm") else None,
        norm_k=wide(attention.k_norm) if hasattr(attention, "k_norm") else None,
        eps=layer.input_layernorm.eps,
        scale=float(attention.scaling),
        window=int(window or 0),
    )


def wide(norm: Any) -> torch.Tensor:
    """[size] a norm's weight in float32."""
    return norm.weight.detach().float()  # type: ignore[no-any-return]


def _linear(module: nn.Module | None) -> NativeLinear:
    assert isinstance(module, NativeLinear)
    return module
