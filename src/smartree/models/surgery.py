"""Exact replacements of modules by faster ones, checked against the original before they stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.functional import rms_norm

from smartree.models.native.library import why_not
from smartree.models.native.matrix import NativeLinear, fits, is_plain_bfloat16
from smartree.models.pages import LargePages


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

    __call__ = forward  # see `_WITHOUT_HOOKS`


class PrepackedLinear(nn.Module):
    """A linear layer whose weight oneDNN has laid out once, instead of in every call (CPU, bfloat16)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TYPICAL_ROWS)
        self.packed = packed
        self.bias = linear.bias

    def dense(self) -> torch.Tensor:
        """[out, in] the weight in the usual layout, a copy."""
        return self.packed.to_dense()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs @ weight.T + bias."""
        return torch.ops.mkldnn._linear_pointwise.default(inputs, self.packed, self.bias, "none", [], "")

    __call__ = forward  # see `_WITHOUT_HOOKS`


# _WITHOUT_HOOKS: a pass calls several hundred of these modules, and what `nn.Module.__call__` does about hooks, which
# nobody registers on them, is a third of all function calls of a step.
_TYPICAL_ROWS = 8  # the row count that the layout is chosen for
# Siblings that read the same input, by the names that Hugging Face models give them.
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class MergedLinear(nn.Module):
    """Sibling linear layers as one product; each sibling's place is taken by a `MergedPart`."""

    def __init__(self, siblings: Sequence[nn.Linear]) -> None:
        super().__init__()
        first = siblings[0]
        self.sizes = [one.out_features for one in siblings]
        has_bias = any(one.bias is not None for one in siblings)
        with torch.device("meta"):
            self.linear = nn.Linear(first.in_features, sum(self.sizes), bias=has_bias)
        self.linear.weight = nn.Parameter(torch.cat([one.weight.detach() for one in siblings]), requires_grad=False)
        if has_bias:
            biases = [one.weight.new_zeros(one.out_features) if one.bias is None else one.bias for one in siblings]
            self.linear.bias = nn.Parameter(torch.cat([bias.detach() for bias in biases]), requires_grad=False)
        # A list, as setting attributes of a module takes longer than looking a few of them up (240 times a pass).
        self._latest: list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]] = []
        self._last_place = len(siblings) - 1

    def output(self, inputs: torch.Tensor, place: int) -> torch.Tensor:
        """The output of one sibling. The first one asked pays for all; the last one frees them."""
        latest = self._latest
        if not latest or inputs is not latest[0][0]:
            latest[:] = [(inputs, self.linear(inputs).split(self.sizes, dim=-1))]
        output = latest[0][1][place]
        if place == self._last_place:
            latest.clear()
        return output


class MergedPart(nn.Module):
    """One of the layers that a `MergedLinear` computes together."""

    def __init__(self, merged: MergedLinear, place: int) -> None:
        super().__init__()
        self._merged = (merged,)  # a tuple hides it from the module tree, which must hold it once: the first part does
        if place == 0:
            self.merged = merged
        self._place = place

    def weight(self) -> torch.Tensor:
        """[out, in] this layer's own rows."""
        merged = self._merged[0]
        return weight_of(merged.linear).split(merged.sizes)[self._place]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs @ weight.T + bias of this layer."""
        return self._merged[0].output(inputs, self._place)

    __call__ = forward  # see `_WITHOUT_HOOKS`


def merge_linears(model: nn.Module) -> int:
    """Merges q/k/v and gate/up projections where they are plain linear layers; returns how many products are saved."""
    saved = 0
    for parent in list(model.modules()):
        for names in _SIBLINGS:
            found = [getattr(parent, name, None) for name in names]
            siblings = [one for one in found if type(one) is nn.Linear]
            if len(siblings) == len(names) and len({one.in_features for one in siblings}) == 1:
                merged = MergedLinear(siblings)
                for place, name in enumerate(names):
                    setattr(parent, name, MergedPart(merged, place))
                saved += len(names) - 1
    return saved


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
    """Prepacks every plain bfloat16 linear layer on a CPU that multiplies bfloat16; returns how many.

    For our own kernels where they run, else for oneDNN.
    """
    if not any(is_plain_bfloat16(module) for module in model.modules()):
        return 0  # before the kernels are asked for, which would be compiled
    if why_not() is None:
        pages = LargePages()
        return _replace(model, fits, lambda linear: NativeLinear(linear, pages))
    if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return 0
    return _replace(model, is_plain_bfloat16, PrepackedLinear)


def _replace(model: nn.Module, chosen: Callable[[nn.Module], bool], by: Callable[[nn.Linear], nn.Module]) -> int:
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if chosen(child):
                assert isinstance(child, nn.Linear)
                setattr(parent, name, by(child))
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


def weight_of(module: nn.Module) -> torch.Tensor:
    """[out, in] the weight of a linear layer, whatever surgery did to it."""
    if isinstance(module, PrepackedLinear | NativeLinear):
        return module.dense()
    if isinstance(module, MergedPart):
        return module.weight()
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach()
