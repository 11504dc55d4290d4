"""Made this folder with speculators 0.9.0 (see README.md): two tiny heads, their inputs and their logits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

sys.modules["speculators.train.data"] = MagicMock()  # wants data sets and servers, gives a type

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from speculators.config import SpeculatorsConfig, VerifierConfig  # noqa: E402
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig  # noqa: E402
from speculators.proposals.greedy import GreedyTokenProposalConfig  # noqa: E402
from transformers import LlamaConfig, Qwen3Config  # noqa: E402

VOCAB, DRAFT_VOCAB, HIDDEN, ROWS, STEPS = 97, 40, 32, 12, 3
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
CASES: dict[str, tuple[Any, dict[str, bool]]] = {
    "llama": (
        LlamaConfig(
            **SIZES,
            num_hidden_layers=1,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        ),
        {"norm_before_residual": True, "fc_norm": True},
    ),
    "qwen3": (
        Qwen3Config(
            **SIZES,
            num_hidden_layers=2,
            rms_norm_eps=1e-6,
            attention_bias=True,
            rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
        ),
        {"norm_before_fc": True, "norm_output": True},
    ),
}


def make(name: str, folder: Path) -> None:
    """Saves a head of random weights, and what it answers in three unrolled steps."""
    layer, switches = CASES[name]
    layer._attn_implementation = "eager"
    proposal = GreedyTokenProposalConfig(speculative_tokens=STEPS)
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=DRAFT_VOCAB,
        eagle_aux_hidden_state_layer_ids=[0, 1, 2],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **switches,
    )
    model = Eagle3DraftModel(config).float().eval()
    draw = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for key, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=draw)
            large = 1.5 * noise / weight.shape[-1] ** 0.5
            weight.copy_(1 + 0.3 * noise if "norm" in key else 0.3 * noise if weight.dim() == 1 else large)
    chosen = torch.randperm(VOCAB, generator=draw)[:DRAFT_VOCAB].sort().values
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[chosen] = True
    model.load_vocab_mappings(known, chosen - torch.arange(DRAFT_VOCAB))
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: logits.append(output[0].detach().clone()))
    states = torch.randn(1, ROWS, 3 * HIDDEN, generator=draw)
    tokens = torch.randint(0, VOCAB, (1, ROWS), generator=draw)
    with torch.no_grad():
        model(states, tokens, torch.zeros(1, ROWS, dtype=torch.long), ttt_steps=STEPS)
    model.save_pretrained(folder / name)
    (folder / name / "config.py").unlink()
    answers = {"states": states[0], "tokens": tokens[0], "logits": torch.stack(logits)}
    save_file(answers, folder / f"{name}_answers.safetensors")


for case in CASES:
    make(case, Path(__file__).parent)
