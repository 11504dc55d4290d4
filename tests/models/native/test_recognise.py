"""Which models the kernels run: by their parts first, then by their numbers; all others run in torch, and say why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    PreTrainedModel,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from smartree import LLM, SamplingParams
from smartree.models.load import LoadedModel, prepare_model
from smartree.models.native.matrix import NativeLinear
from smartree.models.native.recognise import native_refusal
from smartree.models.packed_pass import causal_group
from smartree.models.probe import check_native
from smartree.models.runner import ModelRunner
from tests.models.native.small import (
    NATIVE_KINDS,
    SLIDING,
    enliven,
    native_model,
    native_target,
    needs_kernels,
    sizes,
)
from tests.tiny import tiny_model

PARTS = "torch (parts that are not LLaMA's)"
OTHERWISE = "torch (its layers are put together in another way than LLaMA's)"
LONG_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 256,
    "llama_4_scaling_beta": 0.1,
}


def lively(config_class: Any, model_class: Any, **changes: Any) -> PreTrainedModel:
    return enliven(model_class(config_class(**sizes(**changes))), seed=0, peak=1.0)


def prepared(model: PreTrainedModel) -> LoadedModel:
    return prepare_model(model, None, "some")


def modules_of(loaded: LoadedModel, kind: type[nn.Module]) -> int:
    return sum(isinstance(module, kind) for module in loaded.model.modules())


@needs_kernels
@pytest.mark.parametrize("kind", NATIVE_KINDS)
def test_llama_and_its_relatives_run_natively(kind: str) -> None:
    loaded = prepared(native_model(kind))
    assert loaded.kernels == "native"
    assert loaded.native is not None
    assert modules_of(loaded, NativeLinear) == 2 * 7 + 1
    windows = {"mistral": [SLIDING, SLIDING], "sliding qwen2": [SLIDING, 0]}
    assert [layer.window for layer in loaded.native.layers] == windows.get(kind, [0, 0])


@needs_kernels
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: native_model(dtype=torch.float32), "torch (float32 on cpu)"),
        (lambda: native_model(dtype=torch.float64), "torch (float64 on cpu)"),
        (lambda: tiny_model(dtype=torch.bfloat16), "torch (sizes that are no multiples of 32)"),
        (lambda: native_model(intermediate_size=80), "torch (sizes that are no multiples of 32)"),
        (lambda: native_model(head_dim=16), "torch (sizes that are no multiples of 32)"),
        (lambda: lively(Gemma2Config, Gemma2ForCausalLM), PARTS),
        (lambda: native_model(hidden_act="gelu"), PARTS),
        (lambda: lively(SmolLM3Config, SmolLM3ForCausalLM, num_hidden_layers=4), PARTS),
        (
            lambda: lively(Ministral3Config, Ministral3ForCausalLM, rope_parameters=LONG_ROPE, sliding_window=None),
            "torch (queries that are scaled by their position)",
        ),
        (
            lambda: native_model(num_attention_heads=32, num_key_value_heads=1),
            "torch (heads of more than 512, or more than 24 of them on one key/value head)",
        ),
        (
            lambda: native_model(head_dim=544, num_hidden_layers=1),
            "torch (heads of more than 512, or more than 24 of them on one key/value head)",
        ),
    ],
    ids=["float32", "float64", "tiny", "mlp", "head", "gemma2", "gelu", "smollm3", "ministral3", "shared", "large"],
)
def test_what_does_not_fit_runs_in_torch_and_says_why(model: Callable[[], PreTrainedModel], reason: str) -> None:
    loaded = prepared(model())
    assert loaded.native is None
    assert loaded.kernels == reason
    assert "\n" not in reason
    logits = ModelRunner(loaded, 1, 16).forward([causal_group(0, 0, 9)], np.arange(9))
    assert bool(torch.isfinite(logits.float()).all())


@needs_kernels
@pytest.mark.parametrize("heads", [(24, 1), (1, 1), (6, 3)])
def test_as_many_heads_as_the_kernels_have_room_for(heads: tuple[int, int]) -> None:
    """Numbers are compared at load time: a wrong place in a buffer would show."""
    loaded = native_target("qwen3", num_attention_heads=heads[0], num_key_value_heads=heads[1], peak=1.0)
    assert loaded.native is not None
    assert loaded.cache_shape.kv_heads == heads[1]


def with_other_eps(model: Any) -> Any:
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-3
    return model


def with_another_part(model: Any) -> Any:
    model.model.layers[1].self_attn.sinks = nn.Linear(2, 2).to(torch.bfloat16)
    return model


def with_a_layer_of_its_own(model: Any) -> Any:
    class Own(nn.Linear):
        pass

    down = model.model.layers[0].mlp.down_proj
    own = Own(down.in_features, down.out_features, bias=False).to(torch.bfloat16)
    own.weight.data.copy_(down.weight)
    model.model.layers[0].mlp.down_proj = own
    return model


def with_half_rotations(model: Any) -> Any:
    class Half(type(model.model.rotary_emb)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(part[..., :16] for part in super().forward(x, position_ids))

    model.model.rotary_emb.__class__ = Half
    return model


@needs_kernels
@pytest.mark.parametrize("change", [with_other_eps, with_another_part, with_a_layer_of_its_own, with_half_rotations])
def test_one_part_that_differs_is_enough(change: Any) -> None:
    loaded = prepared(native_model())
    from smartree.models.surgery import fuse_norms

    model = change(native_model())
    fuse_norms(model)
    assert native_refusal(model, loaded.cache_shape) == "parts that are not LLaMA's"


@needs_kernels
@pytest.mark.parametrize(
    "multipliers",
    [
        {"residual_multiplier": 0.4},
        {"embedding_multiplier": 5.0},
        {"logits_scaling": 4.0},
        {"residual_multiplier": 0.4, "embedding_multiplier": 5.0, "logits_scaling": 4.0, "attention_multiplier": 0.1},
    ],
    ids=["residual", "embedding", "logits", "all"],
)
def test_the_same_parts_put_together_otherwise_are_found_out_by_numbers(multipliers: dict[str, float]) -> None:
    """Granite: its weights are repacked by then, and it must still run right, in torch."""
    original = lively(GraniteConfig, GraniteForCausalLM, **multipliers)
    original.set_attn_implementation("eager")
    tokens = torch.arange(3, 40)
    with torch.no_grad():
        expected = original(input_ids=tokens[None]).logits[0].float()
    loaded = prepared(lively(GraniteConfig, GraniteForCausalLM, **multipliers))
    assert loaded.native is None
    assert loaded.kernels == OTHERWISE
    assert modules_of(loaded, NativeLinear) == 2 * 7 + 1
    found = ModelRunner(loaded, 1, 64).forward([causal_group(0, 0, 37)], tokens.numpy()).float()
    assert float((found - expected).abs().mean() / expected.std()) < 0.05
    assert check_native(loaded) is None
    outputs = LLM(lively(GraniteConfig, GraniteForCausalLM, **multipliers), drafter="ngram", policy="eagle2").generate(
        [[1, 2, 3, 1, 2, 3, 1, 2]], SamplingParams(max_tokens=8)
    )
    assert len(outputs[0].token_ids) == 8


@needs_kernels
def test_another_scale_of_the_scores_is_no_obstacle() -> None:
    assert prepared(lively(GraniteConfig, GraniteForCausalLM, attention_multiplier=0.1)).kernels == "native"


class FarSightedModel(LlamaForCausalLM):
    """Like LLaMA up to position 1000, and given no positions by transformers' own callers."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, **settings: Any) -> Any:
        output = super().forward(input_ids=input_ids, position_ids=position_ids, **settings)
        if position_ids is not None and int(position_ids.max()) > 1000:
            output.logits = -output.logits
        return output


@needs_kernels
def test_what_shows_only_at_late_positions_is_found_out() -> None:
    assert prepared(lively(LlamaConfig, FarSightedModel)).kernels == OTHERWISE


@needs_kernels
def test_a_window_that_the_models_code_ignores_is_ignored() -> None:
    """LLaMA looks everywhere, whatever a leftover line of its configuration says."""
    loaded = native_target("llama", sliding_window=5, peak=1.0)
    assert loaded.native is not None
    assert [layer.window for layer in loaded.native.layers] == [0, 0]


@pytest.mark.parametrize("reason", ["no C++ compiler was found; install g++", "SMARTREE_NATIVE=0"])
def test_a_machine_without_the_kernels(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smartree.models.native.library._outcome", lambda: reason)
    llm = LLM(native_model(), drafter="ngram", policy="eagle2")
    assert llm.target.native is None
    assert llm.target.kernels == f"torch ({reason})"
    assert modules_of(llm.target, NativeLinear) == 0
    assert len(llm.generate([[1, 2, 3, 1, 2]], SamplingParams(max_tokens=5))[0].token_ids) == 5
