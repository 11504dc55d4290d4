"""Where two outputs for one prompt part, and how close the decision was there: rounding or a fault."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, zip_longest
from typing import TYPE_CHECKING

import numpy as np
import torch

from smartree.models.packed_pass import causal_group
from smartree.models.runner import ModelRunner

if TYPE_CHECKING:
    from smartree.engine.llm import LLM

# Large logits lie between 16 and 32, and this is four times the distance of neighbouring numbers there: what a tree's
# pass and a plain pass, which sum in another order, may differ by after some tens of layers.
NEAR_TIE = {torch.bfloat16: 0.5, torch.float16: 0.0625, torch.float32: 1e-4, torch.float64: 1e-9}
_CHUNK = 512


def first_difference_margin(
    llm: LLM, prompt_ids: Sequence[int], tokens_a: Sequence[int], tokens_b: Sequence[int]
) -> tuple[int, float] | None:
    """Where two outputs first differ, and how far the logits of the two tokens are apart there.

    Args:
        llm: the model; a fresh cache is used, so that running requests are not touched.
        prompt_ids: tokens of the prompt, at least one.
        tokens_a: an output for it.
        tokens_b: another one.

    Returns:
        The index of the first difference in the outputs, and the absolute difference of the two tokens' logits in a
        plain pass over the prompt and what the outputs share (nan if one output just ends there); None if they are
        equal.
    """
    pairs = zip(count(), zip_longest(tokens_a, tokens_b), strict=False)
    found = next(((index, a, b) for index, (a, b) in pairs if a != b), None)
    if found is None:
        return None
    index, a, b = found
    if a is None or b is None:
        return index, float("nan")
    logits = plain_logits(llm, [*prompt_ids, *tokens_a[:index]])
    return index, abs(float(logits[a]) - float(logits[b]))


def plain_logits(llm: LLM, tokens: Sequence[int]) -> torch.Tensor:
    """[vocabulary] logits after a text, from a plain pass of the target."""
    runner = ModelRunner(llm.target, 1, len(tokens))
    ids = np.array(tokens, np.int64)
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        logits = runner.forward([causal_group(0, start, len(chunk))], chunk, np.array([len(chunk) - 1]))
    return logits[0]


def near_tie(llm: LLM, gap: float) -> bool:
    """True if logits this far apart may change places by rounding in the model's element type."""
    return gap <= NEAR_TIE[llm.target.dtype]
