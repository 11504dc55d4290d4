"""A head in the native kernels: near the torch path, bit-identical alone and in a batch, whatever its switches.

In 8 bits where the processor multiplies them, and in bfloat16 as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from smartree.drafters.eagle3.native import native_fits
from smartree.drafters.eagle3.runner import HeadRunner, LoadedHead
from smartree.models.load import LoadedModel, prepare_model
from smartree.models.native import int8
from smartree.models.native.decoder import NativeOutput, NativeRunner
from smartree.models.native.int8 import Int8Linear
from smartree.models.native.library import library
from smartree.models.native.matrix import NativeLinear
from smartree.models.packed_pass import causal_group
from smartree.tree.forest import Forest
from tests.drafters.eagle3.heads import LLAMA3, listening_drafter, tiny_head, tiny_spec
from tests.drafters.grown import Text, grow_all
from tests.models.native.small import (
    HIDDEN,
    NATIVE_SIZES,
    native_model,
    native_target,
    needs_int8,
    needs_kernels,
    random_tokens,
    random_trees,
    tree_group,
)

pytestmark = needs_kernels
EVERYTHING: dict[str, Any] = {
    "norm_before_residual": True,
    "fc_norm": True,
    "norm_output": True,
    "qk_norm": True,
    "attention_bias": True,
    "mlp_bias": True,
    "layers": 2,
    "rope": LLAMA3,
    "borrowed": frozenset[str](),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "qk_norm": {"qk_norm": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "layers": {"layers": 2},
    "everything": EVERYTHING,
}
WINDOW = 75


@cache
def target() -> LoadedModel:
    return native_target()


def spec_of(variant: str) -> Any:
    return tiny_spec(**(NATIVE_SIZES | VARIANTS[variant]))


@cache
def native(variant: str) -> LoadedHead:
    head = tiny_head(target(), spec_of(variant))
    assert head.native
    return head


@cache
def in_bfloat16(variant: str) -> LoadedHead:
    """As where the processor multiplies no bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library(), "takes_int8", False)
        head = tiny_head(target(), spec_of(variant))
    assert head.native
    return head


HEADS = [pytest.param(native, id="own"), pytest.param(in_bfloat16, id="bfloat16")]


