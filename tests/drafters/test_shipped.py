"""The head that comes with the package is found by the target's weights, and fits it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from smartree.drafters.eagle3.drafter import Eagle3Drafter
from smartree.drafters.factory import make_drafter
from smartree.drafters.joint import JointDrafter
from smartree.drafters.ngram import NgramDrafter
from smartree.drafters.shipped import model_digest, shipped_head
from smartree.models.load import LoadedModel, prepare_model
from smartree.policies.calibration import Calibration
from tests.tiny import tiny_model


def loaded(seed: int = 0, dtype: torch.dtype = torch.float32) -> LoadedModel:
    model = tiny_model("llama", seed=seed, dtype=torch.bfloat16)  # the same numbers in every type
    torch.nn.Module.to(model, dtype)
    return prepare_model(model, None, "tiny")


def test_the_same_weights_have_the_same_digest_in_every_type() -> None:
    assert model_digest(loaded()) == model_digest(loaded(dtype=torch.bfloat16))
    assert model_digest(loaded()) != model_digest(loaded(seed=1))


def test_a_head_is_found_by_what_it_was_trained_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smartree.drafters.shipped._HEADS", tmp_path)
    assert shipped_head(loaded()) is None
    for seed in (1, 2):
        (tmp_path / f"head-{seed}").mkdir()
        config = {"training": {"target_digest": model_digest(loaded(seed))}}
        (tmp_path / f"head-{seed}" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert shipped_head(loaded(2)) == tmp_path / "head-2"
    assert shipped_head(loaded()) is None
    assert isinstance(make_drafter("auto", loaded(), 2, 100), NgramDrafter)


@pytest.mark.demo
def test_the_demo_model_has_a_head_of_at_most_15_megabytes(demo_llm: object) -> None:
    target = demo_llm.target  # type: ignore[attr-defined]
    folder = shipped_head(target)
    assert folder is not None
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 15 * 10**6
    drafter = make_drafter("auto", target, 2, 100)
    assert isinstance(drafter, JointDrafter)
    assert isinstance(drafter.levels, Eagle3Drafter)
    assert drafter.experience is not None
    rates = Calibration.rates_of(drafter.experience)
    assert 0.5 < rates[0][0] < 0.9
    assert all(row[0] > row[1] > row[2] for row in rates[:3])
    assert drafter.feature_layers == (2, 15, 27)
    assert isinstance(make_drafter("head", target, 2, 100), Eagle3Drafter)
