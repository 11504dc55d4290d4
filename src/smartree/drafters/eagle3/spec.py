"""What an EAGLE-3 head looks like, read from either of the two checkpoint formats in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers.activations import ACT2FN

from smartree.errors import InputError

_ROPE_BASE = 10_000.0  # where a config names none, and never the target's (published heads rely on it)
_LAYER_TYPES = ("llama", "qwen3")
# Rotations that do not depend on the longest text of a pass, and the settings that each cannot do without.
_ROPE_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True, slots=True)
class Eagle3Spec:
    """Sizes and switches of a head.

    Attributes:
        hidden_size: H, width of the head.
        target_hidden_size: Ht, width of one of the target's hidden states.
        vocab_size: the target's vocabulary.
        draft_vocab_size: tokens that the head can propose.
        intermediate_size: of the MLP.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: size of a head.
        layers: decoder layers; only the first reads embeddings.
        eps: of the norms.
        activation: of the MLP, by its transformers name.
        rope: rotary settings, as transformers 5 writes them.
        feature_layers: tapped layers of the target (index of `hidden_states`); empty takes 2, L // 2 and L - 3.
        norm_before_residual: the residual stream starts from the normed features.
        norm_before_fc: one norm over all tapped states before `fc`.
        fc_norm: a norm for each tapped state before `fc`.
        norm_output: the normed output is what the next level reads.
        qk_norm: queries and keys are normed (Qwen3 layers).
        fc_bias: `fc` has a bias.
        attention_bias: q, k, v and o have one.
        mlp_bias: the MLP's products have one.
        borrowed: weights that are the target's own and not in the file: "embed_tokens", "lm_head" or both.

    Raises:
        InputError: sizes that do not fit together.
    """

    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int = 1
    eps: float = 1e-6
    activation: str = "silu"
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": _ROPE_BASE})
    feature_layers: tuple[int, ...] = ()
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    fc_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    borrowed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        counts = (self.hidden_size, self.target_hidden_size, self.vocab_size, self.draft_vocab_size, self.layers)
        if min(*counts, self.heads, self.kv_heads, self.head_dim, self.intermediate_size) < 1:
            raise InputError("The head's config.json holds a size below 1.")
        if self.heads % self.kv_heads:
            raise InputError(f"The head's {self.heads} attention heads are no multiple of {self.kv_heads} kv heads.")
        if self.draft_vocab_size > self.vocab_size:
            raise InputError(
                f"The head's draft vocabulary of {self.draft_vocab_size} tokens is larger than its vocabulary of "
                f"{self.vocab_size}."
            )
        if self.norm_before_fc and self.fc_norm:
            raise InputError("The head's config.json sets norm_before_fc and fc_norm; only one of them can hold.")
        if unknown := self.borrowed - {"embed_tokens", "lm_head"}:
            raise InputError(f"The head borrows {sorted(unknown)[0]!r}; only embed_tokens and lm_head can be borrowed.")
        if self.borrowed and self.hidden_size != self.target_hidden_size:
            raise InputError(
                f"The head borrows {sorted(self.borrowed)[0]!r} but is {self.hidden_size} wide where its target is "
                f"{self.target_hidden_size}; it needs its own."
            )
        if self.activation not in ACT2FN:
            raise InputError(f"The head's activation {self.activation!r} is unknown to transformers.")

    @property
    def taps(self) -> int:
        """Tapped states that `fc` reads."""
        return len(self.feature_layers) or 3

    @property
    def maps_vocabulary(self) -> bool:
        """True if draft tokens have numbers of their own."""
        return self.draft_vocab_size != self.vocab_size

    def layers_of(self, target_layers: int) -> tuple[int, ...]:
        """The layers to tap in a target with that many."""
        return self.feature_layers or (2, target_layers // 2, target_layers - 3)


def read_spec(config: Mapping[str, Any]) -> Eagle3Spec:
    """The spec of a head's config.json, native (SafeAILab, SpecForge) or speculators (vLLM).

    Raises:
        InputError: the config is of another kind of drafter, or lacks or misstates a size.
    """
    kind = config.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise InputError(f"The drafter is of kind {kind!r}; of the speculators formats only eagle3 is supported.")
    layer = config.get("transformer_layer_config") if kind else config
    if not isinstance(layer, Mapping):
        raise InputError("The head's config.json has no transformer_layer_config.")
    try:
        for proposal in (config.get("speculators_config") or {}).get("proposal_methods") or ():
            if int(proposal.get("verifier_accept_k") or 1) > 1:
                raise InputError("The head asks for verifier_accept_k above 1, which changes the output; it must be 1.")
        return _spec(config, layer)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"The head's config.json lacks {error.args[0]!r}.") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"The head's config.json holds something that is no size: {error}.") from error


def _spec(config: Mapping[str, Any], layer: Mapping[str, Any]) -> Eagle3Spec:
    hidden, heads, vocab = int(layer["hidden_size"]), int(layer["num_attention_heads"]), int(layer["vocab_size"])
    model_type = str(layer.get("model_type", "llama"))
    if model_type not in _LAYER_TYPES:
        raise InputError(f"The head's layers are of type {model_type!r}; supported are {', '.join(_LAYER_TYPES)}.")
    return Eagle3Spec(
        hidden_size=hidden,
        target_hidden_size=int(config.get("target_hidden_size") or hidden),
        vocab_size=vocab,
        draft_vocab_size=int(config.get("draft_vocab_size") or vocab),
        intermediate_size=int(layer["intermediate_size"]),
        heads=heads,
        kv_heads=int(layer.get("num_key_value_heads") or heads),
        head_dim=int(layer.get("head_dim") or hidden // max(heads, 1)),
        layers=int(layer.get("num_hidden_layers") or 1),
        eps=float(layer.get("rms_norm_eps") or 1e-6),
        activation=str(layer.get("hidden_act") or "silu"),
        rope=_rope(layer),
        feature_layers=_feature_layers(config),
        norm_before_residual=bool(config.get("norm_before_residual")),
        norm_before_fc=bool(config.get("norm_before_fc")),
        fc_norm=bool(config.get("fc_norm")),
        norm_output=bool(config.get("norm_output")),
        qk_norm=model_type == "qwen3",
        fc_bias=bool(config.get("bias")),
        attention_bias=bool(layer.get("attention_bias")),
        mlp_bias=bool(layer.get("mlp_bias")),
        borrowed=frozenset(config.get("borrowed") or ()),
    )


def _feature_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Tapped layers by the state that enters them; `eagle_config` (SpecForge, SGLang) names the layers they leave."""
    entered = config.get("eagle_aux_hidden_state_layer_ids")
    if entered:
        return tuple(int(layer) for layer in entered)
    left = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return tuple(int(layer) + 1 for layer in left or ())


