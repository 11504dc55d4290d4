"""Trees of different sizes: what padding costs, and how it is told from measured passes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.cost import CostPoint, CostTable, Profile
from smartree.cost.padding import PaddingCost, UnevenPoint, fit_padding
from smartree.errors import InputError
from tests.cost.keys import KEY

VERIFY = tuple(CostPoint(b, b * n, c, 0.01 + 1e-4 * b * n) for b in (2, 4, 8) for c in (0, 256) for n in (1, 2, 4, 8))
TABLE = CostTable(VERIFY)
SHAPES = ((1, 2), (1, 3), (1, 1, 2, 2), (1, 1, 1, 5), (1,) * 7 + (9,), (1,) * 4 + (3,) * 4)
ROW = {"batch": 2, "tokens": 3, "width": 2, "context": 256, "seconds": 0.5}
COSTS = st.one_of(st.sampled_from([0.0, 1e-9, 1.0]), st.floats(0.0, 1.0))


def uneven(sizes: Sequence[int], context: int, beyond: PaddingCost) -> UnevenPoint:
    """A pass that takes what the table says of its rows, and the padding."""
    batch, tokens = len(sizes), sum(sizes)
    seconds = float(TABLE.seconds(batch, tokens, context)) + float(beyond.of(batch * max(sizes) - tokens, context))
    return UnevenPoint(batch, tokens, max(sizes), context, seconds)


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["seconds", "seconds_per_cell"])
def test_a_cost_that_is_none_is_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match="padding cost"):
        PaddingCost(**{name: value})


@given(COSTS, COSTS, st.integers(0, 5000))
def test_without_padding_there_is_nothing_to_pay(seconds: float, per_cell: float, context: int) -> None:
    cost = PaddingCost(seconds, per_cell)
    assert float(cost.of(0, context)) == 0.0
    assert cost.free == (seconds == per_cell == 0)


@given(COSTS, COSTS, st.integers(0, 3000), st.integers(0, 3000))
def test_more_padding_and_more_context_never_cost_less(
    seconds: float, per_cell: float, context: int, further: int
) -> None:
    cost, places = PaddingCost(seconds, per_cell), np.arange(200)
    times = cost.of(places, context)
    assert np.all(np.diff(times) >= 0)
    assert np.all(cost.of(places, context + further) >= times)


@pytest.mark.parametrize("places", [-3, 0, 1, 50])
def test_one_pass_is_one_of_many(places: int) -> None:
    cost = PaddingCost(1e-3, 1e-6)
    assert cost.seconds_of(places, 100) == float(cost.of(places, 100))


def test_every_row_of_padding_pays_for_the_cached_rows_it_looks_at() -> None:
    cost = PaddingCost(0.5, 1e-3)
    assert float(cost.of(1, 256)) == pytest.approx(0.756)
    assert float(cost.of(10, 256)) == pytest.approx(3.06)
    assert float(cost.of(10, 0)) == float(cost.of(10, 64)) == pytest.approx(1.14)  # so many are read at least


@given(COSTS, COSTS)
@settings(deadline=None)
def test_a_made_up_cost_is_found_again(seconds: float, per_cell: float) -> None:
    made = PaddingCost(seconds, 1e-3 * per_cell)
    found = fit_padding([uneven(sizes, context, made) for sizes in SHAPES for context in (0, 256)], TABLE)
    assert found.seconds == pytest.approx(made.seconds, rel=1e-6, abs=1e-9)
    assert found.seconds_per_cell == pytest.approx(made.seconds_per_cell, rel=1e-6, abs=1e-12)


def test_even_passes_say_nothing() -> None:
    dear = UnevenPoint(4, 8, 2, 256, 100.0)
    assert fit_padding([], TABLE).free
    assert fit_padding([dear], TABLE).free
    made = PaddingCost(1e-3, 1e-7)
    points = [uneven(sizes, 256, made) for sizes in SHAPES]
    assert fit_padding([*points, dear], TABLE) == fit_padding(points, TABLE)


def test_passes_that_take_no_longer_than_even_ones_make_padding_free() -> None:
    usual = [uneven(sizes, 256, PaddingCost()) for sizes in SHAPES]
    assert fit_padding(usual, TABLE).free
    assert fit_padding([replace(point, seconds=1e-4) for point in usual], TABLE).free


def test_a_profile_keeps_its_uneven_passes_and_what_follows_from_them() -> None:
    made = PaddingCost(1e-3, 1e-7)
    profile = Profile(KEY, VERIFY, uneven=tuple(uneven(sizes, 256, made) for sizes in SHAPES))
    again = Profile.from_json(json.loads(json.dumps(profile.to_json())))
    assert again == profile
    assert profile.to_json()["uneven"][0] == asdict(profile.uneven[0])
    assert again.cost_model().padding == profile.cost_model().padding
    assert again.cost_model().padding.seconds == pytest.approx(1e-3)


def test_a_profile_without_uneven_passes_makes_padding_free() -> None:
    for data in ({"verify": Profile(None, VERIFY).to_json()["verify"]}, Profile(KEY, VERIFY).to_json()):
        profile = Profile.from_json(data)
        assert profile.uneven == ()
        assert profile.cost_model().padding.free


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        [1],
        [None],
        [{key: value for key, value in ROW.items() if key != "width"}],
        [{key: value for key, value in ROW.items() if key != "tokens"}],
        [{key: value for key, value in ROW.items() if key != "seconds"}],
        [ROW | {"width": None}],
        [ROW | {"width": "wide"}],
        [ROW | {"width": 2.5}],
        [ROW | {"width": 1}],
        [ROW | {"width": 3}],
        [ROW | {"batch": 0, "tokens": 0}],
        [ROW | {"batch": -1, "width": -4}],
        [ROW | {"tokens": 0}],
        [ROW | {"tokens": float("inf")}],
        [ROW | {"context": "long"}],
        [ROW | {"context": -1}],
        [ROW | {"seconds": 0}],
        [ROW | {"seconds": -1}],
        [ROW | {"seconds": float("nan")}],
        [ROW | {"seconds": float("inf")}],
        [ROW, ROW | {"seconds": "slow"}],
    ],
    ids=json.dumps,
)
def test_impossible_uneven_rows_are_refused_in_one_sentence(rows: Any) -> None:
    with pytest.raises(InputError) as caught:
        Profile.from_json({"verify": [{"batch": 1, "tokens": 1, "seconds": 0.5}], "uneven": rows})
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
