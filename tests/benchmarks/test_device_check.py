"""The script that looks at a GPU, on a tiny model: its parts run, its drafter is as good as it is told to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import smartree
from smartree import LLM, SamplingParams
from smartree.drafters.model import ModelDrafter
from smartree.models.load import prepare_model
from smartree.policies.eagle2 import Eagle2Policy
from smartree.policies.static import StaticPolicy
from smartree.simulate.acceptance import AcceptanceLaw

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6]]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script's own modules, found as when it is run."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import device.drafter
    import device.models

    return device


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_text_of_a_permuting_model_is_known(device: Any, dtype: torch.dtype) -> None:
    model, successor = device.models.permuting(device.models.TINY, dtype, torch.device("cpu"))
    assert sorted(successor) == list(range(device.models.TINY.vocab))
    for output in LLM(model, drafter="none", policy="none").generate(PROMPTS, SamplingParams(max_tokens=40)):
        text = [output.prompt_token_ids[-1], *output.token_ids]
        assert successor[text[:-1]].tolist() == text[1:]


@pytest.mark.parametrize(("mean", "coverage", "tau"), [(60.0, 0.9, 4.0), (-60.0, 0.0, 1.0), (-60.0, 1.0, None)])
def test_a_drafter_is_as_good_as_its_law(device: Any, mean: float, coverage: float, tau: float | None) -> None:
    model, successor = device.models.permuting(device.models.TINY, torch.float32, torch.device("cpu"))
    small = device.models.blank(device.models.TINY.config(layers=1), torch.float32, torch.device("cpu"))
    carrier = ModelDrafter(prepare_model(small, None, "one layer"), 512, 2, 256)
    law = AcceptanceLaw("law", mean=mean, coverage=coverage, optimism=0.0)
    llm = LLM(model, drafter=device.drafter.AssumedDrafter(law, successor, carrier), policy="none", max_batch=2)
    plain = llm.generate(PROMPTS, SamplingParams(max_tokens=41))
    # Three levels: a chain if the first choice is right, everything below it if another one may be.
    policy = Eagle2Policy(total=60, depth=2) if tau is None else StaticPolicy(shape=[(0,), (0, 0), (0, 0, 0)])
    engine = llm.make_engine(policy)
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=41), engine=engine)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert engine.stats.draft_seconds > 0
    if tau is None:
        # No first choice is right, nine others share all probability: the law promises a child of the root every time.
        observed, accepted = np.array([[o.stats.observed_by_depth[0], o.stats.accepted_by_depth[0]] for o in outputs]).T
        assert accepted.sum() > 0.9 * observed.sum()
    else:
        assert engine.stats.tau == tau


def run(out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of the script."""
    source = str(Path(smartree.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "benchmarks/device_check.py", "--tiny", "--device", "cpu", "--json", str(out), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert out.is_file(), done.stderr
    assert done.stdout.count("┏") == 1  # one table
    return done.returncode, json.loads(out.read_text())


@pytest.mark.slow
def test_every_part_gives_rows_and_nothing_is_wrong(tmp_path: Path) -> None:
    code, found = run(tmp_path / "out.json", "--scale", "0.1")
    assert code == 0
    assert {row["part"] for row in found["rows"]} >= {"lossless", "cost", "bandwidth", "policies"}
    assert all(row["ok"] is not False for row in found["rows"] if "ok" in row)
    policies = [row for row in found["rows"] if row["part"] == "policies"]
    assert [row["policy"] for row in policies] == ["none", "eagle2", "smart"] * 2
    assert {"device", "dtype", "model", "acceptance", "torch", "seconds"} <= found["header"].keys()


@pytest.mark.slow
def test_a_part_that_fails_is_a_row_and_the_next_one_runs(tmp_path: Path) -> None:
    code, found = run(tmp_path / "out.json", "--scale", "0.01", "--parts", "policies,bandwidth")
    assert code == 1
    assert found["rows"][0] == {
        "part": "policies",
        "what": "failed: the cost curves were not measured: the part `cost` comes first",
        "ok": False,
    }
    assert found["rows"][-1]["part"] == "bandwidth"
