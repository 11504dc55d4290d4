"""The head's forward pass against one written out row by row: every switch, format and temperature."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from smartree.drafters.eagle3.checkpoint import Eagle3Checkpoint
from smartree.drafters.eagle3.runner import LoadedHead
from smartree.drafters.eagle3.spec import Eagle3Spec
from smartree.models.load import LoadedModel
from tests.drafters.eagle3.heads import (
    LLAMA3,
    Listener,
    listening_drafter,
    random_table,
    random_weights,
    tiny_head,
    tiny_spec,
    tiny_target,
)
from tests.drafters.eagle3.oracle import Oracle, Rows, hidden_states
from tests.drafters.grown import Text, branches, grow_all
from tests.tiny import ARCHITECTURES, HIDDEN, VOCAB, random_prompts, reference_model

PROMPTS = random_prompts([2, 7, 12, 21], seed=3)
TEMPERATURES = (0.0, 0.7, 1.0, 1.6)
TOP_K, WIDTH, LEVELS = 4, 3, 4
OWN = {"borrowed": frozenset[str]()}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "qk_norm": {"qk_norm": True},
    "biases": {"fc_bias": True, "attention_bias": True, "mlp_bias": True},
    "two layers": {"layers": 2, "norm_output": True},
    "every token": {"draft_vocab_size": VOCAB},
    "own embeddings": OWN,
    "the target's output rows": {"borrowed": frozenset({"embed_tokens", "lm_head"})},
    "the target's output rows, every token": {"borrowed": frozenset({"lm_head"}), "draft_vocab_size": VOCAB},
    "narrower than the target": {"hidden_size": 24} | OWN,
    "wider than the target": {"hidden_size": 40, "heads": 6, "kv_heads": 3, "fc_norm": True} | OWN,
    "one tap": {"feature_layers": (1,)},
    "four taps, not in order": {"feature_layers": (2, 0, 1, 1), "fc_norm": True},
    "rope base": {"rope": {"rope_type": "default", "rope_theta": 50.0}},
    "llama3 rope": {"rope": LLAMA3},
    "large eps": {"eps": 0.1, "fc_norm": True},
    "relu": {"activation": "relu"},
    "all at once": {
        "norm_before_residual": True,
        "fc_norm": True,
        "norm_output": True,
        "qk_norm": True,
        "fc_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "layers": 2,
        "rope": LLAMA3,
    }
    | OWN,
}


@cache
def target(architecture: str = "llama") -> LoadedModel:
    return tiny_target(architecture)


def oracle_of(spec: Eagle3Spec, architecture: str = "llama") -> tuple[Oracle, torch.Tensor]:
    """The written-out head, and the target's ids of its draft tokens."""
    original = reference_model(architecture)
    weights, table = random_weights(spec), random_table(spec)
    ids = torch.arange(spec.vocab_size) if table is None else table
    own = "embed_tokens" not in spec.borrowed
    embeddings = weights["embed_tokens.weight"] if own else original.get_input_embeddings().weight.detach()
    rows = original.get_output_embeddings().weight.detach()[ids] if "lm_head" in spec.borrowed else None
    return Oracle(spec, weights, embeddings, rows), ids


