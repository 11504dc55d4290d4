"""Training: the loss falls, an interruption changes nothing, a checkpoint is never lost."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from smartree.drafters.eagle3.head import Eagle3Head
from smartree.errors import InputError
from smartree.train.batches import Batch
from smartree.train.beginning import new_head, spec_for, teacher_of
from smartree.train.corpus import Text
from smartree.train.features import feature_runner, features_of
from smartree.train.trainer import Trainer, TrainState, is_held_out
from smartree.train.unrolled import StepResult
from tests.drafters.eagle3.heads import same_tensors, tiny_target
from tests.train import small
from tests.train.small import a_config, a_head, a_teacher, a_trainer, texts


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The head's weights as they are now."""
    return {name: weight.clone() for name, weight in trainer.head.state_dict().items()}


def interrupt_after(batches: int) -> Callable[[TrainState], None]:
    """A progress callback that behaves like Ctrl-C."""

    def progress(state: TrainState) -> None:
        if state.batches == batches:
            raise KeyboardInterrupt

    return progress


def without_clock(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The log, but for what the clock says."""
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in log]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run that nobody interrupted."""
    trainer = a_trainer(tmp_path_factory.mktemp("whole"))
    trainer.run()
    return trainer


# --- Learning ---


def test_the_loss_falls(tmp_path: Path) -> None:
    config = a_config(epochs=12, warm_epochs=2, batch_tokens=256, learning_rate=1e-2, evaluate_every=10**6)
    trainer = a_trainer(tmp_path, config)
    before = weights(trainer)
    trainer.held_out = trainer.texts  # what it is to learn by heart
    first = trainer.evaluate()
    trainer.run()
    last = trainer.log[-1]
    for step in range(3):
        assert last["loss"][step] < 0.6 * first[step]["loss"]
    assert last["accuracy"][0] > first[0]["accuracy"] + 0.2
    assert trainer.state.loss < 0.6 * first[0]["loss"]
    # Everything has learnt but the output rows, which are the target's.
    after = weights(trainer)
    assert [name for name in before if torch.equal(before[name], after[name])] == ["lm_head.weight"]


def test_evaluating_changes_nothing(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path)
    before = weights(trainer)
    first, again = trainer.evaluate(), trainer.evaluate()
    assert first == again
    assert len(first) == 3
    assert all(0 <= one["accuracy"] <= 1 and one["loss"] > 0 for one in first)
    assert same_tensors(before, weights(trainer))


def test_a_run_counts_its_batches_and_tokens(whole: Trainer) -> None:
    state, config = whole.state, whole.config
    per_epoch = sum(len(text.answer) for text in whole.texts)
    assert (state.epoch, state.place) == (config.epochs, 0)
    assert state.batches == state.total > config.epochs
    assert state.tokens == config.epochs * per_epoch
    assert state.seconds > 0
    batches = [entry["batches"] for entry in whole.log]
    assert batches == [*range(config.evaluate_every, state.batches, config.evaluate_every), state.batches]
    assert [entry["tokens"] for entry in whole.log] == sorted(entry["tokens"] for entry in whole.log)
    assert json.loads((whole.folder / "log.json").read_text()) == whole.log


def test_warm_epochs_run_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = a_trainer(tmp_path, a_config(epochs=3, warm_epochs=2, evaluate_every=10**6, save_every=10**6))
    steps: list[int] = []
    unrolled = trainer._unrolled

    def count_steps(batch: Batch, count: int, count_hits: bool = False) -> list[StepResult]:
        steps.append(count)
        return unrolled(batch, count, count_hits)

    monkeypatch.setattr(trainer, "_unrolled", count_steps)
    trainer.run()
    per_epoch = trainer.state.total // 3
    assert set(steps[:per_epoch]) == {1}
    assert steps[2 * per_epoch + 1] == 3


def test_the_rate_rises_and_falls(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, a_config(epochs=20, warm_up=10))
    rates = []
    for done in range(trainer.state.total):
        trainer.state.batches = done
        rates.append(trainer._learning_rate())
    assert rates[0] == pytest.approx(trainer.config.learning_rate / 10, rel=0.01)
    peak = rates.index(max(rates))
    assert 5 <= peak <= 12
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(0.05 * trainer.config.learning_rate, rel=0.1)


def test_a_run_without_warm_up(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, a_config(warm_up=0, epochs=1, warm_epochs=0, unrolled=1))
    trainer.run()
    assert trainer.state.batches == trainer.state.total


def test_every_epoch_has_an_order_of_its_own(whole: Trainer) -> None:
    epochs = [whole._batches(epoch) for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert whole._batches(1) == epochs[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_targets_of_every_type_teach(dtype: torch.dtype, tmp_path: Path) -> None:
    """With hidden states computed anew for every batch, as beyond the limit of the cache."""
    target, config = tiny_target(dtype=dtype), a_config(epochs=1, warm_epochs=0, evaluate_every=2)
    runner = feature_runner(target, small.layers(), 64)
    ids = small.token_ids()
    head = new_head(spec_for(target, config), target, 0)
    trainer = Trainer(
        config, head, teacher_of(target, ids), texts(), lambda text: features_of(runner, text.tokens), tmp_path
    )
    trainer.run()
    assert trainer.state.batches == trainer.state.total
    assert all(loss > 0 for entry in trainer.log for loss in entry["loss"])
    assert all(torch.isfinite(weight).all() for weight in head.parameters())


def test_states_from_the_cache_and_computed_ones_train_alike(whole: Trainer, tmp_path: Path) -> None:
    """Bit for bit: a cache that is full in one run and empty in another changes nothing."""
    runner = feature_runner(small.target(), small.layers(), 64)
    other = a_trainer(tmp_path, source=lambda text: features_of(runner, text.tokens))
    other.run()
    assert same_tensors(weights(other), weights(whole))


# --- Interruptions ---


@pytest.mark.parametrize("after", [1, 4, 5, 7])
def test_an_interrupted_run_ends_with_the_same_weights_bit_for_bit(after: int, whole: Trainer, tmp_path: Path) -> None:
    """Before the first checkpoint, right after one, between two, and in another epoch."""
    assert after < whole.state.total
    with pytest.raises(KeyboardInterrupt):
        a_trainer(tmp_path).run(interrupt_after(after))
    again = a_trainer(tmp_path)
    assert again.state.batches == after - after % again.config.save_every or after % again.config.save_every == 0
    again.run()
    assert same_tensors(weights(again), weights(whole))
    assert without_clock(again.log) == without_clock(whole.log)
    assert again.state.tokens == whole.state.tokens
    assert again.state.loss == whole.state.loss


def test_a_run_interrupted_again_and_again(whole: Trainer, tmp_path: Path) -> None:
    for after in (5, 6, 9):
        if after < whole.state.total:
            with pytest.raises(KeyboardInterrupt):
                a_trainer(tmp_path).run(interrupt_after(after))
    again = a_trainer(tmp_path)
    again.run()
    assert same_tensors(weights(again), weights(whole))


def test_a_finished_run_is_only_loaded(whole: Trainer) -> None:
    again = a_trainer(whole.folder)
    trained = []
    again.run(lambda state: trained.append(state.batches))
    assert not trained
    assert same_tensors(weights(again), weights(whole))
    assert again.log == whole.log
    assert again.state == whole.state


def test_two_runs_give_the_same_weights(whole: Trainer, tmp_path: Path) -> None:
    other = a_trainer(tmp_path)
    other.run()
    assert same_tensors(weights(other), weights(whole))
    third = a_trainer(tmp_path / "other", a_config(seed=1))
    third.run()
    assert not same_tensors(weights(third), weights(whole))


# --- Checkpoints ---


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learning_rate": 1e-4}, "learning_rate differ"),
        ({"epochs": 9}, "epochs differ"),
        ({"seed": 3, "clip": 0.1}, "clip, seed differ"),
        ({"held_out": 0.9}, "held_out, the corpus differ"),
        ({"intermediate_size": 8}, "intermediate_size, the head's sizes differ"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused_by_name(changes: dict[str, Any], named: str, whole: Trainer) -> None:
    with pytest.raises(InputError, match=named) as error:
        a_trainer(whole.folder, a_config(**changes))
    assert "\n" not in str(error.value)
    assert str(whole.folder) in str(error.value)


def test_a_checkpoint_of_another_corpus_is_refused(whole: Trainer) -> None:
    more = [*texts(), Text("more", (1, 2, 3), (4, 5, 6))]
    with pytest.raises(InputError, match="the corpus differ"):
        a_trainer(whole.folder, corpus=more)


def test_a_checkpoint_of_another_target_is_refused(whole: Trainer) -> None:
    """The same settings and texts, but a wider head."""
    config = a_config()
    wider = Eagle3Head(dataclasses.replace(a_head(config).spec, head_dim=16))
    with pytest.raises(InputError, match="the head's sizes differ"):
        Trainer(config, wider, a_teacher(), texts(), small.read, whole.folder)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_checkpoint_cut_short_is_named(share: float, whole: Trainer, tmp_path: Path) -> None:
    content = (whole.folder / "state.pt").read_bytes()
    (tmp_path / "state.pt").write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"state\.pt is damaged") as error:
        a_trainer(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [{"config": {}}, [1, 2], {}, 3, {"head": {"a": torch.ones(1)}}])
def test_a_checkpoint_of_something_else_is_named(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "state.pt")
    with pytest.raises(InputError, match=r"state\.pt is damaged"):
        a_trainer(tmp_path)


def test_garbage_for_a_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(b"\x80\x02not a checkpoint")
    with pytest.raises(InputError, match=r"state\.pt is damaged"):
        a_trainer(tmp_path)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("write failed\nat 0x1234")])
@pytest.mark.parametrize("place", ["torch.save", "os.replace"])
def test_a_full_disk_keeps_the_last_checkpoint(
    place: str, error: Exception, whole: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the run goes on from there, bit for bit, once there is room."""
    with pytest.raises(KeyboardInterrupt):
        a_trainer(tmp_path).run(interrupt_after(5))
    kept = (tmp_path / "state.pt").read_bytes()

    def full(_content: Any, path: Path) -> None:
        path.write_bytes(b"half a checkpoint")
        raise error

    def cannot_move(_source: Path, _target: Path) -> None:
        raise error

    if place == "torch.save":
        monkeypatch.setattr(torch, "save", full)
    else:
        monkeypatch.setattr(os, "replace", cannot_move)
    with pytest.raises(InputError, match="cannot be written") as message:
        a_trainer(tmp_path).run()
    assert "\n" not in str(message.value)
    assert "the last one is kept" in str(message.value)
    monkeypatch.undo()
    assert (tmp_path / "state.pt").read_bytes() == kept
    assert not list(tmp_path.glob("*.new"))
    again = a_trainer(tmp_path)
    again.run()
    assert same_tensors(weights(again), weights(whole))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    trainer = a_trainer(tmp_path / "file" / "run")
    with pytest.raises(InputError, match="cannot be written"):
        trainer.save()


# --- What is held out ---


def many(prompts: int, answers: int) -> list[Text]:
    """Several answers to each prompt."""
    return [
        Text(f"{answer}:{prompt}", (prompt, prompt + 1, 7), (answer, 5, 6))
        for answer in range(answers)
        for prompt in range(prompts)
    ]


def made_up(text: Text) -> torch.Tensor:
    """States that nobody looks at."""
    return torch.zeros(len(text.tokens) - 1, 32 * 4, dtype=torch.bfloat16)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.6])
def test_all_answers_to_a_prompt_are_on_one_side(share: float, tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, a_config(held_out=share), many(400, 3), made_up)
    held, trained = ({text.prompt for text in side} for side in (trainer.held_out, trainer.texts))
    assert not held & trained
    assert len(trainer.held_out) + len(trainer.texts) == 1200
    assert len(trainer.held_out) == 3 * len(held)
    assert 0.5 * share < len(held) / 400 < 2 * share
    assert all(is_held_out(text, share) for text in trainer.held_out)


def test_a_small_corpus_holds_one_prompt_out_with_all_its_answers(tmp_path: Path) -> None:
    corpus = [text for text in many(40, 3) if not is_held_out(text, 0.02)][:60]
    trainer = a_trainer(tmp_path, a_config(held_out=0.02), corpus, made_up)
    prompts = {text.prompt for text in trainer.held_out}
    assert len(prompts) == 1
    assert not prompts & {text.prompt for text in trainer.texts}
    assert len(trainer.held_out) + len(trainer.texts) == 60


@pytest.mark.parametrize(
    "corpus", [[], many(1, 1), many(1, 5), [Text("a", (1,), (2,)), Text("b", (3,), (4,)), Text("c", (5,), (6, 7))]]
)
def test_too_little_text_is_refused(corpus: list[Text], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{len(corpus)} texts are too few"):
        a_trainer(tmp_path, corpus=corpus, source=made_up)


def test_answers_of_one_token_are_left_out(tmp_path: Path) -> None:
    corpus = [*many(30, 2), *(Text(f"short {place}", (place,), (3,)) for place in range(20))]
    trainer = a_trainer(tmp_path, a_config(epochs=1), corpus, made_up)
    assert len(trainer.texts) + len(trainer.held_out) == 60
    trainer.run()
