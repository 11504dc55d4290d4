"""Isotonic regression against scipy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from smartree.cost.isotonic import isotonic

PAIRS = st.lists(st.tuples(st.floats(-10, 10), st.floats(0.01, 100)), min_size=1, max_size=20)


@given(PAIRS)
@settings(deadline=None, max_examples=200)
def test_it_is_the_regression_of_scipy(pairs: list[tuple[float, float]]) -> None:
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    np.testing.assert_allclose(isotonic(values, weights), isotonic_regression(values, weights=weights).x, atol=1e-9)


def test_values_that_rise_already_stay() -> None:
    assert isotonic(np.array([1.0, 1.0, 3.0]), np.ones(3)).tolist() == [1.0, 1.0, 3.0]
    assert isotonic(np.array([3.0, 1.0, 4.0]), np.array([1.0, 3.0, 1.0])).tolist() == [1.5, 1.5, 4.0]
