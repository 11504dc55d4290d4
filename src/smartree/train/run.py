"""A whole training run: texts, features, training, the head, and how good it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from smartree.drafters.eagle3.checkpoint import read_checkpoint, write_checkpoint
from smartree.drafters.eagle3.drafter import Eagle3Drafter
from smartree.drafters.eagle3.runner import LoadedHead
from smartree.drafters.shipped import model_digest
from smartree.engine.engine import Engine
from smartree.engine.llm import LLM
from smartree.errors import InputError
from smartree.policies.eagle2 import Eagle2Policy
from smartree.sampling_params import SamplingParams
from smartree.train.beginning import draft_tokens, known_head, new_head, spec_for, tapped_layers, teacher_of
from smartree.train.config import TrainConfig
from smartree.train.corpus import Corpus, Text
from smartree.train.features import FeatureStore, compute_features, feature_runner, features_of
from smartree.train.trainer import Trainer, TrainState
from smartree.train.writing import Writer, WritingConfig

_TAU_PROMPTS, _TAU_TOKENS = 24, 96


class Reporter(Protocol):
    """Hears how far a run is."""

    def stage(self, name: str, total: int | None) -> None:
        """A stage begins; `total` is what its steps add up to."""
        ...

    def step(self, done: int, total: int, note: str = "") -> None:
        """The stage has come that far."""
        ...


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a run keeps things.

    Attributes:
        head: the finished head.
        work: corpus, features and checkpoints: what going on needs.
    """

    head: Path
    work: Path


def train_head(
    llm: LLM,
    sources: Mapping[str, Sequence[Sequence[int]]],
    writing: WritingConfig,
    config: TrainConfig,
    folders: Folders,
    cache_bytes: int,
    reporter: Reporter,
    start: Path | None = None,
) -> dict[str, Any]:
    """Writes texts, trains a head on them and saves it; started again it goes on where it was.

    Args:
        llm: the target; `max_batch` texts are written at a time.
        sources: prompts as token ids, by the name of where they come from.
        writing: how much text of which kind.
        config: how to train.
        folders: where things go.
        cache_bytes: largest size of the cached hidden states; texts beyond it are computed anew in every epoch.
        reporter: hears the progress.
        start: folder of a head of this target to go on from; None begins a new one.

    Returns:
        What is also written into the head's config.json: texts, tokens, evaluations, tau on held-out prompts.

    Raises:
        InputError: there is nothing to train on, or something cannot be written.
    """
    if llm.target.crew is not None:
        raise InputError("A head is trained on a whole model in one process; start this without torchrun.")
    hidden = llm.target.model.config.get_text_config(decoder=True).hidden_size
    layers = (*tapped_layers(llm.target), len_layers(llm))
    corpus = Corpus(folders.work / "corpus.jsonl")
    store = FeatureStore(folders.work / "features", layers, hidden)
    write_texts(llm, corpus, store, sources, writing, cache_bytes, reporter)
    texts = list(corpus)
    missing = [text for text in texts if text.key not in store]
    if missing:
        reporter.stage("Hidden states", len(missing))
        compute_features(llm.target, missing, store, cache_bytes, lambda done, total: reporter.step(done, total))
    if start is None:
        token_ids = draft_tokens(texts, llm.target, min(config.draft_vocab, llm.target.vocab_size))
        head = new_head(spec_for(llm.target, config), llm.target, config.seed)
    else:
        head, token_ids = known_head(start, llm.target, config)
    teacher = teacher_of(llm.target, token_ids)
    trainer = Trainer(config, head, teacher, texts, FeatureReader(llm, store, layers), folders.work)
    reporter.stage("Training", trainer.state.total)
    trainer.run(lambda state: reporter.step(state.batches, state.total, _note(trainer, state)))
    facts = {
        "target": llm.target.name,
        "target_digest": model_digest(llm.target),
        "started_from": None if start is None else start.name,
        "texts": len(trainer.texts),
        "answer_tokens": sum(len(text.answer) for text in trainer.texts),
        "tokens_trained": trainer.state.tokens,
        "seconds": round(trainer.state.seconds, 1),
        "log": trainer.log,
    }
    weights = {name: tensor.to(torch.float16) for name, tensor in head.state_dict().items()}
    window = max(len(text.tokens) for text in texts)
    write_checkpoint(folders.head, head.spec, weights, token_ids, window, facts)
    facts["tau"], calibration = held_out_tau(llm, folders.head, trainer.held_out, reporter)
    write_checkpoint(folders.head, head.spec, weights, token_ids, window, facts, calibration)
    return facts


def len_layers(llm: LLM) -> int:
    """The number that stands for what leaves the target's last layer."""
    return llm.target.cache_shape.layers


def write_texts(
    llm: LLM,
    corpus: Corpus,
    store: FeatureStore,
    sources: Mapping[str, Sequence[Sequence[int]]],
    writing: WritingConfig,
    cache_bytes: int,
    reporter: Reporter,
) -> None:
    """Fills the corpus; hidden states are kept along the way while there is room.

    Raises:
        InputError: no text came of it.
    """
    reporter.stage("Writing texts", writing.tokens)
    reporter.step(corpus.answer_tokens, writing.tokens)
    writer = Writer(llm, corpus, writing, store, cache_bytes)
    writer.write(sources, lambda done, total: reporter.step(done, total))
    if len(corpus) < 2:
        raise InputError("There are fewer than two texts to train on; give prompts, or let the target write its own.")


class FeatureReader:
    """Hidden states of a text from the store, or computed anew where it had no room."""

    def __init__(self, llm: LLM, store: FeatureStore, layers: Sequence[int]) -> None:
        self._store = store
        self._runner = feature_runner(llm.target, layers, llm.window)

    def __call__(self, text: Text) -> torch.Tensor:
        """[rows, width] states."""
        return self._store.read(text.key) if text.key in self._store else features_of(self._runner, text.tokens)


def held_out_tau(llm: LLM, folder: Path, texts: Sequence[Text], reporter: Reporter) -> tuple[float, Mapping[str, Any]]:
    """Mean accepted length on prompts that were not trained on, with EAGLE-2's default tree at temperature 0, and how
    often what was drafted was accepted there, at temperatures 0 and 1: engines begin with that.
    """
    prompts = list(dict.fromkeys(text.prompt for text in texts))[:_TAU_PROMPTS]
    loaded = LoadedHead(read_checkpoint(folder), llm.target, str(folder))
    engine = Engine(llm.target, Eagle3Drafter(loaded, 8, llm.window), Eagle2Policy(), max_batch=8, window=llm.window)
    reporter.stage("Measuring tau", 2 * len(prompts))
    done = 0

    def count(_request: object) -> None:
        nonlocal done
        done += 1
        reporter.step(done, 2 * len(prompts))

    greedy, sampled = (SamplingParams(max_tokens=_TAU_TOKENS, temperature=kind, seed=0) for kind in (0.0, 1.0))
    outputs = llm.generate(prompts, greedy, engine=engine, done=count)
    llm.generate(prompts, sampled, engine=engine, done=count)
    steps = sum(output.stats.steps for output in outputs)
    tau = round(sum(len(output.token_ids) - 1 for output in outputs) / max(steps, 1), 3)
    return tau, engine.calibration.to_json()


def _note(trainer: Trainer, state: TrainState) -> str:
    accuracy = ", ".join(f"{one:.3f}" for one in trainer.log[-1]["accuracy"]) if trainer.log else "not yet"
    speed = state.tokens / max(state.seconds, 1e-9)
    return f"loss {state.loss:.3f}, held-out accuracy by depth {accuracy}, {speed:.0f} tokens/s"
