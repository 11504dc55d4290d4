"""Hidden states of texts: computed as transformers does, cached on disk, safe against interruptions."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from smartree import LLM, SamplingParams
from smartree.engine.engine import Engine
from smartree.errors import InputError
from smartree.models.load import LoadedModel
from smartree.policies.none import NonePolicy
from smartree.train import features as features_module
from smartree.train.corpus import Text
from smartree.train.features import FeatureStore, compute_features, feature_runner, features_of
from smartree.train.recorder import FeatureRecorder
from tests.drafters.eagle3.heads import tiny_target
from tests.drafters.eagle3.oracle import hidden_states
from tests.tiny import HIDDEN, random_prompts, reference_model, tiny_model

LAYERS = (2, 0, 1)
WIDTH = HIDDEN * len(LAYERS)
TEXTS = [
    Text(f"t{place}", tuple(prompt[:-2]), tuple(prompt[-2:]))
    for place, prompt in enumerate(random_prompts([5, 3, 12, 8], seed=4))
]


@cache
def target() -> LoadedModel:
    return tiny_target()


def states(rows: int, seed: int = 0) -> torch.Tensor:
    """Made-up states."""
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def filled(folder: Path) -> FeatureStore:
    """A store of three texts."""
    store = FeatureStore(folder, LAYERS, HIDDEN)
    for place, rows in enumerate((4, 1, 9)):
        store.append(f"t{place}", states(rows, place))
    return store


def assert_filled(store: FeatureStore, count: int = 3) -> None:
    assert len(store) == count
    for place, rows in list(enumerate((4, 1, 9)))[:count]:
        assert f"t{place}" in store
        assert torch.equal(store.read(f"t{place}"), states(rows, place))


# --- Computing ---


@pytest.mark.parametrize("pass_rows", [512, 8, 5])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_states_are_those_of_transformers(architecture: str, pass_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of different length after each other in the same slot, in passes of a few rows."""
    monkeypatch.setattr(features_module, "_PASS_ROWS", pass_rows)
    runner = feature_runner(tiny_target(architecture), LAYERS, 24)
    original = reference_model(architecture)
    for text in random_prompts([20, 3, 24, 2, 9], seed=6):
        found = features_of(runner, text)
        expected = hidden_states(original, text[:-1], LAYERS)
        assert found.shape == (len(text) - 1, WIDTH)
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_what_the_store_lacks_is_computed(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, LAYERS, HIDDEN)
    store.append("t1", states(4))
    heard: list[tuple[int, int]] = []
    compute_features(target(), TEXTS, store, 10**9, lambda done, total: heard.append((done, total)))
    assert heard == [(1, 3), (2, 3), (3, 3)]
    assert len(store) == 4
    assert torch.equal(store.read("t1"), states(4))  # not again
    runner = feature_runner(target(), LAYERS, 24)
    for text in (TEXTS[0], TEXTS[2], TEXTS[3]):
        assert torch.equal(store.read(text.key), features_of(runner, text.tokens).to(torch.bfloat16))
    compute_features(target(), TEXTS, store, 10**9, lambda done, total: heard.append((done, total)))
    assert len(heard) == 3


def test_the_store_stays_within_its_size(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, LAYERS, HIDDEN)
    one = (len(TEXTS[0].tokens) - 1) * WIDTH * 2
    compute_features(target(), TEXTS, store, one + 1)
    assert [text.key in store for text in TEXTS] == [True, True, False, False]
    compute_features(target(), TEXTS, store, 0)
    assert len(store) == 2
    assert store.total_bytes == (tmp_path / "features.bin").stat().st_size


# --- The recorder hears what would be computed ---


