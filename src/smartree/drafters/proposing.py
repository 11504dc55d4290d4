"""From draft logits to candidates: the most likely children of every node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from smartree.models.native.choice import likeliest, takes
from smartree.tree.forest import Candidates, Ints

_LEAST_PROBABILITY = 1e-9
_LEAST_TEMPERATURE = 1e-30  # what a logit in float32 can be divided by


def top_children(
    nodes: Ints,
    logits: torch.Tensor,
    temperatures: Sequence[float],
    top_k: int,
    token_ids: Ints | None = None,
) -> Candidates:
    """The `top_k` most likely children of every node; one transfer to the host a level.

    Args:
        nodes: [n] parents.
        logits: [n, draft vocabulary].
        temperatures: [n] of the requests, which sharpen or flatten the draft's probabilities too; 0 counts as 1.
        top_k: children of a node.
        token_ids: [draft vocabulary] the target's id of each draft token; None if they are the same.
    """
    top_k = min(top_k, logits.shape[-1])
    divisors = [max(temperature, _LEAST_TEMPERATURE) if temperature else 1.0 for temperature in temperatures]
    tokens, probabilities = _likeliest(logits, divisors, top_k)
    each = np.arange(len(tokens))
    parents = each // top_k
    return Candidates(
        nodes[parents],
        tokens if token_ids is None else token_ids[tokens],
        np.minimum(np.maximum(probabilities, _LEAST_PROBABILITY), 1.0),
        each - parents * top_k,
        np.full(len(tokens), -1),
        np.zeros(len(tokens)),
    )


def _likeliest(logits: torch.Tensor, divisors: Sequence[float], count: int) -> tuple[Ints, NDArray[np.float64]]:
    """[n * count] draft tokens and their probabilities, node by node."""
    if takes(logits):
        tokens, probabilities = likeliest(logits, divisors, count)
        return tokens.ravel(), probabilities.ravel()
    scores = logits.float()
    if any(divisor != 1.0 for divisor in divisors):
        scores = scores / scores.new_tensor(divisors)[:, None]
    best = torch.softmax(scores, dim=-1).topk(count, dim=-1)
    return best.indices.cpu().numpy().ravel(), best.values.cpu().numpy().astype(np.float64).ravel()
