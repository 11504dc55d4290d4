"""Tiny random models, hand-made cost profiles, scripted drafters and a character tokenizer, for tests of the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from smartree.cost.draft import DraftCost, DraftPoint
from smartree.cost.profile import Profile
from smartree.cost.table import CostPoint
from smartree.drafters.base import BaseDrafter, DraftRequest
from smartree.engine.engine import Engine
from smartree.engine.request import Request
from smartree.tree.forest import Candidates, Forest, Ints, Proposal

VOCAB = 97
HIDDEN = 32
SLIDING = 6  # positions a sliding layer looks back: fewer than the tests' prompts have

_LOCAL_AND_GLOBAL = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": SLIDING}
_GEMMA = _LOCAL_AND_GLOBAL | {"query_pre_attn_scalar": 8}
_ARCHITECTURES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, {"head_dim": 8, "attn_logit_softcapping": 3.0} | _GEMMA),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, {"head_dim": 8} | _GEMMA),
}
ARCHITECTURES = tuple(_ARCHITECTURES)


def tiny_model(
    architecture: str = "llama",
    *,
    seed: int = 0,
    vocab: int = VOCAB,
    window: int = 256,
    peak: float = 6.0,
    eos: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> PreTrainedModel:
    """A random two-layer model; the same arguments give the same weights.

    Args:
        architecture: one of ARCHITECTURES.
        seed: of the weights.
        vocab: vocabulary size.
        window: most positions.
        peak: standard deviation of the logits: 6 makes the best token likely, not certain.
        eos: end-of-sequence token.
        dtype: of the weights.

    The weights are far larger than transformers' own initial ones, so that attention decides which token comes next:
    a wrong mask, position or cache row changes the output.
    """
    config_class, model_class, extra = _ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=vocab,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=window,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=None,
        tie_word_embeddings=False,
        **extra,
    )
    model = model_class(config)
    model.generation_config.eos_token_id = eos
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=draw)
            if name.endswith("norm.weight"):
                weight.copy_(0.2 * noise + (0.0 if "Gemma" in model_class.__name__ else 1.0))
            elif "embed_tokens" in name:
                weight.copy_(noise / math.sqrt(HIDDEN) if "Gemma" in model_class.__name__ else noise)
            elif name.endswith("bias"):
                weight.copy_(0.3 * noise)
            else:
                gain = peak if "lm_head" in name else 2.0 if "q_proj" in name or "k_proj" in name else 1.5
                weight.copy_(noise * gain / math.sqrt(weight.shape[1]))
    return model.to(dtype).eval()


def reference_model(architecture: str = "llama", **settings: Any) -> Any:
    """The same model for transformers to run, with the attention that is written out: others leave Gemma-2's softcap
    out in older versions."""
    model = tiny_model(architecture, **settings)
    model.set_attn_implementation("eager")
    return model


def flat_profile(levels: bool = False) -> Profile:
    """A device that hardly notices more rows; a level-wise drafter's levels cost a hundredth of a pass."""
    return _profile(lambda batch, tokens: 0.01 * (1 + 1e-4 * tokens), levels)


def steep_profile(levels: bool = False) -> Profile:
    """A compute-bound device: every row costs what the first one does."""
    return _profile(lambda batch, tokens: 0.01 * tokens, levels)


def _profile(seconds: Callable[[int, int], float], levels: bool) -> Profile:
    points = tuple(
        CostPoint(batch, batch * rows, 0, seconds(batch, batch * rows))
        for batch in (1, 2, 4, 8)
        for rows in (1, 2, 4, 8, 16, 32, 64)
    )
    costs = tuple(
        DraftPoint(batch, batch * rows, 1e-4 * (1 + 0.01 * batch * rows))
        for batch in (1, 2, 4, 8)
        for rows in (1, 4, 10)
    )
    return Profile(None, points, DraftCost(levels=costs if levels else ()))


