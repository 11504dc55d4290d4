"""Heads that the package speculators saved, against the logits that its own model gave (data/README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from smartree.drafters.eagle3.checkpoint import is_eagle3, read_checkpoint
from smartree.drafters.eagle3.head import Eagle3Head, Rotary
from smartree.drafters.eagle3.runner import HeadRunner, LoadedHead
from smartree.models.packed_pass import RowGroup, causal_group
from smartree.train.attention import UnrolledAttention
from tests.drafters.eagle3.heads import tiny_target

DATA = Path(__file__).parent / "data"
NAMES = ("llama", "qwen3")


def answers(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tapped states [S, 96], next tokens [S], logits [steps, S, draft vocabulary]."""
    held = load_file(DATA / f"{name}_answers.safetensors")
    return held["states"], held["tokens"], held["logits"]


@pytest.mark.parametrize("name", NAMES)
def test_the_config_is_understood(name: str) -> None:
    assert is_eagle3(DATA / name)
    found = read_checkpoint(DATA / name)
    spec = found.spec
    assert (spec.hidden_size, spec.vocab_size, spec.draft_vocab_size, spec.head_dim) == (32, 97, 40, 8)
    assert spec.feature_layers == (0, 1, 2)
    assert spec.borrowed == frozenset()
    assert spec.qk_norm == spec.norm_before_fc == spec.norm_output == spec.attention_bias == (name == "qwen3")
    assert spec.norm_before_residual == spec.fc_norm == (name == "llama")
    assert spec.layers == (2 if name == "qwen3" else 1)
    assert spec.rope["rope_theta"] == (20000.0 if name == "qwen3" else 500.0)
    assert found.token_ids is not None
    assert torch.equal(found.token_ids, found.token_ids.sort().values)


@pytest.mark.parametrize("name", NAMES)
def test_drafted_levels_give_their_logits(name: str) -> None:
    """Step k of row j is the k-th level below a text that ends there, along the given tokens."""
    states, tokens, logits = answers(name)
    runner = HeadRunner(LoadedHead(read_checkpoint(DATA / name), tiny_target(dtype=torch.float32), name), 1, 64, 64)
    features, size = runner.features(states), len(tokens)
    above, normed = runner.forward([causal_group(0, 0, size)], tokens.numpy(), features)
    assert torch.allclose(runner.logits(normed), logits[0], rtol=1e-4, atol=1e-4)
    for row in range(size - 2):
        state, committed = above[row : row + 1], row + 1  # the cache behind these rows is overwritten, then refilled
        for level in (1, 2):
            group = RowGroup(
                [0],
                np.array([committed]),
                np.array([committed + level - 1]),
                np.array([1]),
                np.array([level - 1]),
                np.ones((1, 1, level), bool),
                np.arange(level)[None],
            )
            state, normed = runner.forward([group], tokens[row + level : row + level + 1].numpy(), state)
            assert torch.allclose(runner.logits(normed)[0], logits[level, row], rtol=1e-4, atol=1e-4)
        runner.forward([causal_group(0, 0, size)], tokens.numpy(), features)


@pytest.mark.parametrize("name", NAMES)
def test_unrolled_steps_give_their_logits(name: str) -> None:
    """The same with the attention that training uses: all rows of a step at once."""
    states, tokens, logits = answers(name)
    found = read_checkpoint(DATA / name)
    head = Eagle3Head(found.spec)
    head.load_state_dict({key: weight for key, weight in found.weights.items() if "embed" not in key})
    rotary, attend = Rotary(found.spec, 32, torch.float32, torch.device("cpu")), UnrolledAttention()
    embeddings, size = found.weights["embed_tokens.weight"], len(tokens)
    with torch.no_grad():
        features = head.features(states)[None]
        for step in range(len(logits)):
            following = torch.cat([tokens[step:], tokens.new_zeros(step)])
            rotation = rotary(torch.arange(size) + step)
            features, normed = head(embeddings[following][None], features, rotation, attend)
            rows = size - step  # beyond them the text has ended
            assert torch.allclose(head.lm_head(normed)[0, :rows], logits[step, :rows], rtol=1e-4, atol=1e-4)
