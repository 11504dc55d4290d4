"""The exact scan: the best number of nodes of the best-first order, at a price or by the step's own ratio."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Choice:
    """Result of a scan.

    Attributes:
        count: nodes to take from the front of the best-first order.
        tokens: expected tokens committed by the batch.
        seconds: modelled seconds of the step.
    """

    count: int
    tokens: float
    seconds: float


def by_width(requests: Ints, paths: Floats, batch: int) -> tuple[Ints, Floats, Ints]:
    """Best-first order for engines that pad every request to one width: the scan then runs over the width.

    Args:
        requests: [M] request of each node, in best-first order.
        paths: [M] their path probabilities.
        batch: number of requests.

    Returns:
        [M] the nodes' places, all requests' best ones first, then all second ones, and so on; [W] what each width
        adds to the expected tokens; [W + 1] how many nodes the first 0, 1, ... W widths hold.
    """
    grouped = np.argsort(requests, kind="stable")
    sizes = np.bincount(requests, minlength=batch)
    width = np.empty(len(requests), np.int64)
    width[grouped] = np.arange(len(requests)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    gains = np.bincount(width, weights=paths)
    counts = np.concatenate([[0], np.cumsum(np.bincount(width))])
    return np.argsort(width, kind="stable").astype(np.int64), gains.astype(np.float64), counts.astype(np.int64)


def scan(paths: Floats, seconds: Floats, batch: int, price: float | None = None) -> Choice:
    """The exact optimum over all forests, for a cost that depends on the number of verified tokens only.

    Args:
        paths: [M] path probabilities in best-first order, or what each width adds for a padded engine.
        seconds: [M + 1] seconds of the whole step if 0, 1, ... M nodes are verified.
        batch: requests, each of which commits one token anyway.
        price: tokens per second the step's time is worth; None maximises the step's own tokens per second.

    Scans to the end: measured costs have plateaus and steps, so the first node that does not pay is no reason to
    stop (design 3.2, statement 2). The smallest of equal sizes wins.
    """
    tokens = np.empty(len(paths) + 1)
    tokens[0] = batch
    np.cumsum(paths, out=tokens[1:])
    tokens[1:] += batch
    value = tokens / seconds if price is None else tokens - price * seconds
    count = int(np.argmax(value))
    return Choice(count, float(tokens[count]), float(seconds[count]))
