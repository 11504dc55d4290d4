"""Whether looking up pays, by what it brought."""

from __future__ import annotations

from smartree.policies.planting import Planting


def steps(planting: Planting, tokens: float, count: int, alone: bool = True) -> int:
    """How many of so many steps looked up."""
    looked = 0
    for _ in range(count):
        if planting.wanted(alone):
            looked += 1
            planting.observe(4, tokens)
    return looked


def test_it_is_believed_to_pay_until_it_is_known_not_to() -> None:
    planting = Planting()
    assert steps(planting, -1.0, 8) == 8
    assert not planting.pays
    assert steps(planting, -1.0, 80) == 10  # a look in eight steps


def test_what_pays_is_looked_up_always_and_comes_back_soon() -> None:
    planting = Planting()
    assert steps(planting, 0.5, 100) == 100
    steps(planting, -0.5, 200)
    assert not planting.pays
    assert steps(planting, 8.0, 100) > 60  # a text that quotes: a few looks are enough


def test_nobody_looks_beside_prompts_which_tell_nothing() -> None:
    planting = Planting()
    steps(planting, -1.0, 20)
    assert steps(planting, -1.0, 50, alone=False) == 0
    assert steps(Planting(), 1.0, 50, alone=False) == 50


def test_one_stalled_step_is_no_verdict() -> None:
    planting = Planting()
    steps(planting, 1.0, 40)
    planting.observe(4, -1e9)
    assert planting.pays
