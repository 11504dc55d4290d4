"""Training-time test: the head runs several levels on its own states, as it will when it drafts (EAGLE-3, 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import linear, rms_norm

from smartree.drafters.eagle3.head import Eagle3Head, Rotary
from smartree.train.attention import UnrolledAttention
from smartree.train.batches import Batch
from smartree.train.loss import frozen_rows_loss

_CHUNK = 64  # rows whose logits exist at a time: few enough that they stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Teacher:
    """What the target says: its frozen weights that decide the next token, cut to the draft vocabulary.

    Attributes:
        norm: [Ht] weight of its final norm.
        eps: of that norm.
        rows: [D, H] output rows of the draft vocabulary, in the order of the draft tokens.
        embeddings: [V, H] of the tokens.
        draft_ids: [V] draft number of every token, -1 for those that the head cannot propose.
    """

    norm: torch.Tensor
    eps: float
    rows: torch.Tensor
    embeddings: torch.Tensor
    draft_ids: torch.Tensor

    @torch.no_grad()
    def chances(self, finals: torch.Tensor) -> torch.Tensor:
        """[R, Ht] final states -> [R, D] probabilities over the draft vocabulary, bfloat16."""
        normed = rms_norm(finals.float(), self.norm.shape, self.norm.float(), self.eps).to(self.rows.dtype)
        chances = torch.empty(len(finals), len(self.rows), dtype=torch.bfloat16, device=finals.device)
        for start in range(0, len(finals), _CHUNK):
            logits = linear(normed[start : start + _CHUNK], self.rows)
            chances[start : start + _CHUNK] = torch.softmax(logits.float(), dim=-1)
        return chances


@dataclass(frozen=True, slots=True)
class StepResult:
    """One unrolled step of a batch.

    Attributes:
        loss: sum of the rows' cross-entropies.
        rows: how many there were.
        hits: rows whose most likely token is the text's; only counted when asked for.
    """

    loss: torch.Tensor
    rows: int
    hits: int


class Unrolled:
    """Runs the unrolled steps of a batch."""

    def __init__(self, head: Eagle3Head, teacher: Teacher, rotary: Rotary) -> None:
        self.head, self.teacher, self.rotary = head, teacher, rotary

    def __call__(self, batch: Batch, steps: int, count_hits: bool = False) -> list[StepResult]:
        """Step k pairs token j + 1 + k with the states that step k - 1 gave at row j; it predicts token j + 2 + k.

        Rows count where the text goes on that far and the head can propose the text's token.
        """
        size = batch.states.shape[1]
        features = self.head.features(batch.states)
        chances, place = self._targets(batch)
        attention = UnrolledAttention()
        results = []
        for step in range(steps):
            tokens = _shifted(batch.tokens, 1 + step)[:, :size]
            rotation = self.rotary(torch.arange(size, device=batch.states.device) + step)
            features, normed = self.head(self.teacher.embeddings[tokens], features, rotation, attention)
            # Token j + 2 + step is decided by the target's final state at row j + 1 + step.
            next_tokens = _shifted(batch.tokens, 2 + step)[:, :size]
            rows_of = _shifted(place, 1 + step, fill=-1)
            chosen = batch.scored & (rows_of >= 0) & (self.teacher.draft_ids[next_tokens] >= 0)
            rows = normed[chosen]
            loss = frozen_rows_loss(rows, self.teacher.rows, chances, rows_of[chosen])
            hits = self._hits(rows, next_tokens[chosen]) if count_hits else 0
            results.append(StepResult(loss, len(rows), hits))
        return results

    def _targets(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The target's probabilities where some step needs them, and [B, S] which of these belongs to a row."""
        rows = torch.arange(batch.states.shape[1], device=batch.states.device)
        inside = rows < batch.lengths[:, None]
        needed = inside & _shifted(batch.scored.cumsum(dim=1) > 0, -1)
        place = torch.full_like(needed, -1, dtype=torch.int64)
        place[needed] = torch.arange(int(needed.sum()), device=place.device)
        return self.teacher.chances(batch.finals[needed]), place

    @torch.no_grad()
    def _hits(self, rows: torch.Tensor, tokens: torch.Tensor) -> int:
        best = linear(rows.to(self.teacher.rows.dtype), self.teacher.rows).argmax(dim=-1)
        return int((best == self.teacher.draft_ids[tokens]).sum())


def _shifted(rows: torch.Tensor, places: int, fill: int = 0) -> torch.Tensor:
    """[B, S] row j becomes row j + places; what has none becomes `fill`."""
    shifted = torch.full_like(rows, fill)
    places = min(places, rows.shape[1])
    if places >= 0:
        shifted[:, : rows.shape[1] - places] = rows[:, places:]
    else:
        shifted[:, -places:] = rows[:, :places]
    return shifted


def weighted_mean(results: Sequence[StepResult], decay: float) -> torch.Tensor:
    """Mean loss per row, later steps weighted less."""
    total = torch.stack([decay**step * one.loss / max(one.rows, 1) for step, one in enumerate(results)])
    return total.sum() / sum(decay**step for step in range(len(results)))
