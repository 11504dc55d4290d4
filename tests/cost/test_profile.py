"""Profiles as JSON: nothing is lost, nothing half-written, and bad input gets one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartree.cost import CostPoint, DraftCost, DraftPoint, Profile, ProfileKey
from smartree.errors import InputError
from tests.cost.keys import KEY

VERIFY = tuple(CostPoint(b, b * n, c, 0.01 * b * n + c) for b in (1, 4) for c in (0, 512) for n in (1, 2, 4, 8, 16))
ROW = {"batch": 1, "tokens": 1, "context": 0, "seconds": 0.5}

SECONDS = st.floats(1e-6, 10.0)
# At most three sizes a batch: the fits in the JSON take time and are tested elsewhere.
POINTS = st.builds(
    lambda batch, rows, context, seconds: CostPoint(batch, batch * rows, context, seconds),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0, 64, 512]),
    SECONDS,
)
DRAFTS = st.one_of(
    st.builds(DraftCost, st.floats(0.0, 1.0)),
    st.builds(
        lambda points: DraftCost(levels=tuple(points)),
        st.lists(st.builds(DraftPoint, st.integers(1, 4), st.integers(1, 40), SECONDS), min_size=1, max_size=4),
    ),
)


def through_json(profile: Profile) -> Profile:
    return Profile.from_json(json.loads(json.dumps(profile.to_json())))


def one_sentence(error: pytest.ExceptionInfo[InputError]) -> bool:
    message = str(error.value)
    return message.endswith(".") and "\n" not in message


@given(st.sampled_from([KEY, None]), st.lists(POINTS, min_size=1, max_size=8, unique=True), DRAFTS, st.floats(0, 100))
@settings(deadline=None, max_examples=100)
def test_a_profile_survives_json(
    key: ProfileKey | None, points: list[CostPoint], draft: DraftCost, seconds: float
) -> None:
    profile = Profile(key, tuple(points), draft, seconds)
    assert through_json(profile) == profile


def test_a_profile_survives_a_file(tmp_path: Path) -> None:
    profile = Profile(KEY, VERIFY, DraftCost(0.25), 9.5)
    profile.save(tmp_path / "new" / "profile.json")  # the folder is made
    assert Profile.load(tmp_path / "new" / "profile.json") == profile


def test_repeated_measurements_predict_the_same_after_json() -> None:
    # A coarse clock measures the same time twice: the median of 5, 5, 9 is 5, that of 5, 9 would be 7.
    profile = Profile(None, tuple(CostPoint(1, 8, 0, seconds) for seconds in (5.0, 5.0, 9.0)))
    before, after = (float(p.cost_model().verify(1, 8, 0)) for p in (profile, through_json(profile)))
    assert before == after == 5.0


def test_a_constant_beside_measured_levels_is_refused_or_kept() -> None:
    # The JSON has room for one or the other; losing one silently is the only wrong answer.
    try:
        draft = DraftCost(0.25, (DraftPoint(1, 1, 1.0),))
    except InputError:
        return
    assert through_json(Profile(None, VERIFY[:1], draft)).draft == draft


def test_the_json_has_the_parts_that_the_contract_names() -> None:
    data = Profile(KEY, VERIFY, DraftCost(0.25)).to_json()
    assert data["key"] == KEY.to_json()
    assert {"batch": 4, "tokens": 8, "context": 512, "seconds": VERIFY[16].seconds} in data["verify"]
    assert len(data["verify"]) == len(VERIFY)
    assert {(row["batch"], row["context"]) for row in data["autoregressive"]} == {(1, 0), (1, 512), (4, 0), (4, 512)}
    assert data["draft"] == {"seconds_per_step": 0.25}
    assert set(data["fits"]) == {"1", "4"}
    levels = Profile(None, VERIFY[:1], DraftCost(levels=(DraftPoint(1, 2, 3.0),))).to_json()
    assert levels["draft"] == {"levels": [{"batch": 1, "width": 2, "seconds": 3.0}]}


def test_an_empty_key_is_no_key() -> None:
    for data in ({"verify": [ROW], "key": {}}, {"verify": [ROW]}, {"verify": [ROW], "key": None}):
        assert Profile.from_json(data).key is None
    assert Profile(None, VERIFY[:1]).to_json()["key"] == {}


def test_a_hand_written_profile_needs_rows_only() -> None:
    profile = Profile.from_json({"verify": [{"batch": 1, "tokens": 4, "seconds": 2}]})
    assert profile.verify == (CostPoint(1, 4, 0, 2.0),)
    assert profile.draft == DraftCost()


def test_autoregressive_rows_are_passes_of_one_token_per_request() -> None:
    data = {"autoregressive": [{"batch": 4, "seconds": 1.0}], "verify": [{"batch": 4, "tokens": 8, "seconds": 2.0}]}
    model = Profile.from_json(data).cost_model()
    assert model.autoregressive(4, 0) == 1.0
    assert float(model.verify(4, 6, 0)) == pytest.approx(1.5)


@pytest.mark.parametrize("context", [0, 128, 512, 2048])
def test_autoregressive_rows_without_a_context_do_not_bend_the_curve(context: int) -> None:
    # The contract's rows are {"batch", "seconds"}. They say nothing of a context, so they must not stand for a whole
    # curve at context 0, on which 32 tokens cost as little as one.
    verify = [{"batch": 1, "tokens": n, "context": 512, "seconds": float(n)} for n in (1, 2, 4, 8, 16, 32)]
    with_rows = Profile.from_json({"autoregressive": [{"batch": 1, "seconds": 1.0}], "verify": verify}).cost_model()
    without = Profile.from_json({"verify": verify}).cost_model()
    tokens = np.arange(1, 40)
    np.testing.assert_allclose(with_rows.verify(1, tokens, context), without.verify(1, tokens, context))


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "profile",
        {},
        {"verify": {}},
        {"verify": None},
        {"verify": [1]},
        {"verify": [None]},
        {"verify": [{"tokens": 1, "seconds": 1}]},
        {"verify": [{"batch": 1, "seconds": 1}]},
        {"verify": [{"batch": 1, "tokens": 1}]},
        {"verify": [{"batch": "one", "tokens": 1, "seconds": 1}]},
        {"verify": [{"batch": 1, "tokens": None, "seconds": 1}]},
        {"verify": [{"batch": float("inf"), "tokens": 1, "seconds": 1}]},
        {"verify": [ROW | {"context": "long"}]},
        {"verify": [ROW], "autoregressive": [{"seconds": 1}]},
        {"verify": [ROW], "autoregressive": [1]},
        {"verify": [ROW], "autoregressive": None},
        {"verify": [ROW], "draft": None},
        {"verify": [ROW], "draft": {"seconds_per_step": "fast"}},
        {"verify": [ROW], "draft": {"seconds_per_step": -1}},
        {"verify": [ROW], "draft": {"levels": [{"batch": 1, "width": 1}]}},
        {"verify": [ROW], "draft": {"levels": [{"batch": 1, "width": "wide", "seconds": 1}]}},
        {"verify": [ROW], "draft": {"levels": [{"batch": 1, "width": 0, "seconds": 1}]}},
        {"verify": [ROW], "draft": {"levels": None}},
        {"verify": [ROW], "key": {"device": "cpu"}},
        {"verify": [ROW], "key": "cpu"},
        {"verify": [ROW], "seconds": None},
    ],
    ids=json.dumps,
)
def test_malformed_profiles_are_refused_in_one_sentence(data: Any) -> None:
    with pytest.raises(InputError) as caught:
        Profile.from_json(data)
    assert one_sentence(caught)


@pytest.mark.parametrize("row", [ROW | {"seconds": 0}, ROW | {"tokens": 0}, ROW | {"batch": 0}, ROW | {"seconds": -1}])
def test_impossible_rows_are_refused_before_they_are_used(row: dict[str, float]) -> None:
    with pytest.raises(InputError) as caught:
        Profile.from_json({"verify": [row]}).cost_model()
    assert one_sentence(caught)


@pytest.mark.parametrize("content", [b"", b"{", b"not json", b"\xff\xfe\x00", b'{"verify": 3}'])
def test_a_file_that_is_no_profile_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Profile.load(path)
    assert one_sentence(caught)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json cannot be read") as caught:
        Profile.load(tmp_path / "nowhere.json")
    assert one_sentence(caught)


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profile.json"
    old, new = Profile(None, VERIFY[:1]), Profile(KEY, VERIFY)
    old.save(path)

    write = Path.write_text

    def dies_half_way(path: Path, text: str, **_: Any) -> None:
        write(path, text[:20])
        raise KeyboardInterrupt

    def dies_before_the_swap(*_: Any) -> None:
        raise KeyboardInterrupt

    for module, name, fault in ((Path, "write_text", dies_half_way), (os, "replace", dies_before_the_swap)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fault)
            with pytest.raises(KeyboardInterrupt):
                new.save(path)
        assert Profile.load(path) == old
        assert [file.name for file in tmp_path.iterdir()] == ["profile.json"]


def test_a_save_leaves_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        Profile(None, VERIFY[:1]).save(tmp_path / "profile.json")
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


def test_what_was_learned_of_the_drafter_is_saved_with_the_profile() -> None:
    learned = {"shape": [1], "rows": [], "seen": [], "accepted": [], "raw": []}
    assert through_json(Profile(KEY, VERIFY, calibration=learned)).calibration == learned
    assert "calibration" not in Profile(KEY, VERIFY).to_json()


def test_a_malformed_calibration_is_refused() -> None:
    data = Profile(KEY, VERIFY).to_json() | {"calibration": [1, 2]}
    with pytest.raises(InputError) as error:
        Profile.from_json(data)
    assert one_sentence(error)
    assert "calibration" in str(error.value)


def test_what_policies_have_learned_is_saved_with_the_profile() -> None:
    learned: dict[str, Any] = {"smart": {"growth": {"means": [], "steps": []}}}
    assert through_json(Profile(KEY, VERIFY, learned=learned)).learned == learned
    assert "learned" not in Profile(KEY, VERIFY).to_json()
    with pytest.raises(InputError, match='"learned" must be an object, and its numbers finite'):
        Profile.from_json(Profile(KEY, VERIFY).to_json() | {"learned": [1]})