def check_branches(
    oracle: Oracle, ids: torch.Tensor, found: dict[tuple[int, ...], float], text: Text, states: torch.Tensor
) -> None:
    """Every branch's tokens, their order and their probabilities."""
    rows: dict[tuple[int, ...], Rows] = {(): oracle.committed(text.tokens, states)}
    parents = sorted({path[:-1] for path in found}, key=len)
    for parent in parents:
        if parent:
            # The row of a text's last token is at len - 2; its first drafted one follows.
            position = len(text.tokens) - 2 + len(parent)
            rows[parent] = oracle.node(rows[parent[:-1]], parent[-1], position)
        expected = oracle.probabilities(rows[parent], text.temperature)
        best = expected.topk(TOP_K)
        assert [path[-1] for path in found if path[:-1] == parent] == ids[best.indices].tolist()
        chances = [found[(*parent, token)] for token in ids[best.indices].tolist()]
        assert chances == pytest.approx(best.values.tolist(), rel=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_branch_has_the_probability_of_the_written_out_head(kind: str) -> None:
    spec = tiny_spec(**KINDS[kind])
    drafter, listener = listening_drafter(target(), tiny_head(target(), spec), top_k=TOP_K)
    texts = [Text(index, prompt, TEMPERATURES[index]) for index, prompt in enumerate(PROMPTS)]
    listener.hear(texts)
    forest = grow_all(drafter, texts, levels=LEVELS, width=WIDTH)
    oracle, ids = oracle_of(spec)
    for text in texts:
        found = branches(forest, text.id)
        assert len(found) == TOP_K + (LEVELS - 1) * WIDTH * TOP_K
        check_branches(
            oracle, ids, found, text, hidden_states(reference_model(), text.tokens[:-1], spec.feature_layers)
        )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_features_are_the_targets_own_on_every_architecture(architecture: str) -> None:
    spec = tiny_spec()
    drafter, listener = listening_drafter(target(architecture), tiny_head(target(architecture), spec), top_k=TOP_K)
    texts = [Text(index, prompt, 1.0) for index, prompt in enumerate(PROMPTS)]
    listener.hear(texts)
    forest = grow_all(drafter, texts, levels=2, width=1)
    oracle, ids = oracle_of(spec, architecture)
    original = reference_model(architecture)
    for text in texts:
        states = hidden_states(original, text.tokens[:-1], spec.feature_layers)
        check_branches(oracle, ids, branches(forest, text.id), text, states)


def test_a_long_prompt_is_read_in_an_attention_call_of_its_own() -> None:
    spec = tiny_spec(rope=LLAMA3)
    drafter, listener = listening_drafter(target(), tiny_head(target(), spec), top_k=TOP_K)
    texts = [Text(0, PROMPTS[1]), *(Text(1 + place, random_prompts([90], seed=place)[0]) for place in range(2))]
    listener.hear(texts)
    forest = grow_all(drafter, texts, levels=3, width=1)
    oracle, ids = oracle_of(spec)
    for text in texts:
        states = hidden_states(reference_model(), text.tokens[:-1], spec.feature_layers)
        check_branches(oracle, ids, branches(forest, text.id), text, states)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_every_tapped_layer_counts(layer: int) -> None:
    """Otherwise the tests above would pass with a layer left out."""
    text, trees = Text(0, PROMPTS[2]), []
    for shift in (0, 1):
        drafter, listener = listening_drafter(target(), tiny_head(target()))
        states = listener.states(text.tokens[:-1]).clone()
        part = slice(HIDDEN * layer, HIDDEN * (layer + 1))
        states[:, part] = states[:, part].roll(shift, dims=1)
        drafter.absorb([0], [len(states)], states)
        trees.append(branches(grow_all(drafter, [text], levels=1)))
    assert list(trees[0].values()) != pytest.approx(list(trees[1].values()), rel=1e-2)


def test_a_head_without_layers_taps_early_middle_and_late() -> None:
    assert tiny_spec(feature_layers=()).layers_of(32) == (2, 16, 29)
    assert tiny_spec(feature_layers=()).layers_of(80) == (2, 40, 77)
    assert tiny_spec(feature_layers=()).taps == 3
    assert tiny_spec(feature_layers=(5, 9)).layers_of(32) == (5, 9)


def test_a_token_beyond_the_heads_vocabulary_is_read_as_the_first() -> None:
    """A target may pad its vocabulary beyond what the head was made for."""
    small = tiny_spec(vocab_size=90, draft_vocab_size=90, borrowed=frozenset({"lm_head"}))
    weights = random_weights(small)
    head = LoadedHead(Eagle3Checkpoint(small, weights, None, "small"), target(), "small")
    drafter, listener = listening_drafter(target(), head)
    texts = [Text(0, [3, 95, 4]), Text(1, [3, 95, 96])]
    listener.hear(texts)
    forest = grow_all(drafter, texts, levels=2, width=2)
    assert int(forest.token[2:].max()) < 90
    assert np.isfinite(forest.probability).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_element_types_agree_with_the_exact_ones(dtype: torch.dtype) -> None:
    """bfloat16 also goes through the prepacked products of a CPU."""
    spec, text = tiny_spec(), Text(0, PROMPTS[2], 1.0)
    logits = []
    for one in (torch.float64, dtype):
        model = tiny_target(dtype=one)
        head = tiny_head(model, spec)
        drafter, _ = listening_drafter(model, head)
        states = Listener(target(), drafter).states(text.tokens[:-1]).to(one)  # the same features for both
        drafter.absorb([0], [len(states)], states)
        grow_all(drafter, [text], levels=1)
        logits.append(drafter.runner.logits(head.head.norm(drafter._states[-1:])).double())
    scale = float(logits[0].std())
    assert torch.allclose(logits[1], logits[0], rtol=0, atol=scale * (1e-4 if dtype == torch.float32 else 0.25))
