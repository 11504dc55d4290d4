"""Texts of similar length, padded together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from smartree.train.corpus import Text


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts as rows; row j of a text is the pair (token j + 1, hidden states of token j).

    Attributes:
        tokens: [B, S + 1] token ids, 0 beyond the end of a text.
        states: [B, S, taps * Ht] tapped hidden states that the head reads.
        finals: [B, S, Ht] what leaves the target's last layer: it decides the token after the next.
        scored: [B, S] True where the head's first step is trained: its token follows an answer's first.
        lengths: [B] rows of each text.
    """

    tokens: torch.Tensor
    states: torch.Tensor
    finals: torch.Tensor
    scored: torch.Tensor
    lengths: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch there."""
        parts = (self.tokens, self.states, self.finals, self.scored, self.lengths)
        return Batch(*(part.to(device) for part in parts))


def make_batch(texts: Sequence[Text], features: Sequence[torch.Tensor], final_size: int) -> Batch:
    """Pads texts.

    Args:
        texts: what to learn.
        features: [rows, taps * Ht + Ht] of each text, the final states last.
        final_size: Ht.
    """
    lengths = [len(one) for one in features]
    size, batch = max(lengths), len(texts)
    tokens = torch.zeros(batch, size + 1, dtype=torch.int64)
    states = torch.zeros(batch, size, features[0].shape[1], dtype=features[0].dtype)
    scored = torch.zeros(batch, size, dtype=torch.bool)
    for place, (text, rows) in enumerate(zip(texts, features, strict=True)):
        tokens[place, : len(text.tokens)] = torch.tensor(text.tokens)
        states[place, : len(rows)] = rows
        # A tree's first root is the answer's first token, at row len(prompt) - 1.
        scored[place, len(text.prompt) - 1 : len(rows) - 1] = True
    return Batch(tokens, states[..., :-final_size], states[..., -final_size:], scored, torch.tensor(lengths))


def plan_batches(lengths: Sequence[int], batch_tokens: int, seed: int) -> list[list[int]]:
    """Texts by number, grouped by length and shuffled; the same seed gives the same batches.

    Args:
        lengths: rows of every text.
        batch_tokens: most rows of a batch, padding included; a longer text is a batch of its own.
        seed: of the order.
    """
    draw = random.Random(seed)
    # Lengths are blurred a little, so that the same texts do not meet in every epoch.
    order = sorted(range(len(lengths)), key=lambda number: (lengths[number] * draw.uniform(0.95, 1.05), number))
    batches = list(_fill(order, lengths, batch_tokens))
    draw.shuffle(batches)
    return batches


def _fill(order: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    batch: list[int] = []
    longest = 0
    for number in order:
        grown = max(longest, lengths[number])
        if batch and grown * (len(batch) + 1) > batch_tokens:
            yield batch
            batch, grown = [], lengths[number]
        batch.append(number)
        longest = grown
    if batch:
        yield batch
