"""The probe at load time: models whose attention is something else are refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    Phi3Config,
)
from transformers.models.llama.modeling_llama import LlamaAttention

from smartree import LLM, SamplingParams
from smartree.errors import InputError
from smartree.models.load import prepare_model
from tests.tiny import ARCHITECTURES, random_prompts, tiny_model

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def lively(config: Any) -> Any:
    """A random model of a configuration, with weights large enough that attention matters."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() >= 2:
                weight.normal_(0, 1.5 / weight.shape[-1] ** 0.5)
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_supported_architectures_pass(architecture: str, dtype: torch.dtype) -> None:
    prepare_model(tiny_model(architecture, dtype=dtype, peak=1.0), None, architecture)


class OwnAttention(LlamaAttention):
    """Ignores the registered function and mixes the rows of a pass in a way of its own."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        values = self.v_proj(hidden_states).view(*hidden_states.shape[:2], -1, self.head_dim)
        values = values.repeat_interleave(self.num_key_value_groups, dim=2)
        return self.o_proj(values.flatten(2).mean(1, keepdim=True).expand(*hidden_states.shape[:2], -1)), None


class OwnAttentionForCausalLM(LlamaForCausalLM):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn = OwnAttention(config, index)


class CrashingForCausalLM(LlamaForCausalLM):
    """Runs alone, not packed."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if "smartree" in kwargs:
            raise ValueError("no such argument\nand a second line")
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (OwnAttentionForCausalLM(LlamaConfig(**SIZES)), "gives other logits"),
        (CrashingForCausalLM(LlamaConfig(**SIZES)), "does not run with a registered attention function"),
        (lively(BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)), "BloomForCausalLM"),  # ALiBi
        (lively(MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=8)), "Mamba"),
    ],
    ids=["own attention", "crash", "alibi", "no attention"],
)
def test_other_attention_is_refused_in_one_sentence(model: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as error:
        prepare_model(model, None, "other")
    assert "\n" not in str(error.value)


def test_attention_in_chunks_is_refused_even_if_the_chunks_are_longer_than_the_probe() -> None:
    config = Llama4TextConfig(
        **SIZES, head_dim=8, attention_chunk_size=24, num_local_experts=2, intermediate_size_mlp=48
    )
    with pytest.raises(InputError):
        prepare_model(lively(config), None, "chunked")


def test_rotations_that_change_with_the_length_do_not_mix_up_a_batch() -> None:
    # Phi-3's long RoPE takes other frequencies once a pass holds a position beyond the original window.
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 1.0,
    }
    config = Phi3Config(**SIZES, original_max_position_embeddings=64, rope_parameters=rope)
    try:
        llm = LLM(lively(config).double(), drafter="none", policy="none")
    except InputError:
        return  # refusing it is as good
    prompts = random_prompts([9, min(llm.window, 100) - 12])
    params = SamplingParams(max_tokens=10)
    together = [output.token_ids for output in llm.generate(prompts, params)]
    alone = [llm.generate(prompt, params)[0].token_ids for prompt in prompts]
    assert together == alone
