"""Measuring a setup: the grid is covered, the profile is saved, found again, and good for this setup only."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from smartree import LLM, SamplingParams
from smartree.cost.profile import Profile
from smartree.drafters.factory import model_drafter
from smartree.drafters.ngram import NgramDrafter
from smartree.engine import llm as llm_module
from smartree.engine.measure import device_name, grid, measure, profile_key, profile_path
from smartree.errors import ProfileMismatchError
from smartree.models.load import LoadedModel, prepare_model
from tests.tiny import flat_profile, tiny_model


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return prepare_model(tiny_model("llama", dtype=torch.float32), None, "target")


@pytest.mark.parametrize("most", [1, 2, 3, 4, 12, 16])
def test_the_grid_spans_batches_and_sizes(most: int) -> None:
    points = grid(most, 4096)
    assert len(points) == len(set(points))
    batches = {batch for batch, _, _ in points}
    assert {1, most} <= batches
    assert max(batches) == most
    for batch in batches:
        rows = [rows for one, rows, context in points if one == batch and context < 1000]
        assert 1 in rows  # plain decoding is what everything is compared with
        assert len(rows) >= 4  # enough to fit the paper's curve
    assert len({context for _, _, context in points}) == 2  # costs grow with the context


@pytest.mark.parametrize("window", [8, 40, 100, 300])
def test_the_grid_fits_small_windows(window: int) -> None:
    assert all(context >= 1 for _, _, context in grid(2, window))
    if window >= 100:
        assert all(context + rows <= window for _, rows, context in grid(2, window))


def test_every_point_of_the_grid_is_measured(target: LoadedModel) -> None:
    heard: list[tuple[int, int]] = []
    profile = measure(target, None, 3, 200, lambda done, expected: heard.append((done, expected)), seconds=0.2)
    points = {(point.batch, point.tokens, point.context) for point in profile.verify}
    assert points == {(batch, batch * rows, context) for batch, rows, context in grid(3, 200)}
    assert all(0 < point.seconds < 5 for point in profile.verify)
    assert not profile.draft.by_level
    assert profile.draft.seconds_per_step < 0.01
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1][0] == heard[-1][1]
    assert 0 < profile.seconds < 60
    cost = profile.cost_model()
    assert 0 < cost.autoregressive(2, 100) < 5


def test_draft_levels_are_measured_for_a_draft_model(target: LoadedModel) -> None:
    draft_model = prepare_model(tiny_model("llama", seed=1, dtype=torch.float32), None, "draft")
    profile = measure(target, model_drafter(draft_model, target, 2, 200), 2, 200, seconds=0.2)
    assert profile.draft.by_level
    widths = {(point.batch, point.width) for point in profile.draft.levels}
    assert {batch for batch, _ in widths} == {1, 2}
    assert all(len([width for one, width in widths if one == batch]) >= 2 for batch in (1, 2))
    assert all(point.seconds > 0 for point in profile.draft.levels)


@pytest.mark.parametrize("vocab", [2, 50])
def test_tiny_vocabularies_are_measured_too(vocab: int) -> None:
    tiny = prepare_model(tiny_model("llama", vocab=vocab, dtype=torch.float32), None, "tiny")
    assert measure(tiny, None, 1, 100, seconds=0.01).verify


def test_a_profile_survives_the_file(target: LoadedModel, tmp_path: Path) -> None:
    profile = measure(target, None, 1, 100, seconds=0.01)
    profile.save(tmp_path / "deep" / "profile.json")
    loaded = Profile.load(tmp_path / "deep" / "profile.json")
    assert loaded.key == profile.key
    assert set(loaded.verify) == set(profile.verify)
    assert loaded.draft == profile.draft


def test_the_key_names_the_setup(target: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    key = profile_key(target, None)
    assert key == profile_key(target, NgramDrafter())  # looking up costs the target's passes nothing
    assert key.dtype == "float32"
    assert key.threads == torch.get_num_threads()
    assert key.torch == torch.__version__
    assert device_name(torch.device("cpu")) == key.device != ""
    key.require(key)
    other_type = prepare_model(tiny_model("llama"), None, "other")
    with pytest.raises(ProfileMismatchError, match="dtype"):
        key.require(profile_key(other_type, None))
    other_model = prepare_model(tiny_model("qwen2", dtype=torch.float32), None, "other")
    with pytest.raises(ProfileMismatchError, match="model"):
        key.require(profile_key(other_model, None))
    draft_model = prepare_model(tiny_model("llama", seed=1, dtype=torch.float32), None, "draft")
    with pytest.raises(ProfileMismatchError, match="drafter"):
        key.require(profile_key(target, model_drafter(draft_model, target, 1, 100)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    with pytest.raises(ProfileMismatchError, match="threads"):
        key.require(profile_key(target, None))


def test_keys_have_files_of_their_own(target: LoadedModel, own_cache: Path) -> None:
    key = profile_key(target, None)
    assert profile_path(key).is_relative_to(own_cache)
    assert profile_path(key) == profile_path(profile_key(target, None))
    assert profile_path(dataclasses.replace(key, threads=99)) != profile_path(key)


def test_a_setup_is_measured_once_and_found_again(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def quickly(target: LoadedModel, drafter: object, max_batch: int, *rest: object) -> Profile:
        measured.append(max_batch)
        points = flat_profile().verify
        return Profile(profile_key(target, None), tuple(point for point in points if point.batch <= max_batch))

    monkeypatch.setattr(llm_module, "measure", quickly)

    def make(**settings: object) -> LLM:
        return LLM(tiny_model("llama"), **({"max_batch": 2} | settings))  # type: ignore[arg-type]

    first = make()
    assert measured == [2]
    assert list(own_cache.rglob("*.json"))
    again = make()
    assert measured == [2]
    assert again.profile is not None
    assert first.profile is not None
    assert set(again.profile.verify) == set(first.profile.verify)
    assert make(max_batch=1).profile is not None
    assert measured == [2]  # a larger batch was measured, which covers a smaller one
    make(max_batch=4)
    assert measured == [2, 4]
    make(policy="none")
    make(policy="eagle2")
    make(profile=flat_profile())
    assert measured == [2, 4]  # who needs no costs, or brings them, waits for nothing
    outputs = again.generate([[1, 2, 3, 1, 2, 3]], SamplingParams(max_tokens=5))
    assert len(outputs[0].token_ids) == 5


def test_an_engine_that_needs_costs_measures_them_when_it_is_made(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        llm_module, "measure", lambda target, *rest: Profile(profile_key(target, None), flat_profile().verify)
    )
    llm = LLM(tiny_model("llama"), policy="none", max_batch=2)
    assert llm.profile is None
    assert llm.cost_model() is None
    assert llm.make_engine("smart").policy.name == "smart"
    assert llm.profile is not None
    assert llm.saved_profile() is not None
