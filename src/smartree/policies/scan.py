"""The exact scan: the best number of nodes of the best-first order, at a price or by the step's own ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_EVERY_WIDTH, _FURTHER_WIDTHS, _PATIENCE = 8, 4, 2
_FEW = 256  # up to which sorting stably, and sorting all, is what takes least


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
    width = places_in_group(requests, batch)
    gains = np.bincount(width, weights=paths)
    counts = np.concatenate([[0], np.cumsum(np.bincount(width))])
    return np.argsort(width, kind="stable").astype(np.int64), gains.astype(np.float64), counts.astype(np.int64)


def falling(paths: Floats) -> Ints:
    """[M] places by falling path probability, earlier ones first on ties.

    What a stable sort gives. Of many, an unstable one is several times as fast, and the same where no two are equal.
    """
    if len(paths) <= _FEW:
        return (-paths).argsort(kind="stable")
    order = np.argsort(-paths)
    ranked = paths[order]
    return np.argsort(-paths, kind="stable") if np.any(ranked[1:] == ranked[:-1]) else order


def places_in_group(groups: Ints, count: int) -> Ints:
    """[M] place of each element among those of its group, in the order given; groups are 0 .. count - 1."""
    # Integers of 16 bits are sorted by radix, ten times as fast as wider ones.
    grouped = np.argsort(groups.astype(np.uint16) if count <= 1 << 16 else groups, kind="stable")
    sizes = np.bincount(groups, minlength=count)
    places = np.empty(len(groups), np.int64)
    places[grouped] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def likeliest(paths: Floats, count: int) -> Ints:
    """[count] places of the `count` largest, falling, earlier ones first on ties: the front of a stable sort.

    Without sorting the rest, which is most of it in a large batch.
    """
    if len(paths) <= _FEW or 2 * count >= len(paths):
        return falling(paths)[:count]
    if count == 0:
        return np.empty(0, np.int64)
    least = np.partition(paths, len(paths) - count)[len(paths) - count]
    above = np.flatnonzero(paths > least)
    equal = np.flatnonzero(paths == least)[: count - len(above)]
    return np.concatenate([above[falling(paths[above])], equal])


def likeliest_per_group(paths: Floats, groups: Ints, count: int, most: int) -> Ints:
    """Places of the `most` largest of each group, all groups together in falling order, earlier ones first on ties.

    Args:
        paths: [M] path probabilities.
        groups: [M] group of each, 0 .. count - 1.
        count: number of groups.
        most: to keep of a group.
    """
    order = falling(paths)
    if len(order) <= most:
        return order
    return np.asarray(order[places_in_group(groups[order], count) < most])


def scan_capped(
    requests: Ints,
    paths: Floats,
    seconds: Callable[[Ints], Floats],
    batch: int,
    price: float | None = None,
) -> tuple[Ints, Choice]:
    """The exact optimum where seconds depend on the number of nodes and on the most nodes of one request.

    With at most w nodes for each request, the best n nodes are the first n of the best-first order that keeps each
    request's own first w; so one scan for every w would be exact. Wider ones are not tried once two in a row have
    been no better, and past 8 only every fourth is.

    Args:
        requests: [M] request of each node, in best-first order.
        paths: [M] their path probabilities.
        seconds: [n + 1] widths, the most nodes of a request among the first 0, 1, ... n -> seconds of these steps.
        batch: requests, each of which commits one token anyway.
        price: as for `scan`.

    Returns:
        Places of the nodes that the best w keeps, in best-first order; how many of them to take.
    """
    places = places_in_group(requests, batch)
    best: tuple[Ints, Choice] | None = None
    worse = 0
    caps = _caps(int(places.max(initial=-1)) + 1)
    for cap in caps:
        if worse >= _PATIENCE and cap < caps[-1]:
            continue  # the widest is always tried: never worse than looking at sizes alone
        kept = np.flatnonzero(places < cap)
        widths = np.zeros(len(kept) + 1, np.int64)
        np.maximum.accumulate(places[kept] + 1, out=widths[1:])
        choice = scan(paths[kept], seconds(widths), batch, price)
        if best is None or _worth(choice, price) > _worth(best[1], price):
            best, worse = (kept, choice), 0
        else:
            worse += 1
    assert best is not None
    return best


def _caps(widest: int) -> list[int]:
    """Widths to try, the widest last."""
    tried = [width for width in range(1, widest) if width <= _EVERY_WIDTH or width % _FURTHER_WIDTHS == 0]
    return [*tried, widest]


def _worth(choice: Choice, price: float | None) -> float:
    return choice.tokens / choice.seconds if price is None else choice.tokens - price * choice.seconds


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
