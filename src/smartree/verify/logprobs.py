"""Log-probabilities of output tokens and of the best tokens beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One output token.

    Attributes:
        token_id: the token.
        logprob: its log-probability under the model itself: before penalties, bias, grammar, temperature and filters.
        top: the k likeliest tokens and their log-probabilities, best first; the output's token is not always one.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@torch.inference_mode()
def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprob]:
    """Log-probabilities of tokens, computed in float32 (float64 for logits of that kind).

    Args:
        logits: [K, vocabulary] as the model gave them.
        tokens: [K] the token that was taken at each row.
        count: best tokens wanted at each row.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    chosen = scores.gather(1, torch.tensor(tokens, device=scores.device)[:, None])[:, 0].tolist()
    best = scores.topk(min(count, scores.shape[-1]), dim=-1)
    return [
        TokenLogprob(token, logprob, tuple(zip(ids, values, strict=True)))
        for token, logprob, ids, values in zip(tokens, chosen, best.indices.tolist(), best.values.tolist(), strict=True)
    ]
