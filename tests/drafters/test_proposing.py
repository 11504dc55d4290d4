"""From draft logits to candidates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smartree.drafters.proposing import top_children

LOGITS = torch.tensor([[0.0, 3.0, 1.0, 2.0, -1.0], [5.0, 5.5, -2.0, 0.0, 4.0]])
NODES = np.array([7, 3])


def law(row: int, temperature: float) -> list[float]:
    """Probabilities of all tokens."""
    return torch.softmax(LOGITS[row].double() / (temperature or 1.0), 0).tolist()


@pytest.mark.parametrize("temperatures", [(0.0, 0.0), (1.0, 1.0), (0.0, 0.7), (2.0, 1.0)])
def test_the_likeliest_tokens_with_their_probabilities(temperatures: tuple[float, float]) -> None:
    found = top_children(NODES, LOGITS, temperatures, 3)
    assert found.parents.tolist() == [7, 7, 7, 3, 3, 3]
    assert found.tokens.tolist() == [1, 3, 2, 1, 0, 4]
    assert found.ranks.tolist() == [0, 1, 2, 0, 1, 2]
    expected = [law(row, temperatures[row])[token] for row, token in zip([0, 0, 0, 1, 1, 1], found.tokens, strict=True)]
    assert found.probabilities.tolist() == pytest.approx(expected, rel=1e-6)
    assert found.probabilities.dtype == np.float64
    assert found.tokens.dtype == np.int64
    assert len(found.handles) == len(found.features) == 6


def test_draft_tokens_become_the_targets() -> None:
    ids = np.array([50, 10, 40, 20, 30])
    found = top_children(NODES, LOGITS, [1.0, 1.0], 3, ids)
    assert found.tokens.tolist() == [10, 20, 40, 10, 50, 30]
    # Normalised over the draft vocabulary: what it lacks has no say.
    assert found.probabilities.tolist() == pytest.approx(top_children(NODES, LOGITS, [1.0, 1.0], 3).probabilities)


@pytest.mark.parametrize("top_k", [5, 9])
def test_a_whole_vocabulary_adds_up_to_one(top_k: int) -> None:
    found = top_children(NODES, LOGITS, [0.0, 1.5], top_k)
    assert len(found) == 10
    assert found.probabilities.reshape(2, 5).sum(axis=1) == pytest.approx([1, 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_probabilities_are_worked_out_in_float32(dtype: torch.dtype) -> None:
    found = top_children(NODES[:1], LOGITS[:1].to(dtype), [0.3], 2)
    assert found.probabilities.tolist() == pytest.approx([law(0, 0.3)[1], law(0, 0.3)[3]], rel=1e-5)


def test_certain_and_hopeless_tokens_stay_within_bounds() -> None:
    logits = torch.tensor([[200.0, 0.0, -200.0, float("-inf")]])
    found = top_children(np.array([0]), logits, [1.0], 4)
    assert found.probabilities[0] == 1.0
    assert (found.probabilities > 0).all()
    assert (found.probabilities <= 1).all()


def test_no_nodes_no_candidates() -> None:
    found = top_children(np.empty(0, np.int64), LOGITS[:0], [], 3)
    assert len(found) == 0
