"""A head before training: its sizes follow the target, its layer starts as the target's last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from smartree.drafters.eagle3.checkpoint import read_checkpoint
from smartree.drafters.eagle3.head import Eagle3Head
from smartree.drafters.eagle3.runner import input_rows, output_rows
from smartree.drafters.eagle3.spec import Eagle3Spec
from smartree.errors import InputError
from smartree.models.load import LoadedModel
from smartree.models.surgery import weight_of
from smartree.models.taps import decoder_layers
from smartree.train.config import TrainConfig
from smartree.train.corpus import Text
from smartree.train.unrolled import Teacher

_SMALL = 0.02  # standard deviation of what starts at random


def tapped_layers(target: LoadedModel) -> tuple[int, ...]:
    """The layers that a head of this target reads: early, middle and late (EAGLE-3, section 3.1)."""
    count = len(decoder_layers(target.model))
    return tuple(max(0, min(layer, count)) for layer in (2, count // 2, count - 3))


def draft_tokens(texts: Iterable[Text], target: LoadedModel, count: int) -> torch.Tensor:
    """[count] ids of the most frequent tokens of the answers, end tokens included, ascending."""
    frequency: Counter[int] = Counter()
    for text in texts:
        frequency.update(text.answer)
    for token in target.eos_ids:
        frequency[token] += len(frequency) + sum(frequency.values())
    chosen = [token for token, _ in sorted(frequency.items(), key=lambda entry: (-entry[1], entry[0]))][:count]
    missing = count - len(chosen)
    if missing > 0:  # a small corpus does not hold that many different ones: the first of the vocabulary fill up
        known = set(chosen)
        chosen += [token for token in range(target.vocab_size) if token not in known][:missing]
    return torch.tensor(sorted(chosen))


def spec_for(target: LoadedModel, config: TrainConfig) -> Eagle3Spec:
    """Sizes of a head for a target: those of one of its layers."""
    own = target.model.config.get_text_config(decoder=True)
    shape = target.cache_shape
    return Eagle3Spec(
        hidden_size=own.hidden_size,
        target_hidden_size=own.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=min(config.draft_vocab, target.vocab_size),
        intermediate_size=config.intermediate_size or own.intermediate_size,
        heads=own.num_attention_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        eps=float(getattr(own, "rms_norm_eps", 1e-6)),
        activation=str(getattr(own, "hidden_act", "silu")),
        rope={"rope_type": "default", "rope_theta": _rope_base(own)},
        feature_layers=tapped_layers(target),
        borrowed=frozenset({"embed_tokens", "lm_head"}),
    )


def _rope_base(own: object) -> float:
    settings = getattr(own, "rope_parameters", None) or {}
    base = settings.get("rope_theta") if isinstance(settings, dict) else None
    return float(base or getattr(own, "rope_theta", None) or 10_000.0)


def teacher_of(target: LoadedModel, token_ids: torch.Tensor) -> Teacher:
    """What the target says of the next token, cut to the draft vocabulary."""
    norm: Any = final_norm(target)
    draft_ids = torch.full((target.vocab_size,), -1)
    draft_ids[token_ids] = torch.arange(len(token_ids))
    draft_ids = draft_ids.to(target.device)
    eps = getattr(norm, "eps", getattr(norm, "variance_epsilon", 1e-6))
    rows = output_rows(target)[token_ids.to(target.device)].to(torch.bfloat16)
    embeddings = input_rows(target)
    if embeddings.dtype not in (torch.bfloat16, torch.float32):  # autocast to bfloat16 takes no others
        embeddings = embeddings.float()
    return Teacher(norm.weight.detach(), float(eps), rows, embeddings, draft_ids)


def final_norm(target: LoadedModel) -> torch.nn.Module:
    """The target's norm before its output rows."""
    decoder: Any = target.model.get_decoder()
    norm = getattr(decoder, "norm", None) or getattr(decoder, "final_layernorm", None)
    assert isinstance(norm, torch.nn.Module), "a decoder without a final norm"
    return norm


def new_head(spec: Eagle3Spec, target: LoadedModel, seed: int, from_target: bool = True) -> Eagle3Head:
    """A head in float32.

    Args:
        spec: its sizes.
        target: whose last layer it starts from.
        seed: of what is random.
        from_target: False starts everything at random.
    """
    torch.manual_seed(seed)
    head = Eagle3Head(spec).float().to(target.device)
    head.lm_head.weight.requires_grad_(False)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if weight.dim() == 2 and not name.startswith("lm_head"):
                weight.normal_(0.0, _SMALL)
        norm: Any = final_norm(target)
        head.norm.weight.copy_(norm.weight)
        if from_target:
            _start_from_target(head, target)
    return head


def known_head(folder: Path, target: LoadedModel, config: TrainConfig) -> tuple[Eagle3Head, torch.Tensor]:
    """A head that was trained for this target already, in float32, and [draft vocabulary] ids of its tokens.

    Raises:
        InputError: the folder holds no such head.
    """
    checkpoint = read_checkpoint(folder)
    wanted = replace(spec_for(target, config), draft_vocab_size=checkpoint.spec.draft_vocab_size)
    if checkpoint.spec != wanted or checkpoint.token_ids is None:
        raise InputError(
            f"The head {folder} cannot be trained on: it has other sizes or layers than `smartree train` gives a head "
            f"of {target.name!r}; leave --start out."
        )
    head = new_head(checkpoint.spec, target, config.seed)
    weights = {name: tensor.float() for name, tensor in checkpoint.weights.items()}
    head.load_state_dict(weights | {"lm_head.weight": head.lm_head.weight})
    return head, checkpoint.token_ids


def _start_from_target(head: Eagle3Head, target: LoadedModel) -> None:
    """Takes over what fits of the target's last layer; the late tap passes `fc` unchanged."""
    size = head.spec.hidden_size
    head.fc.weight.zero_()
    head.fc.weight[:, -size:] = torch.eye(size, device=head.fc.weight.device)
    # Modules of other people's models: nothing is known of their attributes but by asking.
    theirs: Any = decoder_layers(target.model)[-1]
    mine: Any = head.layers[0]
    for name in ("q_proj", "k_proj", "v_proj"):
        own, source = getattr(mine.self_attn, name), weight_of(getattr(theirs.self_attn, name))
        if source.shape == (own.out_features, size):
            own.weight[:, size:] = source.float()
    pairs = [(mine.self_attn.o_proj, theirs.self_attn.o_proj)]
    pairs += [
        (getattr(mine.mlp, name), getattr(theirs.mlp, name, None)) for name in ("gate_proj", "up_proj", "down_proj")
    ]
    for own, source in pairs:
        if source is not None and weight_of(source).shape == own.weight.shape:
            own.weight.copy_(weight_of(source))
    mine.hidden_norm.weight.copy_(theirs.input_layernorm.weight)
    mine.input_layernorm.weight.copy_(torch.ones(size))
    mine.post_attention_layernorm.weight.copy_(theirs.post_attention_layernorm.weight)
