"""Replaced modules compute what the originals compute, and whatever they cannot reproduce stays."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from smartree.models.native.library import why_not
from smartree.models.native.matrix import NativeLinear
from smartree.models.surgery import (
    FusedRMSNorm,
    MergedPart,
    PrepackedLinear,
    fuse_norms,
    merge_linears,
    prepack_linears,
    weight_of,
)
from tests.tiny import ARCHITECTURES, tiny_model

MULTIPLIES_BF16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
needs_bf16 = pytest.mark.skipif(not MULTIPLIES_BF16, reason="this CPU does not multiply bfloat16")
needs_kernels = pytest.mark.skipif(why_not() is not None, reason=f"no native kernels: {why_not()}")
EITHER = [pytest.param(True, marks=needs_kernels, id="kernels"), pytest.param(False, marks=needs_bf16, id="oneDNN")]


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without our own kernels."""
    monkeypatch.setattr("smartree.models.native.library._outcome", lambda: "no compiler")


def norm(kind: Any, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A norm with weights of the usual size: around 0 where they are added to 1, else around 1."""
    made = kind(24, eps=1e-6)
    with torch.no_grad():
        noise = 0.3 * torch.randn(24, generator=torch.Generator().manual_seed(0))
        made.weight.copy_(noise if kind.__name__.startswith("Gemma") else 1 + noise)
    return made.to(dtype)


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Qwen3RMSNorm, Gemma2RMSNorm, Gemma3RMSNorm])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_a_fused_norm_equals_the_original(kind: type[nn.Module], dtype: torch.dtype, tolerance: float) -> None:
    holder = nn.ModuleDict({"one": norm(kind, dtype), "two": nn.Linear(3, 3)})
    original = copy.deepcopy(holder["one"])
    assert fuse_norms(holder) == 1
    assert type(holder["one"]) is FusedRMSNorm
    for scale in (1e-2, 1.0, 30.0):
        states = (scale * torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))).to(dtype)
        with torch.no_grad():
            expected, fused = original(states), holder["one"](states)
        assert fused.dtype == expected.dtype
        assert torch.allclose(fused, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_whole_model_keeps_its_logits(architecture: str) -> None:
    model = tiny_model(architecture, peak=1.0, dtype=torch.float32)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        assert fuse_norms(model) >= 5
        assert merge_linears(model) == 2 * 3
        changed, again = (model(input_ids=tokens).logits for _ in range(2))
    assert torch.allclose(changed, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(changed, again)


class LogRMSNorm(LlamaRMSNorm):
    """Named like an RMSNorm, and something else."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states) + 0.1


class WeightlessRMSNorm(nn.Module):
    eps = 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + self.eps)


@pytest.mark.parametrize("other", [LogRMSNorm(24), WeightlessRMSNorm(), nn.LayerNorm(24)])
def test_what_the_fused_kernel_does_not_reproduce_stays(other: nn.Module) -> None:
    holder = nn.ModuleDict({"one": other})
    assert fuse_norms(holder) == 0
    assert holder["one"] is other


@needs_bf16
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 8, 70])
def test_a_prepacked_linear_equals_the_plain_one(bias: bool, rows: int) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(96, 130, bias=bias).to(torch.bfloat16)
    states = torch.randn(1, rows, 96, dtype=torch.bfloat16)
    with torch.inference_mode():
        packed = PrepackedLinear(plain)(states)
        expected = linear(states, plain.weight, plain.bias)
        exact = linear(states.double(), plain.weight.double(), plain.bias.double() if bias else None)
    assert packed.shape == expected.shape
    assert packed.dtype == torch.bfloat16
    # Both round one exact product; neither may be further from it than a step of bfloat16.
    step = torch.finfo(torch.bfloat16).eps * exact.abs().clamp_min(1.0)
    assert torch.all((packed.double() - exact).abs() <= step)
    assert torch.all((packed.double() - expected.double()).abs() <= step)


@pytest.mark.parametrize("kernels", EITHER)
def test_only_plain_bfloat16_layers_are_prepacked(kernels: bool, request: pytest.FixtureRequest) -> None:
    if not kernels:
        request.getfixturevalue("no_kernels")

    class OwnLinear(nn.Linear):
        pass

    holder = nn.ModuleDict(
        {
            "plain": nn.Linear(8, 8).to(torch.bfloat16),
            "single": nn.Linear(8, 8),
            "own": OwnLinear(8, 8).to(torch.bfloat16),
            "inner": nn.Sequential(nn.Linear(8, 8).to(torch.bfloat16)),
        }
    )
    assert prepack_linears(holder) == 2
    assert type(holder["plain"]) is (NativeLinear if kernels else PrepackedLinear)
    assert type(holder["single"]) is nn.Linear
    assert type(holder["own"]) is OwnLinear
    assert (holder["plain"].in_features, holder["plain"].out_features) == (8, 8)