def random_prompts(lengths: Sequence[int], *, seed: int = 0, vocab: int = VOCAB) -> list[list[int]]:
    """Prompts of random tokens; longer ones repeat themselves, so that there is something to look up."""
    draw = np.random.default_rng(seed)
    prompts = []
    for length in lengths:
        part = draw.integers(0, vocab, max(1, (length + 1) // 2)).tolist()
        prompts.append((part + part)[:length])
    return prompts


Children = Callable[[Sequence[int]], Sequence[tuple[int, float]]]


class ScriptedDrafter(BaseDrafter):
    """Proposes what a function says: given a text, the children of its last token as (token, probability)."""

    name = "scripted"
    calibrated = True

    def __init__(self, children: Children, max_depth: int = 4, proposal: Proposal = Proposal.POINT_MASS) -> None:
        self.children, self.max_depth, self.proposal = children, max_depth, proposal
        self.released: list[int] = []
        self.learned = 0
        self._requests: Sequence[DraftRequest] = ()

    def fresh(self) -> ScriptedDrafter:
        return self  # it learns nothing, and tests look at what this one saw

    def begin(self, requests: Sequence[DraftRequest], forest: Forest) -> None:
        self._requests = requests

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        rows = []
        for node in frontier.tolist():
            path, above = [], node
            while above >= forest.batch:
                path.append(int(forest.token[above]))
                above = int(forest.parent[above])
            text = [*self._requests[int(forest.request[node])].tokens, *reversed(path)]
            rows += [(node, token, chance, rank) for rank, (token, chance) in enumerate(self.children(text))]
        if not rows:
            return Candidates.empty()
        parents, tokens, chances, ranks = zip(*rows, strict=True)
        unused = np.full(len(rows), -1)
        return Candidates(
            np.array(parents), np.array(tokens), np.array(chances), np.array(ranks), unused, np.zeros(len(rows))
        )

    def learn(self, forest: Forest, nodes: Ints, accepted: NDArray[np.bool_]) -> None:
        self.learned += len(nodes)

    def release(self, request_id: int) -> None:
        self.released.append(request_id)


class Truth:
    """What plain decoding said, by the text before: the material of oracles and of drafters that are always wrong."""

    def __init__(self, texts: Sequence[Sequence[int]], vocab: int = VOCAB) -> None:
        """Args:
        texts: prompts with their outputs.
        vocab: vocabulary size.
        """
        self._vocab = vocab
        self._next: Mapping[tuple[int, ...], int] = {
            tuple(text[:end]): text[end] for text in texts for end in range(1, len(text))
        }

    def next(self, text: Sequence[int]) -> int | None:
        """The token that follows, if the text is the beginning of a known one."""
        return self._next.get(tuple(text))

    def oracle(self, text: Sequence[int]) -> list[tuple[int, float]]:
        """The true token only."""
        token = self.next(text)
        return [] if token is None else [(token, 0.9)]

    def wrong(self, text: Sequence[int]) -> list[tuple[int, float]]:
        """Two tokens that are not the true one; anything after them."""
        token = self.next(text) or 0
        return [((token + 1) % self._vocab, 0.9), ((token + 2) % self._vocab, 0.8)]

    def branching(self, text: Sequence[int]) -> list[tuple[int, float]]:
        """The true token between wrong ones, so that accepted rows are scattered over the tree."""
        token = self.next(text)
        if token is None:
            return [(int(sum(text)) % self._vocab, 0.5)]
        wrong = [((token + 1) % self._vocab, 0.9), ((token + 2) % self._vocab, 0.7)]
        place = sum(text) % 3
        return [*wrong[:place], (token, 0.8), *wrong[place:]]


CHARACTERS = [chr(code) for code in range(33, 127)] + [" "]


def character_tokenizer(*, bos: bool = True, order: Sequence[str] = CHARACTERS) -> PreTrainedTokenizerFast:
    """One token per printable character; decoding joins them without spaces.

    97 tokens: <bos>, <eos>, then `order`.
    """
    vocab = {token: index for index, token in enumerate(["<bos>", "<eos>", *order])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"bos_token": "<bos>"} if bos else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", **special)


def live(engine: Engine, requests: Sequence[Request]) -> list[Request]:
    """Those of the requests that have rows in the engine's cache."""
    return [request for request in requests if engine.runner.seating.cached.get(request.id)]
