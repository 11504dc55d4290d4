"""Draws the target's own next token at a row: argmax, or Gumbel-max over the filtered logits."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from smartree.models.native.choice import argmax, noisy_argmax, takes
from smartree.sampling_params import SamplingParams
from smartree.verify.noise import GumbelNoise, noise_key
from smartree.verify.shaping import Shaping

_LEAST_TEMPERATURE = 1e-30  # what a float can still divide by
_SMALL_TEMPERATURE = 1e-6
_FIRST_LOOK = 1024  # tokens that usually hold all of top_p's probability


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw.

    Attributes:
        row: row of the logits.
        position: absolute position of the token drawn.
        params: the request's settings.
        seed: the request's seed.
        shaping: what changes its logits first; None if nothing does.
        output: tokens generated before this one, this step's path included; read by the shaping only.
    """

    row: int
    position: int
    params: SamplingParams
    seed: int
    shaping: Shaping | None = None
    output: Sequence[int] = ()


class Sampler:
    """Draws tokens; the same (logits, settings, seed, position, output) always give the same token."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size, self._device = vocab_size, device
        self._noise: GumbelNoise | None = None
        self._latest: tuple[weakref.ref[torch.Tensor], list[int]] | None = None

    @torch.inference_mode()
    def draw(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        """The tokens of `draws` from `logits` [K, vocabulary]."""
        if not takes(logits):
            return self._draw_with_torch(logits, draws)
        # A request's way depends on its own settings alone, so that others in the batch change nothing.
        best = [place for place, draw in enumerate(draws) if draw.shaping is None and draw.params.greedy]
        noisy = [place for place, draw in enumerate(draws) if draw.shaping is None and _is_plain(draw.params)]
        tokens = dict(zip(best, argmax(logits, [draws[place].row for place in best]), strict=True)) if best else {}
        if noisy:
            chosen = [draws[place] for place in noisy]
            keys = [noise_key(draw.seed, draw.position) for draw in chosen]
            found = noisy_argmax(logits, [draw.row for draw in chosen], keys, [d.params.temperature for d in chosen])
            tokens.update(zip(noisy, found, strict=True))
        rest = [place for place in range(len(draws)) if place not in tokens]
        if rest:
            found = self._draw_with_torch(logits, [draws[place] for place in rest])
            tokens.update(zip(rest, found, strict=True))
        return [tokens[place] for place in range(len(draws))]

    def _draw_with_torch(self, logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
        if self._device.type != "cpu" and all(draw.params.greedy and draw.shaping is None for draw in draws):
            best = self._best_of_all(logits)
            return [best[draw.row] for draw in draws]
        rows = _shaped(logits[[draw.row for draw in draws]], draws)
        if all(draw.params.greedy for draw in draws):
            # The same as argmax, the first of equal ones included, and six times as fast for bfloat16 on the CPU.
            return rows.max(dim=-1).indices.tolist()  # type: ignore[no-any-return]
        if self._noise is None:
            self._noise = GumbelNoise(self._vocab_size, self._device)
        scores = filtered_logits(rows, [draw.params for draw in draws])
        noise = self._noise.rows([draw.seed for draw in draws], [draw.position for draw in draws])
        argmaxes = [draw.params.greedy for draw in draws]
        if any(argmaxes):
            noise[torch.tensor(argmaxes, device=self._device)] = 0.0
        return (scores + noise).max(dim=-1).indices.tolist()  # type: ignore[no-any-return]

    def _best_of_all(self, logits: torch.Tensor) -> list[int]:
        """Argmax of every row, once a pass: a walk asks level by level, and on a GPU each question would be a wait."""
        if self._latest is None or self._latest[0]() is not logits:
            self._latest = weakref.ref(logits), logits.max(dim=-1).indices.tolist()
        return self._latest[1]


def _is_plain(params: SamplingParams) -> bool:
    """True if every token can be drawn, at a temperature that floats can divide by."""
    every = params.top_k == 0 and params.top_p == 1 and params.min_p == 0
    return every and params.temperature >= _SMALL_TEMPERATURE


def _shaped(rows: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Rows of a copy of the logits, those of requests with a shaping changed; the very same if there are none."""
    if all(draw.shaping is None for draw in draws):
        return rows
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    for row, draw in zip(rows, draws, strict=True):
        if draw.shaping is not None:
            draw.shaping.apply(row, draw.output)
    return rows


def filtered_logits(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """[R, vocabulary] float logits after temperature, min_p, top_k, then top_p; removed tokens are -inf.

    All filters are thresholds on the logit, so that equal logits are kept or removed together whatever the order a
    sort happens to give them.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    temperatures = [1.0 if one.greedy else max(one.temperature, _LEAST_TEMPERATURE) for one in params]
    if min(temperatures) < _SMALL_TEMPERATURE:
        # The best score becomes 0, so that division leaves it finite and sends the others towards -inf.
        small = torch.tensor([one < _SMALL_TEMPERATURE for one in temperatures], device=scores.device)
        scores = scores - torch.where(small, scores.amax(dim=-1), 0.0)[:, None]
    scores = scores / scores.new_tensor(temperatures)[:, None]
    shares = [0.0 if one.greedy else one.min_p for one in params]
    if max(shares) > 0:
        floor = scores.amax(dim=-1, keepdim=True) + scores.new_tensor(shares)[:, None].log()
        scores = scores.masked_fill(scores < floor, -torch.inf)
    vocab = scores.shape[-1]
    ks = [one.top_k if 0 < one.top_k < vocab and not one.greedy else vocab for one in params]
    if min(ks) < vocab:
        best = scores.topk(max(k for k in ks if k < vocab), dim=-1).values
        places = torch.tensor([min(k, best.shape[1]) - 1 for k in ks], device=scores.device)
        floor = best.gather(1, places[:, None])
        floor = torch.where(torch.tensor([k < vocab for k in ks], device=scores.device)[:, None], floor, -torch.inf)
        scores = scores.masked_fill(scores < floor, -torch.inf)
    ps = [1.0 if one.greedy else one.top_p for one in params]
    if min(ps) < 1:
        scores = scores.masked_fill(scores < _nucleus_floor(scores, ps), -torch.inf)
    return scores


def _largest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """[R, count] largest scores, falling."""
    if scores.device.type != "cpu" or count == scores.shape[-1]:
        return scores.topk(count, dim=-1).values
    # A thousand of many: numpy's selection takes a tenth of torch's time.
    values = scores.numpy()
    first = values.shape[-1] - count
    found = np.partition(values, first, axis=-1)[:, first:]
    found.sort(axis=-1)
    return torch.from_numpy(found[:, ::-1].copy())


def _nucleus_floor(scores: torch.Tensor, ps: Sequence[float]) -> torch.Tensor:
    """[R, 1] smallest logit of the smallest set of best tokens whose probability reaches p; -inf where p is 1."""
    floor = torch.full_like(scores[:, :1], -torch.inf)
    wanted = scores.new_tensor(ps)[:, None]
    rows = torch.nonzero(wanted[:, 0] < 1)[:, 0]
    for count in sorted(
        {min(_FIRST_LOOK, scores.shape[-1]), scores.shape[-1]}
    ):  # all are sorted only where few are not enough
        mine = scores[rows]
        best = _largest(mine, count)
        sums = torch.cumsum((best - mine.logsumexp(dim=-1, keepdim=True)).exp(), dim=-1)
        inside = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], dim=-1) < wanted[rows]
        floor[rows] = best.gather(1, inside.sum(dim=-1, keepdim=True) - 1)
        rows = rows[sums[:, -1] < wanted[rows, 0]]
        if len(rows) == 0:
            break
    return floor
