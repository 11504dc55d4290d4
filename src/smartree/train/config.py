"""How a head is trained."""

from __future__ import annotations

from dataclasses import dataclass

from smartree.errors import InputError


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of a training run; together with the corpus they decide the result bit for bit.

    Attributes:
        epochs: passes over the corpus.
        warm_epochs: first ones, which train one unrolled step only: three times as fast, and enough at first.
        unrolled: steps of training-time test after that (EAGLE-3, section 3.2): step k reads the head's own states.
        decay: weight of an unrolled step relative to the one before.
        batch_tokens: tokens of a batch, padding included.
        learning_rate: peak; it rises for `warm_up` batches and falls along a cosine to a twentieth.
        warm_up: batches.
        weight_decay: of AdamW, on matrices only.
        clip: largest norm of the gradient.
        draft_vocab: most frequent tokens that the head can propose.
        intermediate_size: of the MLP; 0 takes the target's.
        held_out: share of the texts kept for evaluation, at least one text.
        save_every: batches between checkpoints.
        evaluate_every: batches between evaluations.
        seed: of initial weights and order.

    Raises:
        InputError: a value is out of range.
    """

    epochs: int = 5
    warm_epochs: int = 2
    unrolled: int = 3
    decay: float = 0.8
    batch_tokens: int = 1536
    learning_rate: float = 2e-3
    warm_up: int = 100
    weight_decay: float = 0.01
    clip: float = 0.5
    draft_vocab: int = 8192
    intermediate_size: int = 0
    held_out: float = 0.02
    save_every: int = 100
    evaluate_every: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "unrolled", "batch_tokens", "draft_vocab", "save_every", "evaluate_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("warm_epochs", "warm_up", "weight_decay", "intermediate_size"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must not be negative.")
        for name in ("learning_rate", "clip", "decay"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be above 0.")
        if not 0 < self.held_out < 1:
            raise InputError(f"held_out is {self.held_out}; it must be between 0 and 1.")
