"""EAGLE-3 written out row by row, from the paper and the published code's description; shares no code with smartree.

Row r of a text pairs token r + 1 with the features of token r. Rows of committed tokens use the target's hidden states;
a node of a tree uses the state that the head itself gave for its parent.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Weights = Mapping[str, torch.Tensor]


def hidden_states(model: Any, tokens: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
    """[n, layers * hidden] of a transformers model: `hidden_states[i]`, except that what leaves the last layer is taken
    where the final norm reads it, because transformers returns it normed."""
    last: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _module, args: last.append(args[0][0]))
    with torch.no_grad():
        every = model(input_ids=torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states
    hook.remove()
    states = [*(one[0] for one in every[:-1]), last[0]]
    return torch.cat([states[layer] for layer in layers], dim=-1)


@dataclass
class Rows:
    """What attention of later rows sees: keys and values by layer; and what came out of the last row."""

    keys: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    values: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    state: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    normed: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def branch(self) -> Rows:
        """A copy that can go another way."""
        twin = copy.copy(self)
        twin.keys = {layer: list(rows) for layer, rows in self.keys.items()}
        twin.values = {layer: list(rows) for layer, rows in self.values.items()}
        return twin


class Oracle:
    """A head. `spec` is read for its numbers and switches only."""

    def __init__(self, spec: Any, weights: Weights, embeddings: torch.Tensor, output_rows: torch.Tensor | None) -> None:
        self.spec = spec
        self.weights = {name: tensor.double() for name, tensor in weights.items()}
        self.embeddings = embeddings.double()
        self.lm_head = self.weights["lm_head.weight"] if output_rows is None else output_rows.double()
        self.frequencies = frequencies(spec)

    def committed(self, tokens: Sequence[int], states: torch.Tensor) -> Rows:
        """All committed rows of a text, whose tapped states are [len(tokens) - 1, taps * Ht]."""
        rows = Rows()
        for place in range(len(tokens) - 1):
            self.feed(rows, tokens[place + 1], self.feature(states[place]), place)
        return rows

    def feature(self, states: torch.Tensor) -> torch.Tensor:
        """The tapped states of one token, through `fc`."""
        taps, size = self.spec.taps, self.spec.target_hidden_size
        if self.spec.norm_before_fc:
            states = self.norm("input_norm", states)
        if self.spec.fc_norm:
            parts = [self.norm(f"fc_norm.{tap}", states[tap * size : (tap + 1) * size]) for tap in range(taps)]
            states = torch.cat(parts)
        return self.linear("fc", states)

    def node(self, above: Rows, token: int, position: int) -> Rows:
        """One node of a tree below what is above it."""
        rows = above.branch()
        self.feed(rows, token, above.state, position)
        return rows

    def probabilities(self, rows: Rows, temperature: float) -> torch.Tensor:
        """[draft vocabulary] of the token after the last row."""
        return torch.softmax(self.lm_head @ rows.normed / (temperature or 1.0), 0)

    def feed(self, rows: Rows, token: int, feature: torch.Tensor, position: int) -> None:
        """One more row behind the others."""
        state = feature
        for layer in range(self.spec.layers):
            name = f"layers.{layer}"
            if layer == 0:
                normed = self.norm(f"{name}.hidden_norm", state)
                inputs = torch.cat([self.norm(f"{name}.input_layernorm", self.embeddings[token]), normed])
                residual = normed if self.spec.norm_before_residual else state
            else:
                inputs, residual = self.norm(f"{name}.input_layernorm", state), state
            state = residual + self.attention(rows, layer, inputs, position)
            state = state + self.mlp(layer, self.norm(f"{name}.post_attention_layernorm", state))
        rows.normed = self.norm("norm", state)
        rows.state = rows.normed if self.spec.norm_output else state

    def attention(self, rows: Rows, layer: int, inputs: torch.Tensor, position: int) -> torch.Tensor:
        spec, name = self.spec, f"layers.{layer}.self_attn"
        query = self.linear(f"{name}.q_proj", inputs).view(spec.heads, spec.head_dim)
        key = self.linear(f"{name}.k_proj", inputs).view(spec.kv_heads, spec.head_dim)
        value = self.linear(f"{name}.v_proj", inputs).view(spec.kv_heads, spec.head_dim)
        if spec.qk_norm:
            query = torch.stack([self.norm(f"{name}.q_norm", head) for head in query])
            key = torch.stack([self.norm(f"{name}.k_norm", head) for head in key])
        rows.keys.setdefault(layer, []).append(self.rotate(key, position))
        rows.values.setdefault(layer, []).append(value)
        query = self.rotate(query, position)
        keys, values = torch.stack(rows.keys[layer]), torch.stack(rows.values[layer])  # [rows, kv_heads, d]
        mixed = []
        for head in range(spec.heads):
            shared = head // (spec.heads // spec.kv_heads)
            scores = keys[:, shared] @ query[head] / math.sqrt(spec.head_dim)
            mixed.append(torch.softmax(scores, 0) @ values[:, shared])
        return self.linear(f"{name}.o_proj", torch.cat(mixed))

    def mlp(self, layer: int, inputs: torch.Tensor) -> torch.Tensor:
        name = f"layers.{layer}.mlp"
        gate = self.linear(f"{name}.gate_proj", inputs)
        opened = gate * torch.sigmoid(gate) if self.spec.activation == "silu" else torch.relu(gate)
        return self.linear(f"{name}.down_proj", opened * self.linear(f"{name}.up_proj", inputs))

    def rotate(self, heads: torch.Tensor, position: int) -> torch.Tensor:
        """Pair (i, i + d / 2) of every head turns by position * frequency i."""
        angles = (position * self.frequencies).double()
        half = heads.shape[-1] // 2
        first, second = heads[:, :half], heads[:, half:]
        return torch.cat(
            [
                first * angles.cos() - second * angles.sin(),
                second * angles.cos() + first * angles.sin(),
            ],
            dim=-1,
        )

    def linear(self, name: str, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.weights[f"{name}.weight"] @ inputs
        bias = self.weights.get(f"{name}.bias")
        return outputs if bias is None else outputs + bias

    def norm(self, name: str, states: torch.Tensor) -> torch.Tensor:
        return self.weights[f"{name}.weight"] * states / torch.sqrt((states * states).mean() + self.spec.eps)


def frequencies(spec: Any) -> torch.Tensor:
    """[d / 2] float32, as every implementation has them."""
    rope = spec.rope
    plain = [rope["rope_theta"] ** (-2 * place / spec.head_dim) for place in range(spec.head_dim // 2)]
    if rope["rope_type"] == "llama3":
        plain = [_llama3(frequency, rope) for frequency in plain]
    return torch.tensor(plain, dtype=torch.float32)


def _llama3(frequency: float, rope: Mapping[str, Any]) -> float:
    """Slow rotations are slowed down further, fast ones stay, those between are blended."""
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    if turns < rope["low_freq_factor"]:
        return frequency / rope["factor"]
    if turns > rope["high_freq_factor"]:
        return frequency
    blend = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
    return (1 - blend) * frequency / rope["factor"] + blend * frequency
