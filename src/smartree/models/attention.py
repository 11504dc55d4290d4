"""The attention function registered with transformers: packed rows, own cache, ancestor masks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from smartree.errors import InputError
from smartree.models.packed_pass import PackedPass, RowGroup

ATTENTION_NAME = "smartree"


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    smartree: PackedPass | None = None,
    **_unused: Any,
) -> tuple[torch.Tensor, None]:
    """Writes the new rows into the slot cache, then lets every row see its request's cached rows and its ancestors.

    Args:
        module: the attention layer; its `layer_idx` names the cache layer.
        query: [1, heads, N, head_dim], rotated.
        key: [1, kv_heads, N, head_dim], rotated.
        value: [1, kv_heads, N, head_dim].
        attention_mask: ignored; transformers builds none for this function.
        scaling: of the scores; None is 1 / sqrt(head_dim).
        dropout: ignored; the engine never trains.
        softcap: Gemma-2's tanh bound of the scores.
        sliding_window: positions a row looks back, itself included.
        s_aux: attention sinks, not supported.
        smartree: the pass, handed through the model call.

    Returns:
        [1, N, heads, head_dim], and None for the weights.

    Raises:
        InputError: the model was called outside an engine pass, or uses attention sinks.
    """
    if smartree is None:
        raise InputError("A model loaded by smartree runs only inside its engine; load it again for other uses.")
    if s_aux is not None:
        raise InputError("This model uses attention sinks, which smartree's attention does not support.")
    cache, layer = smartree.cache, module.layer_idx
    assert isinstance(layer, int)
    cache.write(layer, smartree.index, key, value)
    keys, values = cache.layer(layer)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if len(smartree.groups) == 1:
        return _attend(query, keys, values, smartree.groups[0], scale, softcap, sliding_window), None
    outputs, start = [], 0
    for group in smartree.groups:
        rows = group.rows
        part = query[:, :, start : start + rows]
        outputs.append(_attend(part, keys, values, group, scale, softcap, sliding_window))
        start += rows
    return torch.cat(outputs, dim=1), None


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: RowGroup,
    scale: float,
    softcap: float | None,
    window: int | None,
) -> torch.Tensor:
    """Attention of one group; the query heads that share a key/value head are folded into the rows."""
    heads, dim = query.shape[1], query.shape[3]
    kv_heads, batch, width = keys.shape[1], len(group.slots), group.width
    fold = heads // kv_heads
    places = group.places(query.device)
    by_request = query[0].transpose(0, 1)  # [rows, heads, dim]
    if places is not None:
        by_request = by_request.index_select(0, places[0])
    folded = by_request.reshape(batch, width, kv_heads, fold, dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, kv_heads, fold * width, dim)
    mine, theirs = _slots(keys, group), _slots(values, group)
    if query.device.type == "cpu" or softcap is not None:
        wide = torch.promote_types(query.dtype, torch.float32)
        bias = group.bias(fold, window or 0, wide, query.device)
        output = _by_products(folded, mine, theirs, bias, scale, softcap)
    else:
        bias = group.bias(fold, window or 0, query.dtype, query.device)
        output = scaled_dot_product_attention(folded, mine, theirs, attn_mask=bias, scale=scale)
    output = output.view(batch, kv_heads, fold, width, dim).permute(0, 3, 1, 2, 4).reshape(batch * width, heads, dim)
    if places is not None:
        output = output.index_select(0, places[1])
    return output[None]


def _by_products(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attention as two products and a softmax in (at least) float32.

    On the CPU this beats the fused kernel from a batch of 4 on, by 2 at 16. In trials in bfloat16 a row's result did
    not depend on the other rows of the pass, as it does with the fused kernel.
    """
    scores = query @ keys.transpose(2, 3)
    if softcap is None:
        scores = torch.add(bias, scores, alpha=scale)
    else:
        scores = torch.tanh(scores * scale / softcap) * softcap + bias
    return torch.softmax(scores, dim=-1).to(query.dtype) @ values


def _slots(rows: torch.Tensor, group: RowGroup) -> torch.Tensor:
    """The cache rows that a group reads: a view if its slots follow each other, else a copy."""
    if group.adjacent:
        first = group.slots[0]
        return rows[first : first + len(group.slots), :, : group.reach]
    return rows[list(group.slots), :, : group.reach]


def register_attention() -> None:
    """Makes the function known to transformers under ATTENTION_NAME; harmless when repeated."""
    AttentionInterface.register(ATTENTION_NAME, packed_attention)