def in_torch(variant: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> LoadedHead:
    """The same weights, rounded to bfloat16 first, as torch runs them."""
    with monkeypatch.context() as patch:
        patch.setattr("smartree.models.native.library._outcome", lambda: "not for this one")
        model = prepare_model(native_model(dtype=dtype), None, "torch")
        head = tiny_head(model, spec_of(variant))
        if dtype != torch.bfloat16:
            weights = {name: weight.bfloat16().to(dtype) for name, weight in head.head.state_dict().items()}
            head.head.load_state_dict(weights, assign=True)
            head.head.requires_grad_(False)
    assert not head.native
    return head


def levels(head: LoadedHead) -> list[torch.Tensor]:
    """Features, states and logits of a prompt and of a tree below it whose nodes read their parents' states."""
    draw = np.random.default_rng(5)
    runner = HeadRunner(head, 1, WINDOW, WINDOW)
    tapped = torch.from_numpy(draw.normal(size=(20, 3 * HIDDEN))).bfloat16().to(head.dtype)
    features = runner.features(tapped)
    states, normed = runner.forward([causal_group(0, 0, 20)], random_tokens(draw, 20), features)
    outputs = [features, states, runner.logits(normed)]
    packed = random_trees(draw, [11])
    above = states[torch.from_numpy(draw.integers(0, 20, 12))]
    states, normed = runner.forward([tree_group([0], [20], packed)], packed.tokens, above)
    return [*outputs, states, runner.logits(normed)]


def test_reading_ahead_asks_for_no_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[NativeOutput] = []
    head, run = in_bfloat16("plain"), NativeRunner.run

    def noted(self: NativeRunner, *args: Any, **settings: Any) -> NativeOutput:
        outputs.append(run(self, *args, **settings))
        return outputs[-1]

    monkeypatch.setattr(NativeRunner, "run", noted)
    levels(head)
    assert [(output.logits, output.best) for output in outputs] == [(None, None)] * 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_and_logits_are_as_near_to_float32_as_torchs_own(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = levels(in_torch(variant, torch.float32, monkeypatch))
    mine, theirs = levels(in_bfloat16(variant)), levels(in_torch(variant, torch.bfloat16, monkeypatch))
    for one, other, wanted in zip(mine, theirs, exact, strict=True):
        assert one.shape == other.shape == wanted.shape
        assert one.dtype == torch.bfloat16
        errors = [float((found.float() - wanted).abs().mean() / wanted.std()) for found in (one, other)]
        assert errors[0] <= 1.5 * errors[1] + 1e-3
        assert errors[0] < 0.05


@needs_int8
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_int8_they_are_near_float32(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of rounded inputs with rounded weights is off by 1 % (`test_int8`); a tree's logits have a dozen behind
    them, of which each adds to a residual stream or is normed, so a mean of less than 5 % of their deviation.
    """
    exact = levels(in_torch(variant, torch.float32, monkeypatch))
    mine, others = levels(native(variant)), levels(in_bfloat16(variant))
    assert torch.equal(mine[0], others[0])  # `fc` stays in bfloat16
    for one, other, wanted in zip(mine[1:], others[1:], exact[1:], strict=True):
        assert not torch.equal(one, other)
        assert float((one.float() - wanted).abs().mean() / wanted.std()) < 0.05


@needs_int8
def test_layers_and_output_rows_are_stored_in_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = dict(native("everything").head.named_modules())
    small = {name for name, module in modules.items() if isinstance(module, Int8Linear)}
    assert {name for name, module in modules.items() if isinstance(module, NativeLinear)} - small == {"fc"}
    assert len(small) == 2 * 7 + 1
    # Profiles of the two are not mixed up.
    assert native("everything").fingerprint == in_bfloat16("everything").fingerprint + "-int8"
    monkeypatch.setattr(int8, "_MOST_INPUTS", HIDDEN)  # too few for the first layer, which reads twice as many
    for head in (in_bfloat16("everything"), tiny_head(target(), spec_of("everything"))):
        assert head.native
        assert not any(isinstance(module, Int8Linear) for module in head.head.modules())


@pytest.mark.parametrize("native", HEADS)
@pytest.mark.parametrize("variant", ["plain", "everything"])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(variant: str, native: Callable[[str], LoadedHead]) -> None:
    draw = np.random.default_rng(6)
    sizes, lengths = [7, 0, 12], [19, 3, 40]
    packed = random_trees(draw, sizes)
    together = HeadRunner(native(variant), 3, WINDOW, WINDOW)
    tapped = torch.from_numpy(draw.normal(size=(sum(lengths) + len(packed.nodes), 3 * HIDDEN))).bfloat16()
    features, tokens = together.features(tapped), random_tokens(draw, sum(lengths))
    starts = np.cumsum([0, *lengths])
    chunks = [causal_group(slot, 0, length) for slot, length in enumerate(lengths)]
    _, read = together.forward(chunks, tokens, features[: starts[-1]])
    states, normed = together.forward([tree_group([0, 1, 2], lengths, packed)], packed.tokens, features[starts[-1] :])
    logits = together.logits(normed)
    for request, (start, end) in enumerate(pairwise(starts.tolist())):
        alone = HeadRunner(native(variant), 1, WINDOW, WINDOW)
        for place in range(start, end):
            feature = alone.features(tapped[place : place + 1])
            _, one = alone.forward([causal_group(0, place - start, 1)], tokens[place : place + 1], feature)
            assert torch.equal(one[0], read[place])
        first, last = packed.starts[request], packed.starts[request + 1]
        path = [int(first)]  # the chain of first children
        while children := [row for row in range(first, last) if packed.parents[row] == path[-1]]:
            path.append(children[0])
        for depth, row in enumerate(path):
            feature = features[starts[-1] + row][None]
            group = causal_group(0, end - start + depth, 1)
            state, one = alone.forward([group], packed.tokens[row : row + 1], feature)
            assert torch.equal(state[0], states[row])
            assert torch.equal(alone.logits(one)[0], logits[row])


def test_the_drafter_proposes_the_same_alone_and_in_a_batch() -> None:
    """Whole levels, from hidden states of the target to candidates; texts of different lengths."""
    draw = np.random.default_rng(7)
    texts = [Text(place, random_tokens(draw, length).tolist()) for place, length in enumerate((3, 30, 11))]

    def grown(group: list[Text]) -> Forest:
        drafter, listener = listening_drafter(target(), native("everything"))
        listener.hear(group)
        return grow_all(drafter, group, levels=3, width=5)

    def nodes(forest: Forest, request: int) -> list[tuple[int, int, float]]:
        mine = np.flatnonzero(forest.request == request)
        parts = forest.depth[mine], forest.token[mine], forest.path[mine]
        return list(zip(*(part.tolist() for part in parts), strict=True))

    together = grown(texts)
    for text in texts:
        alone = nodes(grown([text]), 0)
        assert nodes(together, text.id) == alone
        assert len(alone) > 20


@pytest.mark.parametrize(
    "changes",
    [
        {"intermediate_size": 80},
        {"head_dim": 16},
        {"activation": "gelu"},
        {"heads": 32, "kv_heads": 1},
    ],
)
def test_other_heads_run_in_torch(changes: dict[str, Any]) -> None:
    head = tiny_head(target(), tiny_spec(**(NATIVE_SIZES | changes)))
    assert not head.native
    logits = levels(head)[-1]
    assert bool(torch.isfinite(logits.float()).all())


def test_a_float32_head_does_not_fit() -> None:
    model = prepare_model(native_model(dtype=torch.float32), None, "float32")
    head = tiny_head(model, spec_of("plain"))
    assert not head.native
    assert not native_fits(head.spec, head.head)
