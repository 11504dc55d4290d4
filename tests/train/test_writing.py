"""The target writes a corpus: every job once, the same text for the same job, states kept along the way."""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from smartree import LLM, SamplingParams
from smartree.errors import InputError
from smartree.train.corpus import Corpus, Text
from smartree.train.features import FeatureStore, feature_runner, features_of
from smartree.train.writing import Writer, WritingConfig, user_turn
from tests.tiny import HIDDEN, character_tokenizer, random_prompts, tiny_model

TEMPLATE = "{% for one in messages %}U{{ one['content'] }}E{% endfor %}{% if add_generation_prompt %}A{% endif %}"
SOURCES = {"one": random_prompts([3, 9, 5], seed=1), "two": random_prompts([4, 2], seed=2)}
LAYERS = (2, 1, 0, 2)


@cache
def llm() -> LLM:
    """A target that can chat, and that ends its texts now and then."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    model = tiny_model(peak=2.0, eos=40, window=64)
    return LLM(model, tokenizer=tokenizer, drafter="none", policy="none", max_batch=4)


def a_config(**changes: Any) -> WritingConfig:
    settings: dict[str, Any] = {"tokens": 10**9, "max_tokens": 6, "temperatures": (0.0, 1.0), "own_prompts": False}
    return WritingConfig(**(settings | changes))


def write(path: Path, config: WritingConfig, store: FeatureStore | None = None) -> dict[str, Text]:
    """Writes; the texts by key."""
    corpus = Corpus(path / "corpus.jsonl")
    Writer(llm(), corpus, config, store).write(SOURCES)
    return {text.key: text for text in corpus}


def test_a_prompt_is_answered_once_at_every_temperature(tmp_path: Path) -> None:
    texts = write(tmp_path, a_config())
    assert len(texts) == 5 * 2
    for name, prompts in SOURCES.items():
        for index, prompt in enumerate(prompts):
            for turn in range(2):
                text = texts[f"{name}:{index}:{turn}"]
                assert list(text.prompt) == prompt
                assert 1 <= len(text.answer) <= 6
                assert len(text.answer) == 6 or text.answer[-1] in llm().target.eos_ids


def test_answers_are_the_targets_own(tmp_path: Path) -> None:
    texts = write(tmp_path, a_config(temperatures=(0.0,)))
    for name, prompts in SOURCES.items():
        for index, output in enumerate(llm().generate(prompts, SamplingParams(max_tokens=6))):
            assert list(texts[f"{name}:{index}:0"].answer) == output.token_ids


def test_temperatures_take_turns() -> None:
    writer = Writer(llm(), _nowhere(), a_config())
    kinds = {job.key: job.temperature for job in writer.jobs(SOURCES)}
    for prompt in ("one:0", "one:1", "two:1"):
        assert {kinds[f"{prompt}:{turn}"] for turn in range(2)} == {0.0, 1.0}
    assert {kinds["one:0:0"], kinds["one:1:0"]} == {0.0, 1.0}  # so that any beginning is a fair mixture
    assert [job.key for job in islice(writer.jobs(SOURCES), 4)] == ["one:0:0", "two:0:0", "one:1:0", "two:1:0"]


def _nowhere() -> Corpus:
    """An empty corpus that is never written to."""
    corpus = object.__new__(Corpus)
    corpus.keys, corpus.given_up, corpus.answer_tokens = set(), set(), 0
    return corpus


def test_the_same_job_writes_the_same_text(tmp_path: Path) -> None:
    """Whatever decodes beside it."""
    first = write(tmp_path / "a", a_config())
    other = LLM(llm().target.model, tokenizer=llm().target.tokenizer, drafter="none", policy="none", max_batch=1)
    corpus = Corpus(tmp_path / "b" / "corpus.jsonl")
    Writer(other, corpus, a_config()).write(SOURCES)
    assert {text.key: text for text in corpus} == first


def test_jobs_draw_their_own_noise(tmp_path: Path) -> None:
    """The same prompt again is another job, and at temperature 1 another text."""
    corpus = Corpus(tmp_path / "corpus.jsonl")
    prompt = SOURCES["one"][0]
    Writer(llm(), corpus, a_config(temperatures=(1.0,))).write({"a": [prompt] * 4, "b": [prompt] * 4})
    assert len({text.answer for text in corpus}) >= 6


def test_writing_stops_when_there_is_enough(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    corpus = Corpus(tmp_path / "corpus.jsonl")
    writer = Writer(llm(), corpus, a_config(tokens=12))
    writer.write(SOURCES, lambda done, wanted: heard.append((done, wanted)))
    assert 12 <= corpus.answer_tokens < 12 + 4 * 6
    assert heard[-1] == (corpus.answer_tokens, 12)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert writer.engine.unfinished == 0
    assert writer.engine.runner.seating.rows_in_use() == 0


@pytest.mark.parametrize("own", [False, True])
def test_an_interrupted_run_goes_on_where_it_was(own: bool, tmp_path: Path) -> None:
    config = a_config(own_prompts=own, tokens=60)
    whole = write(tmp_path / "whole", config)

    def interrupt(done: int, _wanted: int) -> None:
        """In a step in which several texts may have ended."""
        if done > 15:
            raise KeyboardInterrupt

    path = tmp_path / "parts" / "corpus.jsonl"
    corpus = Corpus(path)
    writer = Writer(llm(), corpus, config)
    with pytest.raises(KeyboardInterrupt):
        writer.write(SOURCES, interrupt)
    assert writer.engine.unfinished == 0
    assert writer.engine.runner.seating.rows_in_use() == 0
    written = list(corpus)
    assert written
    again = Corpus(path)
    Writer(llm(), again, config).write(SOURCES)
    texts = list(again)
    assert texts[: len(written)] == written
    assert len({text.key for text in texts}) == len(texts)  # nothing twice
    shared = {text.key for text in texts} & whole.keys()
    assert len(shared) > len(written)
    assert all(whole[text.key] == text for text in texts if text.key in shared)


def test_nothing_is_written_twice(tmp_path: Path) -> None:
    texts = write(tmp_path, a_config())
    assert write(tmp_path, a_config()) == texts
    assert len((tmp_path / "corpus.jsonl").read_text().splitlines()) == len(texts)


def test_states_are_kept_along_the_way(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "features", LAYERS, HIDDEN)
    texts = write(tmp_path, a_config(own_prompts=True, tokens=80), store)
    assert any(key.startswith("own:") for key in texts)
    assert len(store) == len(texts)
    runner = feature_runner(llm().target, LAYERS, 64)
    for text in texts.values():
        expected = features_of(runner, text.tokens).to(torch.bfloat16)
        assert torch.allclose(store.read(text.key).float(), expected.float(), rtol=1e-2, atol=1e-6)


def test_states_are_kept_while_there_is_room(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "features", LAYERS, HIDDEN)
    corpus, limit = Corpus(tmp_path / "corpus.jsonl"), 20 * store.width * 2
    Writer(llm(), corpus, a_config(), store, limit).write(SOURCES)
    assert len(corpus) == 10
    assert 0 < len(store) < 10
    largest = max(len(text.tokens) for text in corpus) * store.width * 2
    assert limit <= store.total_bytes < limit + largest


def test_what_comes_before_and_after_the_users_words() -> None:
    before, after = user_turn(llm())
    tokenizer = llm().target.tokenizer
    assert tokenizer is not None
    assert tokenizer.decode(before) == "U"
    assert tokenizer.decode(after) == "EA"


def test_the_target_writes_prompts_of_its_own(tmp_path: Path) -> None:
    texts = write(tmp_path, a_config(own_prompts=True, tokens=80, openers=("", "ab")))
    before, after = user_turn(llm())
    own = [text for key, text in texts.items() if key.startswith("own:")]
    assert len(own) >= 3
    for text in own:
        assert list(text.prompt[: len(before)]) == before
        assert list(text.prompt[-len(after) :]) == after
        words = text.prompt[len(before) : -len(after)]
        assert words
        assert not llm().target.eos_ids & set(words)  # the end of the turn is the template's, not the target's
        if int(text.key.split(":")[1]) % 2:
            assert list(words[:2]) == llm().encode("ab")[-2:]
    # Half of the jobs, in turn with the files'.
    keys = [job.key for job in islice(Writer(llm(), _nowhere(), a_config(own_prompts=True)).jobs(SOURCES), 6)]
    assert keys == ["one:0:0", "own:0", "two:0:0", "own:1", "one:1:0", "own:2"]


def test_files_that_run_out_leave_the_own_prompts() -> None:
    writer = Writer(llm(), _nowhere(), a_config(own_prompts=True))
    keys = [job.key for job in islice(writer.jobs({"one": SOURCES["one"]}), 20)]
    assert keys[-5:] == [f"own:{place}" for place in range(9, 14)]
    assert [job.key for job in islice(writer.jobs({}), 3)] == ["own:0", "own:1", "own:2"]


def test_prompts_as_long_as_the_window_are_left_out(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus.jsonl")
    prompts = random_prompts([63, 64, 70, 62, 60], seed=5)
    Writer(llm(), corpus, a_config(temperatures=(0.0,))).write({"long": prompts})
    assert {text.key for text in corpus} == {"long:3:0", "long:4:0"}
    assert all(len(text.tokens) < 64 for text in corpus)


def test_no_prompts_no_texts(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus.jsonl")
    Writer(llm(), corpus, a_config()).write({"empty": []})
    assert len(corpus) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"temperatures": ()}, "at least one"),
        ({"openers": ()}, "at least one"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        a_config(**change)


@pytest.mark.parametrize(("eos", "window"), [(None, 64), (40, 4)])
def test_a_target_that_finishes_no_prompt_is_given_up(eos: int | None, window: int, tmp_path: Path) -> None:
    """It never ends its turn, or its window has no room for one: nothing would ever come of it."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.eos_token = None
    model = tiny_model(peak=2.0, eos=eos, window=window)
    endless = LLM(model, tokenizer=tokenizer, drafter="none", policy="none", max_batch=32)
    corpus = Corpus(tmp_path / "corpus.jsonl")
    with pytest.raises(InputError, match="finished none of 200 prompts"):
        Writer(endless, corpus, a_config(own_prompts=True, openers=("", "abc"))).write({})
    assert len(corpus) == 0


