"""The training loop: batches, unrolled steps, checkpoints that an interruption cannot break."""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from time import perf_counter
from typing import Any
from zlib import crc32

import torch

from smartree.drafters.eagle3.head import Eagle3Head, Rotary
from smartree.errors import InputError
from smartree.train.batches import Batch, make_batch, plan_batches
from smartree.train.config import TrainConfig
from smartree.train.corpus import Text
from smartree.train.unrolled import Teacher, Unrolled, weighted_mean

FeatureSource = Callable[[Text], torch.Tensor]
Progress = Callable[["TrainState"], None]
_SPLIT = 1000
# What reading a file raises that is no checkpoint, or half of one.
_DAMAGE = (OSError, RuntimeError, EOFError, UnpicklingError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(slots=True)
class TrainState:
    """Where a run is.

    Attributes:
        epoch: of the next batch.
        place: of the next batch in its epoch.
        batches: done so far.
        tokens: trained on so far, every text once an epoch.
        total: batches of the whole run.
        loss: running mean of the first step's loss.
        seconds: spent training.
    """

    epoch: int = 0
    place: int = 0
    batches: int = 0
    tokens: int = 0
    total: int = 0
    loss: float = float("nan")
    seconds: float = 0.0


def is_held_out(text: Text, share: float) -> bool:
    """True for a fixed share of the prompts: all answers to one prompt fall on the same side."""
    return crc32(repr(text.prompt).encode()) % _SPLIT < share * _SPLIT


def _shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}


