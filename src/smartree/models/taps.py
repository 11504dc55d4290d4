"""Hidden states of a few layers, taken while a pass runs: what EAGLE-like drafters read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from smartree.errors import InputError


class LayerTaps:
    """The residual stream entering chosen layers, as references: nothing is kept that the pass would have freed but
    the chosen states, and no full list of hidden states is built.

    Layer i means the state that enters decoder layer i (`hidden_states[i]` of Hugging Face models); the number of
    layers itself means the state that leaves the last layer, before the final norm.
    """

    def __init__(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        """Args:
            model: a causal LM.
            layers: layers to tap, in the order wanted.

        Raises:
            InputError: the model has no such layer, or no list of layers was found.
        """
        self._modules = decoder_layers(model)
        self.layers = tuple(layers)
        wrong = next((layer for layer in self.layers if not 0 <= layer <= len(self._modules)), None)
        if wrong is not None:
            raise InputError(f"Layer {wrong} is wanted of a model with {len(self._modules)} layers.")
        self._states: dict[int, torch.Tensor] = {}
        self._side_by_side: torch.Tensor | None = None

    def take(self, states: torch.Tensor | None) -> None:
        """Keeps what a native pass gave, which calls no modules.

        Args:
            states: [N, layers * hidden] the tapped states, side by side.
        """
        self._side_by_side = states

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hooks are on only while their own engine's pass runs: engines may share a model."""
        handles = []
        for layer in dict.fromkeys(self.layers):
            if layer < len(self._modules):
                hook = self._entering(layer)
                handles.append(self._modules[layer].register_forward_pre_hook(hook, with_kwargs=True))
            else:
                handles.append(self._modules[-1].register_forward_hook(self._leaving(layer)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """[M, layers * hidden] the tapped states of rows `index` of the last pass, side by side."""
        if self._side_by_side is not None:
            return self._side_by_side.index_select(0, index)
        return torch.cat([self._states[layer].index_select(0, index) for layer in self.layers], dim=-1)

    def all_rows(self) -> torch.Tensor:
        """[N, layers * hidden] the tapped states of all rows of the last pass, side by side."""
        if self._side_by_side is not None:
            return self._side_by_side
        return torch.cat([self._states[layer] for layer in self.layers], dim=-1)

    def states(self) -> dict[int, torch.Tensor]:
        """The states of the last pass by layer, for `restore`."""
        return dict(self._states)

    def restore(self, states: dict[int, torch.Tensor]) -> None:
        """Makes states that were taken before those of the last pass: a CUDA graph runs no hooks."""
        self._states = dict(states)

    def _entering(self, layer: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._states[layer] = (args[0] if args else kwargs["hidden_states"])[0]

        return hook

    def _leaving(self, layer: int) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            self._states[layer] = (output[0] if isinstance(output, tuple) else output)[0]

        return hook


def chosen_rows(states: torch.Tensor, rows: NDArray[np.int64] | None) -> torch.Tensor:
    """[R, ...] some rows of states, or all of them as they are."""
    return states if rows is None else states.index_select(0, torch.from_numpy(rows).to(states.device))


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers of a causal or vision-language model.

    Raises:
        InputError: there is none.
    """
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] == "layers" and len(module) == count:
            return module
    raise InputError(f"{type(model).__name__} keeps its {count} layers where smartree does not look for them.")