def test_prompts_that_came_to_nothing_are_not_tried_again(tmp_path: Path) -> None:
    """Else a long run that goes on begins with all its failures in a row, and is given up for them."""
    config = a_config(own_prompts=True, tokens=60, openers=("",))
    corpus = Corpus(tmp_path / "corpus.jsonl")
    for index in range(0, 2000, 2):
        corpus.give_up(f"own:{index}")
    Writer(llm(), corpus, config).write({})
    again = Corpus(corpus.path)
    written = {text.key for text in again}
    assert written
    assert not written & {f"own:{index}" for index in range(0, 2000, 2)}


def test_a_target_that_has_finished_prompts_is_never_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many fail in a row: those of an older corpus are not noted."""
    monkeypatch.setattr("smartree.train.writing._MOST_FRUITLESS", 1)
    monkeypatch.setattr("smartree.train.writing._PATIENCE", 100)
    corpus = Corpus(tmp_path / "corpus.jsonl")
    corpus.append(Text("own:0", (1,), (2,)))
    Writer(llm(), corpus, a_config(own_prompts=True, tokens=80)).write({})
    assert corpus.given_up  # at least one failed
    assert corpus.answer_tokens >= 80


def test_own_prompts_need_a_chat_template() -> None:
    plain = LLM(tiny_model(), tokenizer=character_tokenizer(), drafter="none", policy="none")
    with pytest.raises(InputError, match="no chat template"):
        Writer(plain, _nowhere(), a_config(own_prompts=True))
