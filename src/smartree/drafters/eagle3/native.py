"""A head as the native kernels run it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from smartree.drafters.eagle3.head import Eagle3Head, Rotary
from smartree.drafters.eagle3.spec import Eagle3Spec
from smartree.models.cache import CacheShape
from smartree.models.native.decoder import NativeDecoder, NativeLayer
from smartree.models.native.int8 import Int8Linear, fits_int8
from smartree.models.native.library import library, why_not
from smartree.models.native.matrix import NativeLinear, fits
from smartree.models.native.recognise import heads_fit, wide
from smartree.models.pages import LargePages

_WIDTH = 32  # sizes are multiples of it


def native_fits(spec: Eagle3Spec, head: Eagle3Head) -> bool:
    """True if the kernels can run a head: bfloat16 on a CPU that has them, with sizes that they take."""
    sizes = (spec.hidden_size, spec.intermediate_size, spec.head_dim)
    return (
        spec.activation == "silu"
        and not any(size % _WIDTH for size in sizes)
        and heads_fit(spec.heads, CacheShape(spec.layers, spec.kv_heads, spec.head_dim))
        and all(fits(module) for module in head.modules() if isinstance(module, nn.Linear))
        and why_not() is None  # last: the kernels are compiled when they are first asked for
    )


def store_in_int8(head: Eagle3Head) -> bool:
    """Stores what a level reads of a head that `native_fits` in 8 bits, where the processor multiplies them.

    Guesses never change the output, and a level spends its time on reading weights. `fc` stays as it is: it is read
    once a step only, and rounding the target's own states would change more guesses than all else together.

    Returns:
        False if it stays as it is.
    """
    blocks = [
        block for layer in head.layers for block in (layer.get_submodule("self_attn"), layer.get_submodule("mlp"))
    ]
    children = [(block, name, child) for block in blocks for name, child in block.named_children()]
    children.append((head, "lm_head", head.lm_head))
    linears = [(parent, name, child) for parent, name, child in children if isinstance(child, nn.Linear)]
    if not library().takes_int8 or not all(fits_int8(linear) for _, _, linear in linears):
        return False
    pages = LargePages()
    for parent, name, linear in linears:
        setattr(parent, name, Int8Linear(linear, pages))
    return True


def native_head(head: Eagle3Head, rotary: Rotary) -> NativeDecoder:
    """The native form of a head whose linear layers are `NativeLinear` already."""
    spec = head.spec
    assert isinstance(head.lm_head, NativeLinear)
    return NativeDecoder(
        [_layer(layer, spec) for layer in head.layers],
        CacheShape(spec.layers, spec.kv_heads, spec.head_dim),
        spec.hidden_size,
        wide(head.norm),
        head.lm_head,
        *(np.ascontiguousarray(part.float().numpy()) for part in (rotary.cosines, rotary.sines)),
    )


def _layer(layer: Any, spec: Eagle3Spec) -> NativeLayer:
    attention, mlp = layer.self_attn, layer.mlp
    linears = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    return NativeLayer(
        (*linears, mlp.gate_proj, mlp.up_proj, mlp.down_proj),
        norm_in=wide(layer.input_layernorm),
        norm_post=wide(layer.post_attention_layernorm),
        norm_q=None if attention.q_norm is None else wide(attention.q_norm),
        norm_k=None if attention.k_norm is None else wide(attention.k_norm),
        eps=spec.eps,
        scale=spec.head_dim**-0.5,
        norm_hidden=None if layer.hidden_norm is None else wide(layer.hidden_norm),
        normed_residual=layer.norm_before_residual,
    )
