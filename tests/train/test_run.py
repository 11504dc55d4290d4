"""A whole training run on a tiny target: texts, features, training, a head that drafts, and going on after Ctrl-C."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from smartree import LLM, SamplingParams
from smartree.drafters.eagle3.checkpoint import read_checkpoint, write_checkpoint
from smartree.errors import InputError
from smartree.policies.calibration import Calibration
from smartree.train.config import TrainConfig
from smartree.train.corpus import Corpus
from smartree.train.run import Folders, train_head
from smartree.train.writing import WritingConfig
from tests.drafters.eagle3.heads import same_tensors
from tests.tiny import character_tokenizer, random_prompts, tiny_model

SOURCES = {"one": random_prompts([3, 9, 5, 4, 6, 12], seed=1), "two": random_prompts([4, 2, 8], seed=2)}
CONFIG = TrainConfig(
    epochs=2,
    warm_epochs=1,
    unrolled=2,
    batch_tokens=128,
    warm_up=2,
    draft_vocab=40,
    held_out=0.2,
    save_every=2,
    evaluate_every=3,
)
WRITING = WritingConfig(tokens=120, max_tokens=8, temperatures=(0.0, 1.0), openers=("", "ab"))


class Reporter:
    """Remembers the stages; presses Ctrl-C in one of them if told to."""

    def __init__(self, interrupted: str = "", after: int = 0) -> None:
        self.stages: list[str] = []
        self._interrupted, self._after = interrupted, after

    def stage(self, name: str, total: int | None) -> None:
        """A stage begins."""
        self.stages.append(name)

    def step(self, done: int, total: int, note: str = "") -> None:
        """It goes on."""
        if self.stages[-1] == self._interrupted and done > self._after:
            raise KeyboardInterrupt


@cache
def llm() -> LLM:
    """A target that can chat."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{% for one in messages %}U{{ one['content'] }}E{% endfor %}A"
    model = tiny_model(peak=2.0, eos=40, window=64, dtype=torch.float32)
    return LLM(model, tokenizer=tokenizer, drafter="none", policy="none", max_batch=4)


def run(folder: Path, reporter: Reporter, cache_bytes: int = 10**9) -> dict[str, Any]:
    folders = Folders(folder / "head", folder / "work")
    return train_head(llm(), SOURCES, WRITING, CONFIG, folders, cache_bytes, reporter)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder, Reporter())


