"""The head as a module: the same code drafts and trains, only the attention handed in differs.

Modules inside it are called by their `forward` directly: a level is short, and what `nn.Module.__call__` does for
hooks, which nobody registers here, was a tenth of it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import rms_norm
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from smartree.drafters.eagle3.spec import Eagle3Spec

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q [B, heads, N, d], k [B, kv_heads, N, d], v) -> [B, N, heads, d]; q and k are rotated."""


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension."""
        return rms_norm(states, self.weight.shape, self.weight.to(states.dtype), self.eps)

    __call__ = forward


class Attention(nn.Module):
    """Projections of a layer; the first layer reads embeddings and features side by side."""

    def __init__(self, spec: Eagle3Spec, layer: int) -> None:
        super().__init__()
        self.layer_idx, self._dim = layer, spec.head_dim
        inputs = spec.hidden_size * (2 if layer == 0 else 1)
        width, narrow = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        self.q_proj = nn.Linear(inputs, width, bias=spec.attention_bias)
        self.k_proj = nn.Linear(inputs, narrow, bias=spec.attention_bias)
        self.v_proj = nn.Linear(inputs, narrow, bias=spec.attention_bias)
        self.o_proj = nn.Linear(width, spec.hidden_size, bias=spec.attention_bias)
        self.q_norm = Norm(spec.head_dim, spec.eps) if spec.qk_norm else None
        self.k_norm = Norm(spec.head_dim, spec.eps) if spec.qk_norm else None

    def forward(
        self, states: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], attend: Attend
    ) -> torch.Tensor:
        """[B, N, inputs] -> [B, N, H]."""
        batch, rows = states.shape[:2]
        query, key, value = (
            project(states).view(batch, rows, -1, self._dim) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = (_rotate(part.transpose(1, 2), *rotation) for part in (query, key))
        mixed = attend(self.layer_idx, query, key, value.transpose(1, 2))
        return self.o_proj(mixed.reshape(batch, rows, -1))

    __call__ = forward


class Mlp(nn.Module):
    """Gated MLP."""

    def __init__(self, spec: Eagle3Spec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=spec.mlp_bias)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=spec.mlp_bias)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=spec.mlp_bias)
        self._act = ACT2FN[spec.activation]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        return self.down_proj(self._act(self.gate_proj(states)) * self.up_proj(states))

    __call__ = forward


class Layer(nn.Module):
    """Decoder layer; the first one joins the next token's embedding with the features."""

    def __init__(self, spec: Eagle3Spec, layer: int) -> None:
        super().__init__()
        self._first, self.norm_before_residual = layer == 0, spec.norm_before_residual
        self.self_attn = Attention(spec, layer)
        self.mlp = Mlp(spec)
        self.input_layernorm = Norm(spec.hidden_size, spec.eps)
        self.hidden_norm = Norm(spec.hidden_size, spec.eps) if self._first else None
        self.post_attention_layernorm = Norm(spec.hidden_size, spec.eps)

    def forward(
        self,
        embeddings: torch.Tensor,
        states: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
    ) -> torch.Tensor:
        """Embeddings and states [B, N, H] -> states [B, N, H]."""
        residual = states
        if self.hidden_norm is not None:
            normed = self.hidden_norm(states)
            residual = normed if self.norm_before_residual else states
            inputs = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        else:
            inputs = self.input_layernorm(states)
        states = residual + self.self_attn(inputs, rotation, attend)
        return states + self.mlp(self.post_attention_layernorm(states))

    __call__ = forward


class Eagle3Head(nn.Module):
    """`fc` over the tapped states, one decoder layer (rarely more), norm, output rows of the draft vocabulary.

    The embeddings are not part of it: they are the target's, or come with the checkpoint, and are only looked up.
    """

    def __init__(self, spec: Eagle3Spec) -> None:
        super().__init__()
        self.spec = spec
        self.fc = nn.Linear(spec.taps * spec.target_hidden_size, spec.hidden_size, bias=spec.fc_bias)
        self.input_norm = Norm(spec.taps * spec.target_hidden_size, spec.eps) if spec.norm_before_fc else None
        self.fc_norm = (
            nn.ModuleList(Norm(spec.target_hidden_size, spec.eps) for _ in range(spec.taps)) if spec.fc_norm else None
        )
        self.layers = nn.ModuleList(Layer(spec, layer) for layer in range(spec.layers))
        self.norm = Norm(spec.hidden_size, spec.eps)
        self.lm_head = nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False)

    @property
    def norms_states(self) -> bool:
        """True if tapped states are normed before `fc`."""
        return self.input_norm is not None or self.fc_norm is not None

    def features(self, states: torch.Tensor) -> torch.Tensor:
        """Tapped states [..., taps * Ht] -> features [..., H]."""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            parts = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(states)

    def forward(
        self,
        embeddings: torch.Tensor,
        features: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One level.

        Args:
            embeddings: [B, N, H] of the tokens that follow the features' tokens.
            features: [B, N, H] of `features`, or the states that this returned for the parents.
            rotation: cosines and sines [N, d] or [B, 1, N, d].
            attend: attention over what each row may see.

        Returns:
            States [B, N, H] for the next level, and the normed ones that `lm_head` reads.
        """
        states = features
        for layer in self.layers:
            states = layer(embeddings, states, rotation, attend)
        normed = self.norm(states)
        return (normed if self.spec.norm_output else states), normed


class Rotary(nn.Module):
    """Cosines and sines of all positions, looked up instead of computed in every pass."""

    def __init__(self, spec: Eagle3Spec, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        config = LlamaConfig(
            hidden_size=spec.heads * spec.head_dim,
            num_attention_heads=spec.heads,
            head_dim=spec.head_dim,
            rope_parameters=dict(spec.rope),
            max_position_embeddings=positions,
        )
        with torch.device(device):
            rotary = LlamaRotaryEmbedding(config)
        dummy = torch.empty(0, dtype=torch.float32, device=device)
        cosines, sines = rotary(dummy, torch.arange(positions, device=device)[None])
        self.cosines, self.sines = cosines[0].to(dtype), sines[0].to(dtype)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, each [*positions, d]."""
        return self.cosines[positions], self.sines[positions]

    __call__ = forward


def _rotate(states: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    half = states.shape[-1] // 2
    turned = torch.cat([-states[..., half:], states[..., :half]], dim=-1)
    return (states * cosines + turned * sines).to(states.dtype)
