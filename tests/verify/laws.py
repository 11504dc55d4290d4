"""Laws of tokens: what a target with given logits should draw, and whether it did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from smartree.sampling_params import SamplingParams


def law(logits: Sequence[float], params: SamplingParams) -> np.ndarray:
    """Probabilities of the tokens, filters applied one after the other as the words say; no ties expected."""
    scores = np.array(logits, np.float64) / params.temperature
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    chances[chances < params.min_p * chances.max()] = 0
    chances /= chances.sum()
    order = np.argsort(-chances)
    kept = len(order) if params.top_k == 0 else min(params.top_k, len(order))
    chances[order[kept:]] = 0
    chances /= chances.sum()
    if params.top_p < 1:
        before = np.cumsum(chances[order]) - chances[order]
        chances[order[before >= params.top_p]] = 0
        chances /= chances.sum()
    return chances


def agrees(counts: np.ndarray, expected: np.ndarray) -> bool:
    """True if counts may have come from the law: nothing impossible was drawn, and chi-square does not object."""
    possible = expected > 0
    if counts[~possible].sum() > 0:
        return False
    if possible.sum() == 1:
        return True
    return bool(stats.chisquare(counts[possible], expected[possible] * counts.sum()).pvalue > 1e-4)
