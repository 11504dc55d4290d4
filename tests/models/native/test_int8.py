"""Linear layers of bytes: exact sums of rounded numbers, and a row's result whatever rows are beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from smartree.models.native.int8 import Int8Linear, fits_int8, quantise
from smartree.models.native.matrix import NativeLinear
from smartree.models.pages import LargePages
from smartree.models.surgery import weight_of
from tests.models.native.small import needs_int8, needs_kernels, threads
from tests.models.native.test_matrix import OwnLinear, plain_linear, states

SIZES = [(32, 32), (64, 97), (96, 1), (128, 260), (576, 33)]
"""Inputs and outputs; inputs are multiples of 32."""


def rounded_rows(rows: torch.Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """[N, inputs] whole numbers of steps, and [N, 1] steps; a row of nothing to speak of is zeros."""
    wide = rows.float().numpy()
    largest = np.abs(wide).max(axis=1, keepdims=True)
    nothing = largest < np.float32(1e-30)
    inverse = np.float32(127) / np.where(nothing, np.float32(1), largest)
    codes = np.where(nothing, 0, np.rint(wide * inverse)).astype(np.int64)
    return codes, np.where(nothing, np.float32(0), largest / np.float32(127))


def product(linear: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """What a layer of bytes is to give, bit for bit."""
    wide = linear.weight.float().numpy()
    steps = np.abs(wide).max(axis=1) / np.float32(127)
    weight = np.rint(wide / np.where(steps > 0, steps, np.float32(1))[:, None]).astype(np.int64)
    codes, factors = rounded_rows(rows)
    result = (codes @ weight.T).astype(np.float32) * (factors * steps)
    if linear.bias is not None:
        result = result + linear.bias.float().numpy()
    return torch.from_numpy(result).to(torch.bfloat16)


@given(st.integers(0, 2**16), st.integers(1, 5), st.integers(1, 40), st.sampled_from([1e-6, 1.0, 1e6]))
@settings(deadline=None, max_examples=60)
def test_weights_are_rounded_to_the_nearest_of_255_numbers(seed: int, outputs: int, inputs: int, size: float) -> None:
    weight = (size * torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))).to(torch.bfloat16)
    codes, steps = quantise(weight)
    assert codes.dtype == torch.int8
    assert (codes.shape, steps.shape) == (weight.shape, (outputs,))
    exact, unit = weight.double(), steps.double()[:, None]
    assert torch.all((codes.double() * unit - exact).abs() <= unit * (0.5 + 1e-4))
    assert torch.equal(codes.int().abs().amax(dim=1), torch.full((outputs,), 127, dtype=torch.int32))


def test_outputs_without_weights_are_zeros() -> None:
    weight = torch.zeros(3, 8)
    weight[1, 2] = -2.0
    codes, steps = quantise(weight)
    assert codes.tolist() == [[0] * 8, [0, 0, -127, 0, 0, 0, 0, 0], [0] * 8]
    assert steps.tolist() == [0.0, pytest.approx(2 / 127), 0.0]


@needs_int8
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_the_product_of_the_rounded_numbers_bit_for_bit(inputs: int, outputs: int, bias: bool) -> None:
    plain = plain_linear(inputs, outputs, bias)
    layer = Int8Linear(plain, LargePages())
    for rows in (*range(1, 31), 48, 61):
        given = states(rows, inputs, seed=rows) * 10.0 ** (rows % 7 - 3)
        found = layer(given)
        assert found.shape == (rows, outputs)
        assert torch.equal(found, product(plain, given)), rows


@needs_int8
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_it_is_near_the_product_that_was_not_rounded(inputs: int, outputs: int) -> None:
    plain = plain_linear(inputs, outputs, True)
    given = states(200, inputs)
    exact = given.double() @ plain.weight.double().T + plain.bias.double()
    error = (Int8Linear(plain, LargePages())(given).double() - exact).square().mean().sqrt()
    # The largest of a few hundred normal numbers is three times their deviation, and a step a 127th of that; an error
    # uniform in a step has a deviation of 0.29 steps, or 0.7 %. Two of them and the result's own rounding: 1 to 1.2 %.
    assert 1e-3 < error / exact.std() < 0.015


@needs_int8
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_a_rows_result_does_not_depend_on_the_rows_beside_it(inputs: int, outputs: int) -> None:
    layer = Int8Linear(plain_linear(inputs, outputs, True), LargePages())
    given = states(131, inputs) * torch.logspace(-3, 3, 131).to(torch.bfloat16)[:, None]
    alone = torch.cat([layer(row[None]) for row in given])
    for rows in (*range(1, 31), 48, 63, 100, 131):
        assert torch.equal(layer(given[131 - rows :]), alone[131 - rows :]), rows


@needs_int8
@pytest.mark.parametrize("given", [None, 1])
@pytest.mark.parametrize("outputs", [1, 32, 97, 160])
def test_threads_do_not_change_the_result(outputs: int, given: int | None) -> None:
    layer = Int8Linear(plain_linear(64, outputs, True), LargePages())
    for rows in (1, 7, 47, 48, 100):
        inputs = states(rows, 64, seed=rows)
        alone = layer(inputs)
        with threads(2, given=given):
            assert torch.equal(layer(inputs), alone), rows


@needs_int8
@pytest.mark.parametrize("small", [0.0, -0.0, 1e-31, 1e-39])
def test_a_row_of_nothing_gives_the_bias(small: float) -> None:
    plain = plain_linear(64, 40, True)
    given = states(3, 64)
    given[1] = small
    found = Int8Linear(plain, LargePages())(given)
    assert torch.equal(found[1], plain.bias)
    assert torch.equal(found, product(plain, given))
    assert Int8Linear(plain_linear(64, 40, False), LargePages())(given)[1].count_nonzero() == 0


@needs_int8
def test_no_number_in_a_row_stays_in_that_row() -> None:
    plain = plain_linear(64, 40, True)
    given = states(4, 64)
    expected = product(plain, given)
    given[1, 5], given[2, 7] = float("nan"), float("inf")
    found = Int8Linear(plain, LargePages())(given)
    assert not torch.isfinite(found[1:3]).any()
    assert torch.equal(found[[0, 3]], expected[[0, 3]])


@needs_int8
@pytest.mark.parametrize("inputs", [32, 2**16])
def test_sums_of_the_largest_numbers_do_not_overflow(inputs: int) -> None:
    """All products 127 * 127, of both signs, and of one sign while the codes of inputs are the largest or smallest."""
    plain = nn.Linear(inputs, 3, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    plain.weight[:] = torch.tensor([1.0, -1.0, 1.0])[:, None]
    plain.weight[2, ::2] = -1.0
    given = torch.ones(4, inputs, dtype=torch.bfloat16)
    given[1] = -1
    given[2, ::2] = -1
    given[3, : inputs // 2] = -1
    found = Int8Linear(plain, LargePages())(given)
    assert torch.equal(found, product(plain, given))
    assert found.tolist() == [[inputs, -inputs, 0], [-inputs, inputs, 0], [0, 0, inputs], [0, 0, 0]]


@needs_int8
def test_any_shape_and_layout_of_inputs_is_taken() -> None:
    layer = Int8Linear(plain_linear(64, 40, True), LargePages())
    given = states(2, 3, 64)
    expected = layer(given.reshape(6, 64)).reshape(2, 3, 40)
    assert torch.equal(layer(given), expected)
    assert torch.equal(layer(given.transpose(0, 1)), expected.transpose(0, 1))
    assert layer(given[:, :0]).shape == (2, 0, 40)


@needs_int8
def test_the_rounded_weight_is_given_back_as_a_copy() -> None:
    plain = plain_linear(64, 97, True)
    layer = Int8Linear(plain, LargePages())
    codes, steps = quantise(plain.weight)
    layer.dense().zero_()
    assert torch.equal(weight_of(layer), (codes * steps[:, None]).to(torch.bfloat16))
    assert layer.packed.nbytes == NativeLinear(plain, LargePages()).packed.nbytes // 2


@needs_kernels
def test_layers_in_bfloat16_are_left_as_they_are() -> None:
    matrix = NativeLinear(plain_linear(64, 97, True), LargePages()).matrix
    assert (matrix.scale, matrix.offset) == (None, None)


@pytest.mark.parametrize(
    ("module", "fitting"),
    [
        (nn.Linear(32, 5).to(torch.bfloat16), True),
        (nn.Linear(2**16, 1, bias=False).to(torch.bfloat16), True),
        (nn.Linear(2**16 + 32, 1).to(torch.bfloat16), False),
        (nn.Linear(48, 5).to(torch.bfloat16), False),
        (nn.Linear(32, 5), False),
        (OwnLinear(32, 5).to(torch.bfloat16), False),
        (nn.Identity(), False),
    ],
)
def test_which_layers_fit(module: nn.Module, fitting: bool) -> None:
    assert fits_int8(module) == fitting