def _rope(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings: transformers 5 keeps them together, older configs beside each other."""
    stored = layer.get("rope_parameters")
    settings = dict(stored) if isinstance(stored, Mapping) else dict(layer.get("rope_scaling") or {})
    settings["rope_type"] = settings.get("rope_type") or settings.pop("type", None) or "default"
    settings["rope_theta"] = float(settings.get("rope_theta") or layer.get("rope_theta") or _ROPE_BASE)
    kind = str(settings["rope_type"])
    if kind not in _ROPE_NEEDS:
        raise InputError(f"The head's rotations are of type {kind!r}; supported are {', '.join(_ROPE_NEEDS)}.")
    lacking = next((name for name in _ROPE_NEEDS[kind] if settings.get(name) is None), None)
    if lacking is not None:
        raise InputError(f"The head's config.json lacks {lacking!r} for its {kind} rotations.")
    if float(settings.get("partial_rotary_factor") or layer.get("partial_rotary_factor") or 1.0) != 1.0:
        raise InputError("The head rotates only a part of each attention head, which is not supported.")
    return settings


def write_spec(spec: Eagle3Spec, window: int) -> dict[str, Any]:
    """The config.json of a head in the native format.

    Args:
        spec: the head.
        window: longest text it was trained on.
    """
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "qwen3" if spec.qk_norm else "llama",
        "hidden_size": spec.hidden_size,
        "target_hidden_size": spec.target_hidden_size,
        "vocab_size": spec.vocab_size,
        "draft_vocab_size": spec.draft_vocab_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "num_hidden_layers": spec.layers,
        "rms_norm_eps": spec.eps,
        "hidden_act": spec.activation,
        "rope_theta": spec.rope["rope_theta"],
        "rope_parameters": dict(spec.rope),
        "max_position_embeddings": window,
        "eagle_aux_hidden_state_layer_ids": list(spec.feature_layers),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in spec.feature_layers]},
        "bias": spec.fc_bias,
        "attention_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
    }
    config.update({name: True for name in _SWITCHES if getattr(spec, name)})
    if spec.borrowed:
        config["borrowed"] = sorted(spec.borrowed)
    return config


_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
