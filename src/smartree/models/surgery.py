"""Exact replacements of modules by faster ones, checked against the original before they stay."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import rms_norm


class FusedRMSNorm(nn.Module):
    """RMSNorm as one kernel instead of six small ones."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.eps = eps
        self._shape = list(weight.shape)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension."""
        return rms_norm(hidden_states, self._shape, self.weight, self.eps)


class PrepackedLinear(nn.Module):
    """A linear layer whose weight oneDNN has laid out once, instead of in every call (CPU, bfloat16)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TYPICAL_ROWS)
        self.packed = packed
        self.bias = linear.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs @ weight.T + bias."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")


_TYPICAL_ROWS = 8  # the row count that the layout is chosen for


def fuse_norms(model: nn.Module) -> int:
    """Replaces every RMSNorm that the fused kernel reproduces; returns how many."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            fused = _fused(child) if type(child).__name__.endswith("RMSNorm") else None
            if fused is not None:
                setattr(parent, name, fused)
                count += 1
    return count


def prepack_linears(model: nn.Module) -> int:
    """Prepacks every plain bfloat16 linear layer on a CPU that multiplies bfloat16; returns how many."""
    if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return 0
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16 and child.weight.device.type == "cpu":
                setattr(parent, name, PrepackedLinear(child))
                count += 1
    return count


@torch.no_grad()
def _fused(norm: nn.Module) -> FusedRMSNorm | None:
    """The fused form of a norm if one of the two known forms gives the same result on a probe, else None."""
    weight = getattr(norm, "weight", None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or not isinstance(eps, float):
        return None
    probe = torch.linspace(-3, 3, 4 * weight.numel(), dtype=torch.float32, device=weight.device)
    probe = torch.sin(7 * probe).view(4, -1).to(weight.dtype)
    expected = norm(probe)
    tolerance = 8 * torch.finfo(weight.dtype).eps
    for scale in (weight.detach(), (1.0 + weight.detach().float()).to(weight.dtype)):  # Llama's form, Gemma's form
        fused = FusedRMSNorm(scale, eps)
        if torch.allclose(fused(probe), expected, rtol=tolerance, atol=tolerance):
            return fused
    return None