class Trainer:
    """Trains a head; started again in the same folder it goes on where it was, bit for bit."""

    def __init__(
        self,
        config: TrainConfig,
        head: Eagle3Head,
        teacher: Teacher,
        texts: Sequence[Text],
        features: FeatureSource,
        folder: Path,
    ) -> None:
        """Args:
            config: settings.
            head: in float32, changed in place.
            teacher: what the target says.
            texts: the corpus.
            features: [rows, taps * Ht + Ht] of a text.
            folder: of checkpoints and log.

        Raises:
            InputError: there is too little text, or the folder's checkpoint is of another run.
        """
        self.config, self.head, self.teacher, self.folder = config, head, teacher, folder
        usable = [text for text in texts if len(text.answer) >= 2]
        self.held_out = [text for text in usable if is_held_out(text, config.held_out)]
        self.texts = [text for text in usable if not is_held_out(text, config.held_out)]
        if not self.held_out and self.texts:
            prompt = self.texts[-1].prompt
            self.held_out = [text for text in self.texts if text.prompt == prompt]
            self.texts = [text for text in self.texts if text.prompt != prompt]
        if not self.texts or not self.held_out:
            raise InputError(f"{len(texts)} texts are too few to train on; two prompts with answers are the least.")
        self._features = features
        longest = max(len(text.tokens) for text in usable)
        self.device = head.fc.weight.device
        rotary = Rotary(head.spec, longest + config.unrolled, torch.float32, self.device)
        self._unrolled = Unrolled(head, teacher, rotary)
        self._beginning = self._first_weights()
        self._optimizer = self._make_optimizer()
        self.state = TrainState(total=self._total_batches())
        self.log: list[dict[str, Any]] = []
        self._load()

    def run(self, progress: Progress | None = None) -> None:
        """Trains to the end, evaluates, saves."""
        began, before = perf_counter(), self.state.seconds
        while self.state.epoch < self.config.epochs:
            batches = self._batches(self.state.epoch)
            while self.state.place < len(batches):
                self._train_on(batches[self.state.place])
                self.state.place += 1
                self.state.batches += 1
                self.state.seconds = before + perf_counter() - began
                if progress is not None:
                    progress(self.state)
                if self.state.batches % self.config.evaluate_every == 0:
                    self._note_evaluation()
                if self.state.batches % self.config.save_every == 0:
                    self.save()
            self.state.epoch, self.state.place = self.state.epoch + 1, 0
        if not self.log or self.log[-1]["batches"] != self.state.batches:
            self._note_evaluation()
        self.save()

    @torch.no_grad()
    def evaluate(self) -> list[dict[str, float]]:
        """Loss and share of hits of each unrolled step on the held-out texts."""
        self.head.eval()
        sums = [[0.0, 0, 0] for _ in range(self.config.unrolled)]
        lengths = [len(text.tokens) - 1 for text in self.held_out]
        for numbers in plan_batches(lengths, self.config.batch_tokens, 0):
            batch = self._batch(self.held_out, numbers)  # it may run the target, which has a type of its own
            with torch.autocast(self.device.type, torch.bfloat16):
                results = self._unrolled(batch, self.config.unrolled, count_hits=True)
            for total, one in zip(sums, results, strict=True):
                total[0], total[1], total[2] = total[0] + float(one.loss), total[1] + one.rows, total[2] + one.hits
        return [{"loss": loss / max(rows, 1), "accuracy": hits / max(rows, 1)} for loss, rows, hits in sums]

    def save(self) -> None:
        """Writes everything that going on needs, beside its place and then over it.

        Raises:
            InputError: the disk is full; the last checkpoint stays.
        """
        content = {
            "config": asdict(self.config),
            "texts": self._digest(),
            "beginning": self._beginning,
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "state": asdict(self.state),
            "log": self.log,
        }
        path = self._path()
        work = path.with_name(path.name + ".new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, work)
            os.replace(work, path)
            (self.folder / "log.json").write_text(json.dumps(self.log, indent=1) + "\n", encoding="utf-8")
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            with suppress(OSError):
                work.unlink()
            raise InputError(
                f"The checkpoint {path} cannot be written ({str(error).splitlines()[0]}); make room and start again: "
                "the last one is kept."
            ) from error

    def _load(self) -> None:
        path = self._path()
        if not path.is_file():
            return
        try:
            content = torch.load(path, weights_only=True)
            settings, texts, shapes = content["config"], content["texts"], _shapes(content["head"])
            state, log, optimizer = TrainState(**content["state"]), list(content["log"]), content["optimizer"]
        except _DAMAGE as error:
            raise InputError(f"The checkpoint {path} is damaged; remove it to start anew.") from error
        differing = sorted(name for name, value in asdict(self.config).items() if settings.get(name) != value)
        if texts != self._digest():
            differing.append("the corpus")
        if shapes != _shapes(self.head.state_dict()):
            differing.append("the head's sizes")
        elif not differing and content.get("beginning", self._beginning) != self._beginning:  # a seed says it better
            differing.append("the head that it starts from")
        if differing:
            raise InputError(
                f"The checkpoint {path} is of another run: {', '.join(differing)} differ; choose another folder, or "
                "remove it."
            )
        self.head.load_state_dict(content["head"])
        self._optimizer.load_state_dict(optimizer)
        self.state, self.log = state, log

    def _train_on(self, numbers: Sequence[int]) -> None:
        self.head.train()
        batch = self._batch(self.texts, numbers)
        steps = 1 if self.state.epoch < self.config.warm_epochs else self.config.unrolled
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        with torch.autocast(self.device.type, torch.bfloat16):
            results = self._unrolled(batch, steps)
        loss = weighted_mean(results, self.config.decay)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._trained(), self.config.clip)
        self._optimizer.step()
        first = float(results[0].loss.detach()) / max(results[0].rows, 1)
        self.state.loss = first if math.isnan(self.state.loss) else 0.95 * self.state.loss + 0.05 * first
        self.state.tokens += sum(len(self.texts[number].answer) for number in numbers)

    def _note_evaluation(self) -> None:
        steps = self.evaluate()
        self.log.append(
            {
                "batches": self.state.batches,
                "epoch": self.state.epoch,
                "tokens": self.state.tokens,
                "training_loss": self.state.loss,
                "loss": [one["loss"] for one in steps],
                "accuracy": [one["accuracy"] for one in steps],
                "seconds": self.state.seconds,
            }
        )

    def _batch(self, texts: Sequence[Text], numbers: Sequence[int]) -> Batch:
        chosen = [texts[number] for number in numbers]
        states = [self._features(text).to(torch.bfloat16) for text in chosen]  # as the store keeps them
        return make_batch(chosen, states, self.head.spec.target_hidden_size).to(self.device)

    def _batches(self, epoch: int) -> list[list[int]]:
        lengths = [len(text.tokens) - 1 for text in self.texts]
        return plan_batches(lengths, self.config.batch_tokens, self.config.seed * 1000 + epoch)

    def _total_batches(self) -> int:
        return sum(len(self._batches(epoch)) for epoch in range(self.config.epochs))

    def _learning_rate(self) -> float:
        done, config = self.state.batches, self.config
        rise = min(1.0, (done + 1) / max(config.warm_up, 1))
        fall = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done / max(self.state.total, 1)))
        return config.learning_rate * rise * fall

    def _trained(self) -> list[torch.nn.Parameter]:
        return [weight for weight in self.head.parameters() if weight.requires_grad]

    def _make_optimizer(self) -> torch.optim.Optimizer:
        matrices = [weight for weight in self._trained() if weight.dim() > 1]
        vectors = [weight for weight in self._trained() if weight.dim() <= 1]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": self.config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.config.learning_rate, betas=(0.9, 0.95), fused=True)

    def _digest(self) -> str:
        """Of the texts themselves: another target answers the same prompts differently."""
        code = 0
        for text in self.texts:
            code = crc32(array("q", text.tokens).tobytes(), code)
        return f"{len(self.texts)}:{code:08x}"

    def _first_weights(self) -> str:
        """Of the head as it begins, and of the target's rows for its draft vocabulary."""
        code = 0
        for weight in (*self.head.state_dict().values(), self.teacher.rows):
            code = crc32(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes(), code)
        return f"{code:08x}"

    def _path(self) -> Path:
        return self.folder / "state.pt"
