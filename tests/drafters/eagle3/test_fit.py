"""A head meets a target: what must fit, what is borrowed, what surgery leaves unchanged."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from smartree.drafters.eagle3.checkpoint import Eagle3Checkpoint
from smartree.drafters.eagle3.head import Eagle3Head
from smartree.drafters.eagle3.runner import LoadedHead, input_rows, output_rows
from smartree.errors import InputError
from smartree.models.load import LoadedModel, prepare_model
from smartree.models.native.library import why_not
from smartree.models.native.matrix import NativeLinear
from smartree.models.surgery import PrepackedLinear
from tests.drafters.eagle3.heads import random_table, random_weights, tiny_checkpoint, tiny_head, tiny_spec, tiny_target
from tests.models.native.small import NATIVE_SIZES, native_model
from tests.tiny import VOCAB, reference_model


@cache
def target() -> LoadedModel:
    return tiny_target()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_hidden_size": 64, "borrowed": frozenset[str]()}, ["size 64", "has 32"]),
        ({"hidden_size": 64, "target_hidden_size": 64}, ["size 64", "has 32"]),
        ({"vocab_size": 98}, ["98 tokens", "has 97"]),
        ({"feature_layers": (0, 1, 3)}, ["layers [0, 1, 3]", "has 2"]),
        ({"feature_layers": (-1, 0, 1)}, ["layers [-1, 0, 1]", "has 2"]),
        ({"feature_layers": ()}, ["layers [2, 1, -1]", "has 2"]),
    ],
)
def test_a_head_for_another_model_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        tiny_head(target(), tiny_spec(**changes))
    message = str(error.value)
    assert "\n" not in message
    assert "'tiny head'" in message
    assert "'tiny llama'" in message
    assert all(word in message for word in words)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("draft_vocab", [40, 90])
def test_borrowed_rows_are_the_targets(draft_vocab: int, dtype: torch.dtype) -> None:
    """Of 90 tokens that have the target's numbers, and of 40 with numbers of their own."""
    model = tiny_target(dtype=dtype)
    spec = tiny_spec(vocab_size=90, draft_vocab_size=draft_vocab, borrowed=frozenset({"embed_tokens", "lm_head"}))
    table = random_table(spec)
    head = LoadedHead(Eagle3Checkpoint(spec, random_weights(spec), table, ""), model, "borrower")
    ids = torch.arange(90) if table is None else table
    rows = reference_model(dtype=dtype).get_output_embeddings().weight.detach()[ids]
    states = torch.randn(3, 32).to(dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 5e-2
    with torch.no_grad():
        assert torch.allclose(head.head.lm_head(states), states @ rows.T, rtol=tolerance, atol=tolerance)
    embeddings = reference_model(dtype=dtype).get_input_embeddings().weight.detach()
    assert torch.equal(head.embed(np.arange(VOCAB)), embeddings)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_rows_of_a_target_whatever_surgery_did_to_it(architecture: str) -> None:
    model, original = tiny_target(architecture), reference_model(architecture)
    assert torch.equal(output_rows(model), original.get_output_embeddings().weight)
    assert torch.equal(input_rows(model), original.get_input_embeddings().weight)


def test_the_head_takes_the_targets_type_and_stands_still() -> None:
    head = tiny_head(target()).head
    assert {weight.dtype for weight in head.parameters()} == {torch.float64}
    assert not any(weight.requires_grad for weight in head.parameters())
    assert not any(weight.is_meta for weight in head.parameters())


MULTIPLIES_BF16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.mark.skipif(not MULTIPLIES_BF16, reason="this CPU does not multiply bfloat16")
def test_a_bfloat16_head_is_prepacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smartree.models.native.library._outcome", lambda: "no compiler")
    head = tiny_head(tiny_target(dtype=torch.bfloat16)).head
    assert isinstance(head.fc, PrepackedLinear)
    assert isinstance(head.lm_head, PrepackedLinear)
    assert sum(isinstance(module, PrepackedLinear) for module in head.modules()) == 6  # q/k/v and gate/up are merged


@pytest.mark.skipif(why_not() is not None, reason=f"no native kernels: {why_not()}")
def test_the_products_of_a_bfloat16_head_run_in_the_kernels() -> None:
    """Merged ones if its sizes do not let the kernels run whole levels."""
    loaded = tiny_head(tiny_target(dtype=torch.bfloat16))
    assert not loaded.native
    assert sum(isinstance(module, NativeLinear) for module in loaded.head.modules()) == 6
    target = prepare_model(native_model(), None, "tiny")
    loaded = tiny_head(target, tiny_spec(**NATIVE_SIZES))
    assert loaded.native
    assert sum(isinstance(module, NativeLinear) for module in loaded.head.modules()) == 9


def test_merging_changes_no_output() -> None:
    spec = tiny_spec(attention_bias=True, mlp_bias=True)
    plain = Eagle3Head(spec).double()
    plain.load_state_dict(random_weights(spec))
    merged = tiny_head(target(), spec).head
    generator = torch.Generator().manual_seed(0)
    embeddings, features = torch.randn(2, 1, 5, 32, generator=generator, dtype=torch.float64)
    rotation = torch.randn(2, 5, 8, generator=generator, dtype=torch.float64)

    def attend(_layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (query + key.repeat_interleave(2, 1) * value.repeat_interleave(2, 1)).transpose(1, 2)

    with torch.no_grad():
        for mine, theirs in zip(
            merged(embeddings, features, (rotation[0], rotation[1]), attend),
            plain(embeddings, features, (rotation[0], rotation[1]), attend),
            strict=True,
        ):
            assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def test_the_name_and_the_fingerprint_are_the_checkpoints() -> None:
    head = tiny_head(target(), seed=3)
    assert (head.name, head.fingerprint) == ("tiny head", tiny_checkpoint(tiny_spec(), 3).fingerprint)
    assert head.feature_layers == (0, 1, 2)
