"""Measuring a setup: the grid is covered, the profile is saved, found again, and good for this setup only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from smartree import LLM, SamplingParams
from smartree.cost.profile import Profile
from smartree.drafters.factory import model_drafter
from smartree.drafters.ngram import NgramDrafter
from smartree.engine import knowledge
from smartree.engine import measure as measure_module
from smartree.engine.measure import (
    _time_rounds,
    device_name,
    grid,
    measure,
    profile_key,
    profile_path,
    uneven_shapes,
)
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


@pytest.mark.parametrize("most", [1, 2, 3, 12, 16, 64])
@pytest.mark.parametrize("window", [100, 4096])
def test_uneven_shapes_have_padding_and_fit(most: int, window: int) -> None:
    shapes = uneven_shapes(most, window)
    assert len(shapes) == len(set(shapes))
    assert bool(shapes) == (most > 1)  # one request has nobody to be uneven with
    measured = {(batch, context) for batch, _, context in grid(most, window)}
    for sizes, context in shapes:
        assert (len(sizes), context) in measured  # what they take longer is told from even passes
        assert 1 == min(sizes) < max(sizes) <= 64
        assert context + max(sizes) <= window
    if most > 1:
        assert most in {len(sizes) for sizes, _ in shapes}
        places = [len(sizes) * max(sizes) - sum(sizes) for sizes, _ in shapes]
        assert max(places) >= 2 * min(places)  # a constant and a slope can be told apart


def test_uneven_passes_are_measured(target: LoadedModel) -> None:
    profile = measure(target, None, 3, 200, seconds=0.1)
    measured = [(point.batch, point.tokens, point.width, point.context) for point in profile.uneven]
    assert measured == [(len(sizes), sum(sizes), max(sizes), context) for sizes, context in uneven_shapes(3, 200)]
    assert all(0 < point.seconds < 5 for point in profile.uneven)
    assert Profile.from_json(profile.to_json()).uneven == profile.uneven
    assert measure(target, None, 1, 100, seconds=0.01).uneven == ()


class Clock:
    """A clock that only passes move on, each by what it is said to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.done = 0.0, 0
        monkeypatch.setattr(measure_module, "perf_counter", lambda: self.now)

    def passes(
        self, takes: Callable[[int, int], float], count: int
    ) -> dict[tuple[str, int, int, int], Callable[[], None]]:
        """`takes(pass, how many passes were made before)` is its time."""

        def one(place: int) -> Callable[[], None]:
            def run() -> None:
                self.now += takes(place, self.done)
                self.done += 1

            return run

        return {("verify", 1, place, 0): one(place) for place in range(count)}


CLOCKS: dict[str, Callable[[int, int], float]] = {
    "steady": lambda place, done: 0.001 * (1 + place),
    "slower and slower": lambda place, done: 0.001 * (1 + place) * 1.02**done,
    "faster and faster": lambda place, done: 0.02 * (1 + place) * 0.99**done,
    "jumps once": lambda place, done: 0.002 * (1 + place) * (1 if done < 60 else 7),
    "restless": lambda place, done: 0.002 * (1 + place) * (1 + done * 7919 % 5),
}


@pytest.mark.parametrize("budget", [0.0, 0.2, 0.5, 1.0, 3.0, 60.0])
@pytest.mark.parametrize("clock", CLOCKS)
def test_progress_ends_at_its_total_and_never_goes_back(
    clock: str, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[int, int]] = []
    passes = Clock(monkeypatch).passes(CLOCKS[clock], 9)
    times = _time_rounds(passes, budget, torch.device("cpu"), lambda done, expected: heard.append((done, expected)))
    shares = [done / expected for done, expected in heard]
    assert shares == sorted(shares)
    assert heard[-1] == (sum(map(len, times.values())),) * 2
    assert all(done < expected for done, expected in heard if done < heard[-1][0])


@pytest.mark.parametrize("budget", [0.0, 0.2, 1.0, 60.0])
@pytest.mark.parametrize("clock", CLOCKS)
def test_the_shorter_half_gets_at_least_as_many_rounds(
    clock: str, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = _time_rounds(Clock(monkeypatch).passes(CLOCKS[clock], 9), budget, torch.device("cpu"), None)
    rounds = [len(seen) for seen in times.values()]
    assert min(rounds) >= 3
    assert max(rounds) <= 30
    if clock == "steady":
        assert rounds == sorted(rounds, reverse=True)
        assert len(set(rounds[:5])) == 1
        assert set(rounds[5:]) == {3}
        assert {0.0: rounds[0] == 3, 60.0: rounds[0] == 30}.get(budget, rounds[0] > 3)


def test_the_first_call_of_a_pass_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_at_first(place: int, done: int) -> float:
        return 100.0 if done < 4 else 0.01

    times = _time_rounds(Clock(monkeypatch).passes(slow_at_first, 4), 1.0, torch.device("cpu"), None)
    assert max(max(seen) for seen in times.values()) == pytest.approx(0.01)
    assert max(map(len, times.values())) == 30  # nor does it count against the budget


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

    monkeypatch.setattr(knowledge, "measure", quickly)

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
        knowledge, "measure", lambda target, *rest: Profile(profile_key(target, None), flat_profile().verify)
    )
    llm = LLM(tiny_model("llama"), policy="none", max_batch=2)
    assert llm.profile is None
    assert llm.knowledge.cost_model() is None
    assert llm.make_engine("smart").policy.name == "smart"
    assert llm.profile is not None
    assert llm.knowledge.saved_profile() is not None