@pytest.mark.parametrize("prefill_tokens", [512, 3])
def test_recorded_states_are_the_computed_ones(prefill_tokens: int) -> None:
    """Requests of different length decode together, join as others end, and are read in chunks."""
    llm = LLM(tiny_model(), drafter="none", policy="none", max_batch=3)
    recorder = FeatureRecorder(LAYERS)
    engine = Engine(llm.target, recorder, NonePolicy(), max_batch=3, window=60, prefill_tokens=prefill_tokens)
    prompts = random_prompts([1, 7, 12, 4, 2], seed=8)
    params = [SamplingParams(max_tokens=most, temperature=1.0, seed=3) for most in (1, 9, 5, 12, 2)]
    requests = [engine.add(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    runner, ended = feature_runner(llm.target, LAYERS, 60), []
    while engine.unfinished:
        for request in engine.step():
            if request.finish_reason is not None:
                ended.append(request)
                expected = features_of(runner, request.tokens).to(torch.bfloat16)
                recorded = recorder.pop(request.id)
                assert recorded.shape == expected.shape == (len(request.tokens) - 1, WIDTH)
                assert torch.allclose(recorded.float(), expected.float(), rtol=1e-2, atol=1e-6)
    assert len(ended) == len(requests)
    assert not recorder._states
    assert recorder.fresh().feature_layers == LAYERS


# --- Keeping ---


def test_states_come_back_as_they_were(tmp_path: Path) -> None:
    store = filled(tmp_path / "new" / "store")
    assert_filled(store)
    again = FeatureStore(tmp_path / "new" / "store", LAYERS, HIDDEN)
    assert_filled(again)
    assert again.total_bytes == 14 * WIDTH * 2
    again.append("t3", states(2, 3))
    assert torch.equal(FeatureStore(tmp_path / "new" / "store", LAYERS, HIDDEN).read("t3"), states(2, 3))
    assert "t4" not in again


def test_wider_states_are_kept_as_bfloat16(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, LAYERS, HIDDEN)
    wide = torch.randn(3, WIDTH, dtype=torch.float64)
    store.append("a", wide)
    store.append("b", wide[:, ::1].t().contiguous().t())  # not contiguous
    assert torch.equal(store.read("a"), wide.to(torch.bfloat16))
    assert torch.equal(store.read("b"), wide.to(torch.bfloat16))


def test_rows_without_an_index_line_are_written_over(tmp_path: Path) -> None:
    """The rows of a text were written when the run was interrupted, their index line was not."""
    filled(tmp_path)
    with (tmp_path / "features.bin").open("ab") as file:
        file.write(b"x" * (WIDTH * 2 * 3 + 5))
    store = FeatureStore(tmp_path, LAYERS, HIDDEN)
    assert_filled(store)
    store.append("t3", states(1, 3))
    again = FeatureStore(tmp_path, LAYERS, HIDDEN)
    assert torch.equal(again.read("t3"), states(1, 3))
    assert torch.equal(again.read("t2"), states(9, 2))


@pytest.mark.parametrize("lost", [1, 5])
def test_half_an_index_line_is_dropped(lost: int, tmp_path: Path) -> None:
    filled(tmp_path)
    index = tmp_path / "features.jsonl"
    os.truncate(index, index.stat().st_size - lost)
    store = FeatureStore(tmp_path, LAYERS, HIDDEN)
    assert_filled(store, 2)
    assert "t2" not in store
    store.append("t2", states(9, 2))
    assert_filled(FeatureStore(tmp_path, LAYERS, HIDDEN))


@pytest.mark.parametrize("left", [0, 5])
def test_an_interruption_before_the_first_text(left: int, tmp_path: Path) -> None:
    FeatureStore(tmp_path, LAYERS, HIDDEN)
    os.truncate(tmp_path / "features.jsonl", left)
    assert_filled(filled(tmp_path))
    assert_filled(FeatureStore(tmp_path, LAYERS, HIDDEN))


def test_a_text_that_is_written_twice_keeps_the_later_states(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.append("t1", states(2, 7))
    store.append("t3", states(5, 3))
    for one in (store, FeatureStore(tmp_path, LAYERS, HIDDEN)):
        for place, rows, seed in ((0, 4, 0), (1, 2, 7), (2, 9, 2), (3, 5, 3)):
            assert torch.equal(one.read(f"t{place}"), states(rows, seed))
        assert len(one) == 4


@pytest.mark.parametrize(("layers", "hidden"), [((2, 1, 0), HIDDEN), ((2, 0), HIDDEN), (LAYERS, 64)])
def test_a_store_of_other_layers_is_refused(layers: tuple[int, ...], hidden: int, tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(InputError, match=re.escape(f"[2, 0, 1] with 32 numbers each, not of {list(layers)}")) as error:
        FeatureStore(tmp_path, layers, hidden)
    assert "\n" not in str(error.value)
    assert_filled(FeatureStore(tmp_path, LAYERS, HIDDEN))


@pytest.mark.parametrize(
    ("place", "line"),
    [(0, "not json"), (0, "[1]"), (0, "4"), (2, "not json"), (2, "[1]"), (2, '["t9", "x", 3]'), (2, "{}"), (2, "4")],
)
def test_a_damaged_index_is_named(place: int, line: str, tmp_path: Path) -> None:
    filled(tmp_path)
    index = tmp_path / "features.jsonl"
    lines = index.read_text().splitlines()
    lines[place] = line
    index.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"features\.jsonl is damaged") as error:
        FeatureStore(tmp_path, LAYERS, HIDDEN)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("lost", [1, WIDTH * 2 * 10])
def test_lost_rows_are_noticed(lost: int, tmp_path: Path) -> None:
    filled(tmp_path)
    rows = tmp_path / "features.bin"
    os.truncate(rows, rows.stat().st_size - lost)
    with pytest.raises(InputError, match=r"features\.bin is damaged"):
        FeatureStore(tmp_path, LAYERS, HIDDEN)


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file.*cannot be used"):
        FeatureStore(tmp_path / "file" / "store", LAYERS, HIDDEN)


@pytest.mark.parametrize("file", ["features.bin", "features.jsonl"])
def test_a_full_disk_keeps_what_is_there(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path)
    opened = Path.open

    def full(self: Path, *args: Any, **settings: Any) -> Any:
        if self.name == file:
            with opened(self, "ab") as half:
                half.write(b"[half")
            raise OSError(28, "No space left on device")
        return opened(self, *args, **settings)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(InputError, match=r"No space left on device.*the 3 texts there are kept") as error:
        store.append("t3", states(2, 3))
    assert "\n" not in str(error.value)
    assert "t3" not in store
    monkeypatch.undo()
    store.append("t4", states(2, 4))  # there is room again
    for one in (store, FeatureStore(tmp_path, LAYERS, HIDDEN)):
        assert torch.equal(one.read("t2"), states(9, 2))
        assert torch.equal(one.read("t4"), states(2, 4))
        assert "t3" not in one


def test_the_index_is_plain_json(tmp_path: Path) -> None:
    filled(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "features.jsonl").read_text().splitlines()]
    assert lines == [[[2, 0, 1], 32, "bfloat16"], ["t0", 0, 4], ["t1", 4, 1], ["t2", 5, 9]]
