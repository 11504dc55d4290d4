"""Hidden states taken while a pass runs are those that transformers reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from smartree.errors import InputError
from smartree.models.load import prepare_model
from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner
from smartree.models.taps import LayerTaps, decoder_layers
from tests.drafters.eagle3.oracle import hidden_states
from tests.tiny import ARCHITECTURES, HIDDEN, random_prompts, reference_model, tiny_model

TOKENS = random_prompts([15], seed=1)[0]


def tapped(architecture: str, layers: tuple[int, ...], chunks: tuple[int, ...] = (15,)) -> torch.Tensor:
    """States of TOKENS, read in chunks."""
    runner = ModelRunner(prepare_model(tiny_model(architecture), None, "tiny"), 1, 64, layers)
    assert runner.taps is not None
    parts, start = [], 0
    for size in chunks:
        runner.forward([causal_group(0, start, size)], np.array(TOKENS[start : start + size]))
        parts.append(runner.taps.rows(torch.arange(size)))
        start += size
    return torch.cat(parts)


@pytest.mark.parametrize("layers", [(0,), (1,), (2,), (0, 1, 2), (2, 0, 2), (1, 1)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_are_those_of_transformers(architecture: str, layers: tuple[int, ...]) -> None:
    expected = hidden_states(reference_model(architecture), TOKENS, layers)
    found = tapped(architecture, layers)
    assert found.shape == (15, HIDDEN * len(layers))
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)  # their norms work in float32


@pytest.mark.parametrize("chunks", [(7, 8), (1,) * 15])
def test_states_do_not_depend_on_how_the_text_was_cut(chunks: tuple[int, ...]) -> None:
    assert torch.allclose(tapped("gemma3", (0, 1, 2), chunks), tapped("gemma3", (0, 1, 2)), rtol=1e-9, atol=1e-9)


def test_the_last_state_is_not_normed() -> None:
    model = reference_model()
    with torch.no_grad():
        normed = model(input_ids=torch.tensor([TOKENS]), output_hidden_states=True).hidden_states[-1][0]
    found = tapped("llama", (2,))
    assert not torch.allclose(found, normed)
    with torch.no_grad():
        assert torch.allclose(model.model.norm(found), normed)


def test_rows_come_in_the_order_asked_for() -> None:
    runner = ModelRunner(prepare_model(tiny_model(), None, "tiny"), 1, 64, (0, 2))
    assert runner.taps is not None
    runner.forward([causal_group(0, 0, 15)], np.array(TOKENS))
    every = runner.taps.rows(torch.arange(15))
    index = torch.tensor([3, 14, 3, 0])
    assert torch.equal(runner.taps.rows(index), every[index])
    assert runner.taps.rows(index[:0]).shape == (0, 2 * HIDDEN)


def hooks(model: nn.Module) -> int:
    """Hooks on all modules."""
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_hooks_are_on_only_while_the_pass_runs() -> None:
    model = tiny_model()
    before = hooks(model)
    taps = LayerTaps(model, (0, 1, 2, 2))
    assert hooks(model) == before
    with taps.listening():
        assert hooks(model) == before + 3
    assert hooks(model) == before
    with pytest.raises(KeyError), taps.listening():
        raise KeyError
    assert hooks(model) == before


def test_engines_that_share_a_model_hear_their_own_passes() -> None:
    model = prepare_model(tiny_model(), None, "tiny")
    first, second = (ModelRunner(model, 1, 64, layers) for layers in ((0, 1), (2,)))
    plain = ModelRunner(model, 1, 64)
    assert plain.taps is None
    assert first.taps is not None
    assert second.taps is not None
    first.forward([causal_group(0, 0, 15)], np.array(TOKENS))
    mine = first.taps.rows(torch.arange(15))
    for runner in (second, plain):
        runner.forward([causal_group(0, 0, 4)], np.array(TOKENS[4:8]))
    assert torch.equal(first.taps.rows(torch.arange(15)), mine)
    assert second.taps.rows(torch.arange(4)).shape == (4, HIDDEN)


def test_tapping_changes_no_logits() -> None:
    model = prepare_model(tiny_model(), None, "tiny")
    logits = [
        ModelRunner(model, 1, 64, layers).forward([causal_group(0, 0, 15)], np.array(TOKENS))
        for layers in ((), (0, 1, 2))
    ]
    assert torch.equal(*logits)


@pytest.mark.parametrize("layer", [-1, 3, 40])
def test_a_layer_that_is_not_there_is_named(layer: int) -> None:
    with pytest.raises(InputError, match=f"Layer {layer} is wanted of a model with 2 layers"):
        LayerTaps(tiny_model(), (0, layer))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_list_of_layers_is_found(architecture: str) -> None:
    model: Any = tiny_model(architecture)
    assert decoder_layers(model) is model.model.layers


def test_a_model_that_keeps_its_layers_elsewhere_is_refused() -> None:
    model: Any = tiny_model()
    model.model.blocks = model.model.layers
    del model.model.layers
    with pytest.raises(InputError, match="LlamaForCausalLM keeps its 2 layers"):
        decoder_layers(model)
