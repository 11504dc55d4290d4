"""Sweeps: rows of the contract, the same numbers again, and the shape of the results that the project is about."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from smartree.cost import CostPoint, DraftCost, DraftPoint, Profile
from smartree.errors import InputError
from smartree.simulate.acceptance import AcceptanceLaw
from smartree.simulate.devices import Overheads
from smartree.simulate.models import MODELS
from smartree.simulate.recorded import RecordedPool
from smartree.simulate.report import ratios, summary, sweep_header
from smartree.simulate.setups import setups_for
from smartree.simulate.sweep import POLICIES, Recording, Row, SweepOptions, count_rows, sweep

FIELDS = [
    "device",
    "model",
    "batch",
    "policy",
    "speedup",
    "expected_accepted_length",
    "verified_tokens",
    "draft_ms",
    "verify_ms",
]
QUICK = SweepOptions(("none", "smart", "eagle2", "oracle"), (1, 8, 32), steps=60, warm_up=40, seed=11)


@cache
def quick_rows(device: str = "l40s", model: str = "llava-1.5-7b") -> tuple[Row, ...]:
    return tuple(sweep(setups_for([device], [MODELS[model]], Overheads()), QUICK))


def value(rows: tuple[Row, ...], policy: str, batch: int, field: str = "speedup") -> float:
    return next(float(getattr(row, field)) for row in rows if row.policy == policy and row.batch == batch)


def test_rows_hold_what_the_contract_says_and_the_json_reads_back() -> None:
    setups = setups_for(["l40s"], [MODELS["llava-1.5-7b"]], Overheads())
    text = json.dumps({"header": sweep_header(setups, QUICK, Overheads()), "rows": [r.to_json() for r in quick_rows()]})
    data = json.loads(text)
    assert len(data["rows"]) == count_rows(setups, QUICK) == 12
    for row in data["rows"]:
        assert list(row) == FIELDS
        assert all(np.isfinite(row[field]) and row[field] >= 0 for field in FIELDS[4:])
    assert data["header"]["devices"]["l40s"]["bandwidth"] == 864
    assert data["header"]["seed"] == 11


def test_the_same_sweep_gives_the_same_rows() -> None:
    again = tuple(sweep(setups_for(["l40s"], [MODELS["llava-1.5-7b"]], Overheads()), replace(QUICK, batches=(8,))))
    assert again == tuple(row for row in quick_rows() if row.batch == 8)


def test_rows_that_are_done_are_not_simulated_again() -> None:
    setups = setups_for(["l40s"], [MODELS["llava-1.5-7b"]], Overheads())
    done = {row.key for row in quick_rows() if row.policy != "none"}
    assert [row.policy for row in sweep(setups, QUICK, done)] == ["none"] * 3


@pytest.mark.parametrize("device", ["l40s", "h200-sxm"])
def test_smart_is_never_slower_than_plain_decoding_and_near_the_best_fixed_tree(device: str) -> None:
    rows = quick_rows(device)
    for batch in QUICK.batches:
        assert value(rows, "none", batch) == 1.0
        assert value(rows, "smart", batch) >= 0.99
        assert value(rows, "smart", batch) >= 0.99 * value(rows, "oracle", batch)


def test_a_growing_batch_shrinks_the_trees_of_smart() -> None:
    rows = quick_rows()
    sizes = [value(rows, "smart", batch, "verified_tokens") / batch for batch in QUICK.batches]
    assert sizes[0] > sizes[1] > sizes[2] >= 1


def test_likelihood_trees_collapse_at_batch_32_on_an_l40s() -> None:
    rows = quick_rows()
    assert value(rows, "eagle2", 1) > 1.5
    assert value(rows, "eagle2", 32) < 1.0
    assert value(rows, "smart", 32) > 1.2


def test_hopeless_drafts_cost_smart_next_to_nothing_once_it_has_learned() -> None:
    law = AcceptanceLaw("hopeless", mean=-6.0, coverage=0.05)
    options = SweepOptions(("smart", "eagle2"), (1, 32), steps=100, warm_up=300, acceptance=law)
    for row in sweep(setups_for(["h100-sxm"], [MODELS["llama-3.1-8b"]], Overheads()), options):
        if row.policy == "smart":
            assert row.speedup > 0.985
        else:
            assert row.speedup < 0.9


@pytest.mark.parametrize("batch", [1, 32])
def test_finding_out_that_drafts_are_hopeless_costs_less_than_one_percent_of_400_steps(batch: int) -> None:
    law = AcceptanceLaw("hopeless", mean=-6.0, coverage=0.05)
    options = SweepOptions(("smart",), (batch,), steps=400 * batch, warm_up=0, acceptance=law)
    (row,) = sweep(setups_for(["h100-sxm"], [MODELS["llama-3.1-8b"]], Overheads()), options)
    assert row.speedup > 0.99


@pytest.mark.parametrize(
    ("device", "model", "batch"),
    [("a100-80gb", "deepseek-r1-8b", 64), ("h200-sxm", "llama-3.1-8b", 32), ("rtx-pro-6000-server", "qwen2-vl-7b", 32)],
)
def test_where_the_draft_head_itself_is_past_its_bend_smart_keeps_up_with_the_best_fixed_tree(
    device: str, model: str, batch: int
) -> None:
    options = SweepOptions(("smart", "oracle"), (batch,), steps=60, warm_up=60)
    smart, oracle = sweep(setups_for([device], [MODELS[model]], Overheads()), options)
    assert smart.speedup >= 0.99 * oracle.speedup


def profile(tmp_path: Path, levels: bool = True) -> Path:
    points = tuple(
        CostPoint(batch, batch * rows, 256, 0.02 + 0.001 * batch * rows) for batch in (1, 4) for rows in (1, 2, 4, 8)
    )
    draft = DraftCost(levels=(DraftPoint(1, 1, 0.002), DraftPoint(1, 10, 0.003))) if levels else DraftCost(1e-4)
    path = tmp_path / "laptop.json"
    Profile(None, points, draft).save(path)
    return path


@pytest.mark.parametrize("levels", [True, False])
def test_a_measured_profile_is_a_device(tmp_path: Path, levels: bool) -> None:
    setups = setups_for([str(profile(tmp_path, levels))], [MODELS["llava-1.5-7b"]], Overheads())
    rows = list(sweep(setups, SweepOptions(("none", "smart"), (1, 4), steps=20, warm_up=10)))
    assert [(row.device, row.model, row.batch) for row in rows] == [
        ("laptop", "profile", 1),
        ("laptop", "profile", 1),
        ("laptop", "profile", 4),
        ("laptop", "profile", 4),
    ]
    assert rows[0].verify_ms == pytest.approx(21.0)
    assert "laptop" not in sweep_header(setups, QUICK, Overheads())["devices"]


def test_a_profile_without_the_asked_batch_says_what_is_there(tmp_path: Path) -> None:
    setups = setups_for([str(profile(tmp_path))], [], Overheads())
    with pytest.raises(InputError, match="measured for batch sizes 1, 4; 16 is not"):
        list(sweep(setups, SweepOptions(("none",), (16,))))


def test_recorded_pools_replace_the_process() -> None:
    pool = RecordedPool(0, 0, np.array([-1]), np.array([0.9]), np.array([0]), np.array([True]))
    options = SweepOptions(("eagle2",), (2,), steps=3, warm_up=0, acceptance=Recording("r", (pool,)))
    setups = setups_for(["l40s"], [MODELS["llava-1.5-7b"]], Overheads())
    (row,) = sweep(setups, options)
    assert (row.expected_accepted_length, row.verified_tokens) == (2.0, 4.0)
    assert sweep_header(setups, options, Overheads())["acceptance"] == "r"


def test_batches_that_do_not_fit_are_left_out() -> None:
    setups = setups_for(["l40s"], [MODELS["llava-1.5-13b"]], Overheads())
    options = SweepOptions(("none",), (1, 64), steps=1, warm_up=0)
    assert [row.batch for row in sweep(setups, options)] == [1]
    assert count_rows(setups, options) == 1


def test_policies_compare_cell_by_cell() -> None:
    rows = [Row("d", "m", b, p, s, 1, 1, 0, 1) for b, p, s in ((1, "smart", 3.0), (1, "none", 1.0), (2, "smart", 2.0))]
    assert ratios(rows, "smart", "none") == {("d", "m", 1): 3.0}
    assert summary(rows)["none"] == {
        "smallest": pytest.approx(3.0),
        "geometric_mean": pytest.approx(3.0),
        "largest": pytest.approx(3.0),
    }


@pytest.mark.parametrize(
    "change",
    [{"policies": ("best",)}, {"policies": ()}, {"batches": (0,)}, {"batches": ()}, {"steps": 0}, {"warm_up": -1}],
)
def test_bad_options_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(InputError):
        replace(QUICK, **change)  # type: ignore[arg-type]


def test_unknown_devices_are_refused(tmp_path: Path) -> None:
    for name in ("tpu", str(tmp_path / "missing.json")):
        with pytest.raises(InputError):
            setups_for([name], [], Overheads())


def test_every_policy_of_the_project_can_be_simulated() -> None:
    assert {"none", "smart", "paper", "eagle2", "oracle"} <= set(POLICIES)
    options = SweepOptions(POLICIES, (2,), steps=4, warm_up=2)
    rows = list(sweep(setups_for(["a100-80gb"], [MODELS["qwen2-vl-7b"]], Overheads()), options))
    assert [row.policy for row in rows] == list(POLICIES)
