"""How long the parts of a bench take, by the cost profile; the time left follows the clock once something is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smartree.bench.lane import WARM_UP_STEPS, Load
from smartree.cost.model import CostModel

_SPECULATION = 1.5  # a step with a tree takes about so many plain ones, and commits more; warm-up steps are steps


@dataclass(frozen=True, slots=True)
class Round:
    """Lanes that decode the prompts of a load once.

    Attributes:
        lanes: how many of them.
        tokens: of each output.
        new: True if their engines have to warm up first.
    """

    lanes: int
    tokens: int
    new: bool


def round_seconds(cost: CostModel, load: Load, batch: int, work: Round) -> float:
    """About how long a round takes: the batch is filled once more than the prompts need."""
    tokens = min(work.tokens, load.max_tokens)
    context = mean_length(load.prompts) + tokens // 2
    step = cost.autoregressive(batch, context)
    reading = float(cost.verify(1, mean_length(load.prompts), 0))
    requests = len(load.prompts) + batch
    warm_up = WARM_UP_STEPS * step * _SPECULATION + batch * reading if work.new else 0.0
    return work.lanes * (requests * reading + step * requests * tokens / batch + warm_up)


def mean_length(prompts: Sequence[list[int]]) -> int:
    """Tokens of a mean prompt."""
    return max(1, sum(len(prompt) for prompt in prompts) // len(prompts))