def test_a_run_gives_a_head_that_drafts(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, facts = whole
    found = read_checkpoint(folder / "head")
    assert found.spec.borrowed == {"embed_tokens", "lm_head"}
    assert found.token_ids is not None
    assert {1, 40} <= set(found.token_ids.tolist())  # both end tokens
    assert {weight.dtype for weight in found.weights.values()} == {torch.float16}
    model = tiny_model(peak=2.0, eos=40, window=64, dtype=torch.float32)
    ours = LLM(model, drafter=str(folder / "head"), policy="eagle2")
    plain = LLM(tiny_model(peak=2.0, eos=40, window=64, dtype=torch.float32), drafter="none", policy="none")
    params = SamplingParams(max_tokens=10)
    outputs = [one.generate(SOURCES["one"], params) for one in (ours, plain)]
    assert [output.token_ids for output in outputs[0]] == [output.token_ids for output in outputs[1]]
    assert sum(output.stats.accepted for output in outputs[0]) > 0
    assert 1 <= facts["tau"] < 8
    known = read_checkpoint(folder / "head").calibration
    assert known is not None
    calibration = Calibration()
    calibration.load_json(known)
    assert calibration.to_json()["rows"] == known["rows"]
    assert min(known["rows"]) < 48 <= max(known["rows"])  # of greedy drafts and of sampled ones
    assert ours.engine.calibration.to_json()["rows"]  # the engine that used it began with it


def test_a_run_says_what_it_did(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, facts = whole
    corpus = Corpus(folder / "work" / "corpus.jsonl")
    assert corpus.answer_tokens >= WRITING.tokens
    assert 0 < facts["texts"] < len(corpus)
    assert facts["tokens_trained"] == CONFIG.epochs * facts["answer_tokens"]
    assert len(facts["log"][-1]["loss"]) == CONFIG.unrolled
    assert json.loads((folder / "head" / "config.json").read_text())["training"] == json.loads(json.dumps(facts))


@pytest.mark.parametrize(
    ("stage", "after"), [("Writing texts", 60), ("Training", 1), ("Training", 3), ("Measuring tau", 0)]
)
def test_a_run_goes_on_after_an_interruption(
    stage: str, after: int, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Reporter(stage, after))
    reporter = Reporter()
    facts = run(tmp_path, reporter)
    expected = read_checkpoint(whole[0] / "head")
    if stage != "Writing texts":  # else texts end in another order
        assert same_tensors(read_checkpoint(tmp_path / "head").weights, expected.weights)
        assert facts["tau"] == whole[1]["tau"]
    assert facts["tokens_trained"] == CONFIG.epochs * facts["answer_tokens"]


def test_a_run_that_is_done_changes_nothing(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, facts = whole
    before = read_checkpoint(folder / "head").fingerprint
    again = run(folder, Reporter())
    assert read_checkpoint(folder / "head").fingerprint == before
    assert again == facts


def test_without_a_cache_the_head_is_the_same(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Hidden states that are computed anew differ from recorded ones in their last bit only."""
    facts = run(tmp_path, Reporter(), cache_bytes=0)
    assert (tmp_path / "work" / "features" / "features.bin").stat().st_size == 0
    assert facts["log"][-1]["loss"] == pytest.approx(whole[1]["log"][-1]["loss"], rel=0.02)


def test_a_head_goes_on_from_one_that_is_there(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """It keeps its draft vocabulary, and begins where the other one ended."""
    before = read_checkpoint(whole[0] / "head")
    folders = Folders(tmp_path / "head", tmp_path / "work")
    config = replace(CONFIG, draft_vocab=30, learning_rate=1e-9, epochs=1)
    facts = train_head(llm(), SOURCES, WRITING, config, folders, 10**9, Reporter(), whole[0] / "head")
    after = read_checkpoint(tmp_path / "head")
    assert facts["started_from"] == "head"
    assert after.spec == before.spec
    assert before.token_ids is not None
    assert after.token_ids is not None
    assert torch.equal(after.token_ids, before.token_ids)
    for name, weight in before.weights.items():
        assert torch.allclose(after.weights[name].float(), weight.float(), atol=1e-5), name


def test_a_run_that_began_otherwise_is_not_gone_on_with(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The texts may serve again, the checkpoint may not: it would pass the old head off as the new one."""
    folders = Folders(tmp_path / "head", whole[0] / "work")
    with pytest.raises(InputError, match="the head that it starts from differ"):
        train_head(llm(), SOURCES, WRITING, CONFIG, folders, 10**9, Reporter(), whole[0] / "head")


def test_a_head_of_other_sizes_is_no_start(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    checkpoint = read_checkpoint(whole[0] / "head")
    spec = replace(checkpoint.spec, norm_output=True)
    write_checkpoint(tmp_path / "other", spec, checkpoint.weights, checkpoint.token_ids, 64)
    folders = Folders(tmp_path / "head", whole[0] / "work")
    with pytest.raises(InputError, match=r"other sizes or layers.*leave --start out"):
        train_head(llm(), SOURCES, WRITING, CONFIG, folders, 10**9, Reporter(), tmp_path / "other")


def test_too_little_to_train_on_is_refused(tmp_path: Path) -> None:
    writing = WritingConfig(tokens=100, max_tokens=4, own_prompts=False, temperatures=(0.0,))
    folders = Folders(tmp_path / "head", tmp_path / "work")
    with pytest.raises(InputError, match="fewer than two texts"):
        train_head(llm(), {"one": [[5, 6]]}, writing, CONFIG, folders, 10**9, Reporter())
