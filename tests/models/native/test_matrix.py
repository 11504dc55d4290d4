"""Packed linear layers: the same products, and a row's result whatever rows are beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from smartree.models.native.groups import Gathered
from smartree.models.native.int8 import Int8Linear
from smartree.models.native.library import library
from smartree.models.native.matrix import NativeLinear, fits, pack, unpack
from smartree.models.pages import LargePages
from tests.models.native.small import needs_kernels, threads

SIZES = [(64, 96), (32, 97), (128, 1), (2, 31), (62, 33), (96, 260)]
"""Inputs and outputs; only the inputs must be even."""


def plain_linear(inputs: int, outputs: int, bias: bool, seed: int = 0) -> nn.Linear:
    draw = torch.Generator().manual_seed(seed)
    linear = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        for weight in linear.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw))
    return linear.to(torch.bfloat16).requires_grad_(False)


def states(*size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@given(st.integers(1, 140), st.integers(1, 40), st.sampled_from([torch.bfloat16, torch.float32]))
@settings(deadline=None, max_examples=60)
def test_unpacking_undoes_packing(outputs: int, pairs: int, dtype: torch.dtype) -> None:
    weight = torch.randn(outputs, 2 * pairs).to(dtype)
    packed = pack(weight, LargePages(2**12))
    assert packed.shape == (-(-outputs // 32), pairs, 32, 2)
    assert torch.equal(unpack(packed, outputs), weight)
    assert float(packed.abs().double().sum()) == pytest.approx(float(weight.abs().double().sum()))  # zeros beside


@pytest.mark.parametrize("rows_of", ["one by one", "strided"])
def test_where_a_weight_lies_does_not_matter_for_packing(rows_of: str) -> None:
    weight = states(40, 24)
    given = weight if rows_of == "one by one" else torch.stack([weight, weight], dim=2)[:, :, 1]
    assert torch.equal(unpack(pack(given, LargePages()), 40), weight)


@needs_kernels
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_the_product_of_the_same_numbers_rounded_once(inputs: int, outputs: int, bias: bool) -> None:
    plain = plain_linear(inputs, outputs, bias)
    native = NativeLinear(plain, LargePages())
    weight, shift = plain.weight.double(), plain.bias.double() if bias else 0.0
    for rows in range(1, 31):
        given = states(rows, inputs, seed=rows)
        exact = given.double() @ weight.T + shift
        found = native(given)
        assert found.shape == (rows, outputs)
        assert found.dtype == torch.bfloat16
        # Half a step of bfloat16 for the result, and what float32 sums lose where terms cancel.
        lost = 1e-5 * (given.double().abs() @ weight.abs().T + 1)
        assert torch.all((found.double() - exact).abs() <= exact.abs() * 2**-8 + lost)


@needs_kernels
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_a_rows_result_does_not_depend_on_the_rows_beside_it(inputs: int, outputs: int, bias: bool) -> None:
    native = NativeLinear(plain_linear(inputs, outputs, bias), LargePages())
    given = states(131, inputs)
    alone = torch.cat([native(row[None]) for row in given])
    for rows in (*range(1, 31), 48, 63, 100, 131):
        assert torch.equal(native(given[131 - rows :]), alone[131 - rows :]), rows


@needs_kernels
@pytest.mark.parametrize("given", [None, 1])
@pytest.mark.parametrize("outputs", [1, 32, 97, 160])
def test_threads_do_not_change_the_result(outputs: int, given: int | None) -> None:
    """Nor does it matter whether as many come as were asked for."""
    native = NativeLinear(plain_linear(64, outputs, True), LargePages())
    for rows in (1, 7, 47, 48, 100):
        inputs = states(rows, 64, seed=rows)
        alone = native(inputs)
        with threads(2, given=given):
            assert torch.equal(native(inputs), alone), rows


@needs_kernels
@pytest.mark.parametrize("int8", [False, True])
def test_chosen_rows_of_a_table_are_read_where_they_lie(int8: bool) -> None:
    if int8 and not library().takes_int8:
        pytest.skip("this processor does not multiply bytes")
    native = (Int8Linear if int8 else NativeLinear)(plain_linear(64, 40, True), LargePages())
    table = states(9, 64)
    for rows in ([0], [8, 8, 3], [5, 4, 3, 2, 1, 0], [9, 1]):  # what lies beyond stands for row 0
        wanted = table[[row if row < 9 else 0 for row in rows]]
        assert torch.equal(native.of_rows(Gathered(table, np.array(rows))), native(wanted))
    assert torch.equal(native.of_rows(Gathered(table)), native(table))


@needs_kernels
def test_any_shape_and_layout_of_inputs_is_taken() -> None:
    native = NativeLinear(plain_linear(64, 40, True), LargePages())
    given = states(2, 3, 64)
    expected = native(given.reshape(6, 64)).reshape(2, 3, 40)
    assert torch.equal(native(given), expected)
    assert torch.equal(native(given.transpose(0, 1)), expected.transpose(0, 1))
    assert torch.equal(native(torch.stack([given, given], dim=-1)[..., 0]), expected)
    assert native(given[:, :0]).shape == (2, 0, 40)


@needs_kernels
def test_the_weight_is_given_back_as_a_copy() -> None:
    plain = plain_linear(64, 97, True)
    native = NativeLinear(plain, LargePages())
    native.dense().zero_()
    assert torch.equal(native.dense(), plain.weight)
    assert (native.in_features, native.out_features) == (64, 97)


class OwnLinear(nn.Linear):
    """Something else, maybe."""


@pytest.mark.parametrize(
    ("module", "fitting"),
    [
        (nn.Linear(8, 5).to(torch.bfloat16), True),
        (nn.Linear(8, 5, bias=False).to(torch.bfloat16), True),
        (nn.Linear(7, 5).to(torch.bfloat16), False),
        (nn.Linear(8, 5), False),
        (nn.Linear(8, 5).to(torch.float16), False),
        (OwnLinear(8, 5).to(torch.bfloat16), False),
        (nn.Linear(8, 5, device="meta", dtype=torch.bfloat16), False),
        (nn.Identity(), False),
    ],
)
def test_plain_bfloat16_layers_with_an_even_number_of_inputs_fit(module: nn.Module, fitting: bool) -> None:
    assert fits(module) == fitting
