"""EAGLE-3 checkpoints as others write them, made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from smartree.drafters.eagle3.spec import Eagle3Spec
from tests.drafters.eagle3.heads import random_table, random_weights

Weights = dict[str, torch.Tensor]


def layer_sizes(spec: Eagle3Spec) -> dict[str, Any]:
    """The part of a config that describes the decoder layer, without its rotations."""
    return {
        "model_type": "qwen3" if spec.qk_norm else "llama",
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "num_hidden_layers": spec.layers,
        "rms_norm_eps": spec.eps,
        "hidden_act": spec.activation,
        "attention_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
    }


def native_config(spec: Eagle3Spec) -> dict[str, Any]:
    """As SafeAILab and SpecForge write it; layers are named by their outputs, scaled rotations by `rope_scaling`."""
    config = layer_sizes(spec) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": spec.draft_vocab_size,
        "rope_theta": spec.rope["rope_theta"],
        "bias": spec.fc_bias,
        "norm_before_residual": spec.norm_before_residual,
        "fc_norm": spec.fc_norm,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in spec.feature_layers]},
    }
    if spec.target_hidden_size != spec.hidden_size:
        config["target_hidden_size"] = spec.target_hidden_size
    if spec.rope["rope_type"] != "default":
        config["rope_scaling"] = {name: value for name, value in spec.rope.items() if name != "rope_theta"}
    return config


def speculators_config(spec: Eagle3Spec) -> dict[str, Any]:
    """As the package speculators writes it; layers are named by their inputs."""
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer_sizes(spec) | {"rope_parameters": dict(spec.rope)},
        "draft_vocab_size": spec.draft_vocab_size,
        "norm_before_residual": spec.norm_before_residual,
        "norm_before_fc": spec.norm_before_fc,
        "fc_norm": spec.fc_norm,
        "norm_output": spec.norm_output,
        "target_hidden_size": None if spec.target_hidden_size == spec.hidden_size else spec.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(spec.feature_layers),
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1}],
            "verifier": {"name_or_path": "somebody/model", "architectures": ["LlamaForCausalLM"]},
        },
    }


def with_vocabulary(spec: Eagle3Spec, weights: Weights, seed: int = 0) -> Weights:
    """The weights with d2t (offsets) and t2d, if the head has a vocabulary of its own."""
    table = random_table(spec, seed)
    if table is None:
        return dict(weights)
    known = torch.zeros(spec.vocab_size, dtype=torch.bool)
    known[table] = True
    return weights | {"d2t": table - torch.arange(len(table)), "t2d": known}


def native(weights: Mapping[str, torch.Tensor]) -> Weights:
    """Names of SafeAILab: the layer is `midlayer`."""
    return {name.replace("layers.0.", "midlayer."): tensor for name, tensor in weights.items()}


def with_prefix(prefix: str, names: Callable[[Weights], Weights] = dict) -> Callable[[Weights], Weights]:
    """Everything below a prefix."""
    return lambda weights: {prefix + name: tensor for name, tensor in names(weights).items()}


def sglang(weights: Mapping[str, torch.Tensor]) -> Weights:
    """Older SGLang names of the norms of the three taps."""
    renamed = native(weights)
    for place, level in enumerate(("low", "mid", "high")):
        renamed[f"aux_norm_{level}.weight"] = renamed.pop(f"fc_norm.{place}.weight")
    return renamed


def with_leftovers(weights: Mapping[str, torch.Tensor]) -> Weights:
    """Weights that trainers leave in a file and nobody needs."""
    return dict(weights) | {
        "verifier_norm.weight": torch.ones(32),
        "verifier_lm_head.weight": torch.ones(40, 32),
        "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    }


def write_folder(folder: Path, config: Mapping[str, Any], weights: Weights, pickled: bool = False) -> Path:
    """Writes a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


def write_native(folder: Path, spec: Eagle3Spec, change: Callable[[Weights], Weights] = dict, **config: Any) -> Path:
    """A native checkpoint of random weights, changed before it is written."""
    weights = native(with_vocabulary(spec, random_weights(spec)))
    return write_folder(folder, native_config(spec) | config, change(weights))
