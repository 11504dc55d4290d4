"""Keeps log-probabilities of a step's tokens for the requests that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smartree.engine.request import Request
from smartree.engine.scheduler import StepPlan
from smartree.tree.packed import PackedTrees
from smartree.verify.logprobs import token_logprobs
from smartree.verify.walk import Walk


def note_logprobs(
    plan: StepPlan, packed: PackedTrees, walks: Sequence[Walk], first_tokens: Sequence[int], logits: torch.Tensor
) -> None:
    """Adds a step's tokens to the log-probabilities of their requests, after the tokens were taken.

    Args:
        plan: the step.
        packed: its verified trees.
        walks: what was drawn along them.
        first_tokens: of the requests whose prompt is complete.
        logits: of the packed rows, then of the completed prompts.
    """
    starts = packed.starts[:-1].tolist()
    for request, start, walked in zip(plan.decoding, starts, walks, strict=True):
        _note(request, logits, [start, *walked.rows], walked.tokens)
    done = [chunk.request for chunk in plan.chunks if chunk.last]
    for row, (request, token) in enumerate(zip(done, first_tokens, strict=True), len(packed.nodes)):
        _note(request, logits, [row], [token])


def _note(request: Request, logits: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]) -> None:
    count = request.params.logprobs
    if count is not None:
        left = len(request.tokens) - request.prompt_length - len(request.logprobs)  # the others lie beyond its end
        request.logprobs += token_logprobs(logits[rows[:left]], tokens[:left], count)
