"""Isotonic regression of a few values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def isotonic(values: Floats, weights: Floats) -> Floats:
    """The nondecreasing values closest to these (weighted least squares); scipy's costs more to call than this takes.

    Args:
        values: [n] in their order.
        weights: [n] positive.
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        size = 1
        while blocks and blocks[-1][0] > value:
            other, other_weight, other_size = blocks.pop()
            value = (value * weight + other * other_weight) / (weight + other_weight)
            weight, size = weight + other_weight, size + other_size
        blocks.append((value, weight, size))
    if len(blocks) == len(values):
        return values
    return np.repeat([block[0] for block in blocks], [block[2] for block in blocks])
