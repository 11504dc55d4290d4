"""Cross-entropy against the target's distribution, with frozen output rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

_CHUNK = 64  # rows whose logits exist at a time: few enough that they stay in the processor's cache


class FrozenRowsLoss(torch.autograd.Function):
    """Sum over rows of -sum_v p_v log softmax(rows @ W.T)_v, for output rows W that are not trained.

    The gradient with respect to the rows is computed along the way, chunk by chunk: the logits of a batch never exist
    together, and neither do their gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Args:
            ctx: autograd's.
            rows: [R, H] normed states.
            weight: [D, H] output rows.
            wanted: [P, D] the target's probabilities; they need not sum to 1.
            places: [R] which of them belongs to each row.

        Returns:
            The sum, float32.
        """
        total = torch.zeros((), dtype=torch.float32, device=rows.device)
        gradient = torch.empty_like(rows)
        for start in range(0, len(rows), _CHUNK):
            part, chances = rows[start : start + _CHUNK], wanted[places[start : start + _CHUNK]]
            logits = linear(part.to(weight.dtype), weight).float()
            logits -= logits.logsumexp(dim=-1, keepdim=True)
            total -= torch.sum(logits * chances)
            slope = logits.exp_().mul_(chances.sum(dim=-1, keepdim=True, dtype=torch.float32)).sub_(chances)
            gradient[start : start + _CHUNK] = slope.to(weight.dtype) @ weight
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """The stored gradient, scaled."""
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0].to(gradient.dtype), None, None, None


def frozen_rows_loss(
    rows: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor, places: torch.Tensor
) -> torch.Tensor:
    """See `FrozenRowsLoss`."""
    loss = FrozenRowsLoss.apply(rows, weight, wanted, places)
    assert isinstance(loss, torch.Tensor)
    return loss