@needs_kernels
def test_an_odd_number_of_inputs_is_not_for_the_kernels() -> None:
    holder = nn.ModuleDict({"odd": nn.Linear(7, 8).to(torch.bfloat16), "even": nn.Linear(6, 8).to(torch.bfloat16)})
    assert prepack_linears(holder) == 1
    assert type(holder["odd"]) is nn.Linear


@pytest.mark.usefixtures("no_kernels")
def test_a_cpu_without_bfloat16_keeps_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    holder = nn.ModuleDict({"plain": nn.Linear(8, 8).to(torch.bfloat16)})
    assert prepack_linears(holder) == 0
    assert type(holder["plain"]) is nn.Linear


class Attention(torch.nn.Module):
    """Three layers that read one input, one of them with a bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj = torch.nn.Linear(8, 12, bias=False), torch.nn.Linear(8, 4)
        self.v_proj = torch.nn.Linear(8, 4, bias=False)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.q_proj(inputs), self.k_proj(inputs), self.v_proj(inputs)


def test_merged_layers_give_what_each_gave() -> None:
    model = Attention().double()
    batches = [torch.randn(1, rows, 8, dtype=torch.float64) for rows in (1, 5, 1)]
    expected = [model(inputs) for inputs in batches]
    assert merge_linears(model) == 2
    for inputs, wanted in zip(batches, expected, strict=True):
        for _ in range(2):  # the same tensor again: nothing stale is handed out
            for got, want in zip(model(inputs), wanted, strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    # A layer asked alone, out of turn, or with another input than its siblings is still right.
    torch.testing.assert_close(model.v_proj(batches[1]), expected[1][2], rtol=0, atol=1e-12)
    torch.testing.assert_close(model.q_proj(batches[0]), expected[0][0], rtol=0, atol=1e-12)
    torch.testing.assert_close(model.k_proj(batches[1]), expected[1][1], rtol=0, atol=1e-12)
    # The weights are held once.
    assert sum(weight.numel() for weight in model.parameters()) == 20 * 8 + 20


def test_layers_that_are_no_plain_siblings_are_left_alone() -> None:
    model = Attention()
    model.k_proj = torch.nn.Linear(9, 4)
    assert merge_linears(model) == 0
    assert type(model.q_proj) is torch.nn.Linear


PARTS = ("q_proj", "k_proj", "v_proj")


@pytest.mark.parametrize("kernels", EITHER)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_weight_of_a_layer_is_found_whatever_was_done_to_it(
    dtype: torch.dtype, kernels: bool, request: pytest.FixtureRequest
) -> None:
    if not kernels:
        request.getfixturevalue("no_kernels")
    model = Attention().to(dtype)
    expected = {name: getattr(model, name).weight.detach().clone() for name in PARTS}
    for surgery in (lambda _model: 0, merge_linears, prepack_linears):  # each on top of the ones before
        surgery(model)
        for name in PARTS:
            found = weight_of(getattr(model, name))
            assert torch.equal(found, expected[name])
            assert not found.requires_grad
    assert isinstance(model.v_proj, MergedPart)


@needs_bf16
def test_the_weight_of_a_prepacked_layer_is_a_copy() -> None:
    plain = nn.Linear(96, 130).to(torch.bfloat16)
    packed = PrepackedLinear(plain)
    weight = weight_of(packed)
    assert weight.shape == (130, 96)
    assert torch.equal(weight, plain.weight)
    weight.zero_()
    assert torch.equal(weight_of(packed), plain.weight)


@pytest.mark.parametrize("kernels", EITHER)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_weights_of_a_whole_model_survive_surgery(
    architecture: str, kernels: bool, request: pytest.FixtureRequest
) -> None:
    if not kernels:
        request.getfixturevalue("no_kernels")

    def weights(model: Any) -> list[torch.Tensor]:
        layer = model.model.layers[-1]
        modules = [getattr(layer.self_attn, name) for name in (*PARTS, "o_proj")]
        modules += [getattr(layer.mlp, name) for name in ("gate_proj", "up_proj", "down_proj")]
        return [weight_of(module).clone() for module in (*modules, model.get_output_embeddings())]

    model = tiny_model(architecture, dtype=torch.bfloat16)
    expected = weights(model)
    merge_linears(model)
    prepack_linears(model)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(weights(model), expected, strict=True))
