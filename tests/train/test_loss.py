"""The loss with frozen output rows is plain cross-entropy, gradient included."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear, log_softmax

from smartree.train.loss import frozen_rows_loss


def case(rows: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Rows [R, 12], output rows [30, 12], probabilities [R + 5, 30] that do not add up to 1, places [R]."""
    draw = torch.Generator().manual_seed(rows)
    states = torch.randn(rows, 12, generator=draw).to(dtype)
    weight = torch.randn(30, 12, generator=draw).to(dtype)
    wanted = torch.softmax(3 * torch.randn(rows + 5, 30, generator=draw), -1) * 0.9
    places = torch.randperm(rows + 5, generator=draw)[:rows]
    return states, weight, wanted, places


def plain(states: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The definition, in float64."""
    return -(wanted[places].double() * log_softmax(linear(states.double(), weight.double()), -1)).sum()


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
def test_value_and_gradient(rows: int) -> None:
    states, weight, wanted, places = case(rows)
    mine, theirs = states.clone().requires_grad_(), states.clone().requires_grad_()
    loss, expected = frozen_rows_loss(mine, weight, wanted, places), plain(theirs, weight, wanted, places)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    (0.3 * loss).backward()
    (0.3 * expected).backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_the_gradient_by_small_steps() -> None:
    """The same without autograd's help."""
    states, weight, wanted, places = case(3)
    mine = states.clone().requires_grad_()
    frozen_rows_loss(mine, weight, wanted, places).backward()
    assert mine.grad is not None
    step = 1e-5
    for row, column in [(0, 0), (1, 7), (2, 11)]:
        change = torch.zeros_like(states, dtype=torch.float64)
        change[row, column] = step
        up, down = (plain(states.double() + sign * change, weight, wanted, places) for sign in (1, -1))
        assert mine.grad[row, column].item() == pytest.approx((up - down).item() / (2 * step), rel=1e-3, abs=1e-5)


def test_a_place_may_be_wanted_several_times() -> None:
    states, weight, wanted, _ = case(4)
    places = torch.tensor([2, 2, 0, 2])
    loss = frozen_rows_loss(states, weight, wanted, places)
    assert loss.item() == pytest.approx(plain(states, weight, wanted, places).item(), rel=1e-5)


def test_bfloat16_rows_are_close() -> None:
    states, weight, wanted, places = case(70)
    narrow = weight.to(torch.bfloat16)
    mine = states.clone().requires_grad_()
    theirs = states.clone().requires_grad_()
    loss = frozen_rows_loss(mine, narrow, wanted.to(torch.bfloat16), places)
    expected = plain(theirs, narrow, wanted.to(torch.bfloat16), places)
    assert loss.item() == pytest.approx(expected.item(), rel=2e-2)
    loss.backward()
    expected.backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    assert mine.grad.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(mine.grad.flatten(), theirs.grad.flatten(), 0) > 0.999


def test_no_rows_cost_nothing() -> None:
    states, weight, wanted, places = case(2)
    empty = states[:0].clone().requires_grad_()
    loss = frozen_rows_loss(empty, weight, wanted, places[:0])
    loss.backward()
    assert loss.item() == 0
    assert empty.grad is not None


def test_output_rows_and_targets_learn_nothing() -> None:
    states, weight, wanted, places = case(5)
    weight.requires_grad_()
    wanted.requires_grad_()
    frozen_rows_loss(states.requires_grad_(), weight, wanted, places).backward()
    assert weight.grad is None
    assert wanted.grad is None
