"""Tiny random EAGLE-3 heads for tiny targets, and the features that their drafters read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from smartree.drafters.eagle3.checkpoint import Eagle3Checkpoint, expected_shapes
from smartree.drafters.eagle3.drafter import Eagle3Drafter
from smartree.drafters.eagle3.runner import LoadedHead
from smartree.drafters.eagle3.spec import Eagle3Spec
from smartree.models.load import LoadedModel, prepare_model
from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner
from tests.drafters.grown import Text
from tests.tiny import HIDDEN, VOCAB, tiny_model

DRAFT_VOCAB = 40
LAYERS = (0, 1, 2)  # tiny models have two layers; 2 is what leaves the last one
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def tiny_target(architecture: str = "llama", dtype: torch.dtype = torch.float64, **settings: Any) -> LoadedModel:
    """A tiny target that the engine can run."""
    return prepare_model(tiny_model(architecture, dtype=dtype, **settings), None, f"tiny {architecture}")


def tiny_spec(**changes: Any) -> Eagle3Spec:
    """A head of a tiny target with a draft vocabulary and the target's embeddings."""
    sizes: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "intermediate_size": 40,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "feature_layers": LAYERS,
        "borrowed": frozenset({"embed_tokens"}),
    }
    return Eagle3Spec(**(sizes | changes))


def random_weights(spec: Eagle3Spec, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights of all that a head does not borrow, large enough that attention decides what it proposes."""
    draw = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(spec).items():
        noise = torch.randn(shape, generator=draw)
        if "norm" in name:
            value = 1 + 0.3 * noise
        elif "embed" in name:
            value = noise
        elif name.endswith("bias"):
            value = 0.5 * noise
        else:
            gain = 4.0 if "lm_head" in name else 2.0 if "q_proj" in name or "k_proj" in name else 1.5
            value = noise * gain / math.sqrt(shape[1])
        if name.partition(".")[0] not in spec.borrowed:
            weights[name] = value
    return weights


def random_table(spec: Eagle3Spec, seed: int = 0) -> torch.Tensor | None:
    """The target's ids of the draft tokens, not ascending; None if they are the same."""
    if not spec.maps_vocabulary:
        return None
    order = torch.randperm(spec.vocab_size, generator=torch.Generator().manual_seed(seed))
    return order[: spec.draft_vocab_size]


def tiny_checkpoint(spec: Eagle3Spec, seed: int = 0) -> Eagle3Checkpoint:
    """A head as if it had been read from a folder."""
    return Eagle3Checkpoint(spec, random_weights(spec, seed), random_table(spec, seed), f"seed {seed}")


def tiny_head(target: LoadedModel, spec: Eagle3Spec | None = None, seed: int = 0) -> LoadedHead:
    """A head fitted to a target."""
    return LoadedHead(tiny_checkpoint(spec or tiny_spec(), seed), target, "tiny head")


class Listener:
    """Plays the engine's part: hands the drafter the hidden states of tokens as they are committed.

    A text of n tokens has n - 1 rows: the last token has not been through the target yet.
    """

    def __init__(self, target: LoadedModel, drafter: Eagle3Drafter) -> None:
        self._target, self._drafter = target, drafter
        self._heard: dict[int, int] = {}

    def states(self, tokens: Sequence[int]) -> torch.Tensor:
        """[len(tokens), taps * hidden] tapped states of a whole text in one pass."""
        runner = ModelRunner(self._target, 1, len(tokens), self._drafter.feature_layers)
        assert runner.taps is not None
        runner.forward([causal_group(0, 0, len(tokens))], np.array(tokens))
        return runner.taps.rows(torch.arange(len(tokens)))

    def heard_already(self, request_id: int, tokens: int) -> None:
        """The drafter knows so many tokens of a request, or has forgotten all but them."""
        self._heard[request_id] = tokens

    def hear(self, texts: Sequence[Text]) -> None:
        """Tells the drafter what is new of all texts, in one call as the engine does."""
        parts = []
        for text in texts:
            start = self._heard.get(text.id, 0)
            parts.append(self.states(text.tokens[:-1])[start:])
            self._heard[text.id] = len(text.tokens) - 1
        self._drafter.absorb([text.id for text in texts], [len(part) for part in parts], torch.cat(parts))


def listening_drafter(
    target: LoadedModel, head: LoadedHead, slots: int = 4, window: int = 200, top_k: int = 4
) -> tuple[Eagle3Drafter, Listener]:
    """A drafter and who tells it of the target's states."""
    drafter = Eagle3Drafter(head, slots, window, top_k)
    return drafter, Listener(target, drafter)


def same_tensors(mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> bool:
    """True if both hold the same names with equal numbers."""
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
