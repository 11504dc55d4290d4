"""A tiny target, the texts it writes, and a head that has learnt them by heart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from smartree import LLM, SamplingParams
from smartree.drafters.eagle3.checkpoint import write_checkpoint
from smartree.drafters.eagle3.head import Eagle3Head
from smartree.models.load import LoadedModel
from smartree.train.beginning import draft_tokens, new_head, spec_for, tapped_layers, teacher_of
from smartree.train.config import TrainConfig
from smartree.train.corpus import Text
from smartree.train.features import feature_runner, features_of
from smartree.train.trainer import Trainer
from smartree.train.unrolled import Teacher
from tests.tiny import random_prompts, tiny_model

DRAFT_VOCAB = 64
PROMPTS = random_prompts([4, 5, 6, 7, 9, 11, 13, 16] * 3, seed=11)
ANSWER = 14


@cache
def target() -> LoadedModel:
    """Float32, as the trainer wants it."""
    return written()[0].target


@cache
def written() -> tuple[LLM, tuple[Text, ...]]:
    """The target, and what it answers at temperature 0."""
    llm = LLM(tiny_model(dtype=torch.float32), drafter="none", policy="none", max_batch=24)
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=ANSWER))
    return llm, tuple(
        Text(f"small:{place}", tuple(prompt), tuple(output.token_ids))
        for place, (prompt, output) in enumerate(zip(PROMPTS, outputs, strict=True))
    )


def texts() -> tuple[Text, ...]:
    """What the target answers at temperature 0."""
    return written()[1]


def layers() -> tuple[int, ...]:
    """Those that the head reads, then what leaves the last one."""
    return (*tapped_layers(target()), target().cache_shape.layers)


@cache
def features() -> dict[str, torch.Tensor]:
    """Hidden states by text."""
    runner = feature_runner(target(), layers(), 64)
    return {text.key: features_of(runner, text.tokens).to(torch.bfloat16) for text in texts()}


def read(text: Text) -> torch.Tensor:
    """Where a trainer gets its hidden states."""
    return features()[text.key]


def a_config(**changes: Any) -> TrainConfig:
    """Few, small batches."""
    settings: dict[str, Any] = {
        "epochs": 3,
        "warm_epochs": 1,
        "unrolled": 3,
        "batch_tokens": 128,
        "learning_rate": 3e-3,
        "warm_up": 3,
        "draft_vocab": DRAFT_VOCAB,
        "held_out": 0.2,
        "save_every": 4,
        "evaluate_every": 6,
    }
    return TrainConfig(**(settings | changes))


def token_ids() -> torch.Tensor:
    """The draft vocabulary."""
    return draft_tokens(texts(), target(), DRAFT_VOCAB)


def a_head(config: TrainConfig, from_target: bool = True) -> Eagle3Head:
    """One that has learnt nothing yet."""
    return new_head(spec_for(target(), config), target(), config.seed, from_target)


def a_teacher() -> Teacher:
    """What the target says."""
    return teacher_of(target(), token_ids())


def a_trainer(
    folder: Path,
    config: TrainConfig | None = None,
    corpus: Sequence[Text] | None = None,
    source: Callable[[Text], torch.Tensor] = read,
) -> Trainer:
    """A trainer of a new head, or of the one that the folder's checkpoint holds."""
    config = config or a_config()
    return Trainer(config, a_head(config), a_teacher(), texts() if corpus is None else corpus, source, folder)


@cache
def session_folder() -> tempfile.TemporaryDirectory[str]:
    """Removed when Python ends."""
    return tempfile.TemporaryDirectory(prefix="smartree-head-")


@cache
def learnt_head() -> Path:
    """Folder of a head that knows the texts by heart."""
    folder = Path(session_folder().name)
    never = 10**6
    config = a_config(
        epochs=30, warm_epochs=5, batch_tokens=512, learning_rate=1e-2, save_every=never, evaluate_every=never
    )
    trainer = a_trainer(folder / "work", config)
    trainer.run()
    weights = {name: tensor.detach() for name, tensor in trainer.head.state_dict().items()}
    write_checkpoint(folder / "head", trainer.head.spec, weights, token_ids(), 64)
    return folder / "head"
