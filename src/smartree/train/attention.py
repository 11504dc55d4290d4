"""Attention of the unrolled steps, without the full table of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


class UnrolledAttention:
    """Row j of step k sees the rows up to j of step 0, and row j of the steps in between: its own ancestors."""

    def __init__(self) -> None:
        self._keys: list[list[torch.Tensor]] = []
        self._values: list[list[torch.Tensor]] = []

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """q [B, heads, S, d], k and v [B, kv_heads, S, d] -> [B, S, heads, d]."""
        while len(self._keys) <= layer:
            self._keys.append([])
            self._values.append([])
        fold = query.shape[1] // key.shape[1]
        self._keys[layer].append(key.repeat_interleave(fold, dim=1))
        self._values[layer].append(value.repeat_interleave(fold, dim=1))
        return attend(query, self._keys[layer], self._values[layer]).transpose(1, 2)


def attend(query: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Causal over the first keys, and one key of each later step at the query's own row; all [B, heads, S, d]."""
    if len(keys) == 1:
        return scaled_dot_product_attention(query, keys[0], values[0], is_causal=True)
    if query.device.type == "cpu":
        output = _CausalAndOwn.apply(query, *keys, *values)
        assert isinstance(output, torch.Tensor)
        return output
    return attend_by_table(query, keys, values)


def attend_by_table(query: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> torch.Tensor:
    """The definition: all scores in one table."""
    size = query.shape[2]
    query = query * query.shape[-1] ** -0.5
    future = torch.ones(size, size, dtype=torch.bool, device=query.device).triu_(1)
    scores = [(query @ keys[0].transpose(2, 3)).masked_fill(future, float("-inf"))]
    scores += [(query * later).sum(dim=-1, keepdim=True) for later in keys[1:]]
    weights = torch.softmax(torch.cat(scores, dim=-1).float(), dim=-1).to(query.dtype)
    output = weights[..., :size] @ values[0]
    for place, later in enumerate(values[1:]):
        output = output + weights[..., size + place, None] * later
    return output


class _CausalAndOwn(torch.autograd.Function):
    """The fused causal kernel, corrected for the few keys beside it.

    The kernel returns log-sum-exps, so other keys can be merged in; its backward pass needs only the final output and
    log-sum-exp, so handing it the merged ones gives the exact gradients of its part.
    """

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        keys, values = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        scale = query.shape[-1] ** -0.5
        causal, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys[0], values[0], 0.0, True, scale=scale
        )
        own = torch.stack([(query.float() * later.float()).sum(dim=-1) * scale for later in keys[1:]])
        total = torch.logaddexp(sums, torch.logsumexp(own, dim=0))
        output = causal.float() * (sums - total).exp()[..., None]
        weights = (own - total).exp()
        for weight, later in zip(weights, values[1:], strict=True):
            output += weight[..., None] * later
        output = output.to(query.dtype)
        ctx.save_for_backward(query, output, total, weights, *rows)
        return output

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, output, total, weights, *rows = ctx.saved_tensors
        keys, values = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        scale, gradient = query.shape[-1] ** -0.5, upstream[0].to(query.dtype).contiguous()
        to_query, to_key, to_value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, keys[0], values[0], output, total, 0.0, True, scale=scale
        )
        to_query = to_query.float()
        wide, mean = gradient.float(), (gradient.float() * output.float()).sum(dim=-1)
        to_keys, to_values = [to_key], [to_value]
        for weight, key, value in zip(weights, keys[1:], values[1:], strict=True):
            slope = (weight * ((wide * value.float()).sum(dim=-1) - mean) * scale)[..., None]
            to_query += slope * key
            to_keys.append((slope * query).to(key.dtype))
            to_values.append((weight[..., None] * wide).to(value.dtype))
        return (to_query.to(query.dtype), *to_keys, *to_values)
