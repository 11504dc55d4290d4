"""A model shared by two processes gives the tokens of one process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import smartree
from smartree import LLM
from smartree.errors import InputError
from smartree.models.load import quiet_transformers
from tests.engine.shared_run import OTHERS, POLICIES, decode, rows
from tests.tiny import CHARACTERS, character_tokenizer, tiny_model

ROOT = Path(__file__).resolve().parents[2]
# 5.16 refuses to share an output layer of an odd number of rows; the newer ones' last shard is just shorter.
VOCAB = 98


def environment(**more: str) -> dict[str, str]:
    """One thread for a process, the CPU, and the sources that are tested."""
    source = str(Path(smartree.__file__).parents[1])
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    return os.environ | settings | more


def in_two_processes(*command: str) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of both; started as torchrun does, which itself takes as long as one of them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment(RANK=rank, LOCAL_RANK=rank, **address),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        said = [process.communicate(timeout=180) for process in started]
    finally:
        for process in started:
            process.kill()  # does nothing to one that has ended
    return [(process.returncode, *texts) for process, texts in zip(started, said, strict=True)]


def torchrun(*command: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """Runs a program in several processes."""
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *command],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models as transformers saves them: a LLaMA, another one that drafts for it, and other architectures."""
    where = tmp_path_factory.mktemp("models")
    with quiet_transformers():
        tiny_model("llama", vocab=VOCAB, seed=5).save_pretrained(where / "draft")
        for architecture in ("llama", *OTHERS):
            tiny_model(architecture, vocab=VOCAB).save_pretrained(where / architecture)
    return where


def test_two_processes_give_the_tokens_of_one(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    first, second = in_two_processes("tests/engine/shared_run.py", str(folder), str(out))
    assert first[:2] == (0, "rank 0 was here\n"), first
    assert second[:2] == (0, ""), second
    shared = json.loads(out.read_text())
    alone = rows(decode(folder))
    fresh = shared.pop("fresh seed"), alone.pop("fresh seed")
    assert all(one["token_ids"] for one in fresh[0])
    assert {name: [one["token_ids"] for one in each] for name, each in shared.items()} == {
        name: [one["token_ids"] for one in each] for name, each in alone.items()
    }
    for name in (*(f"{policy} greedy" for policy in POLICIES if policy != "none"), "draft model", *OTHERS):
        assert sum(one["verified"] for one in shared[name]) > 0  # equality says something only if there was speculation


@pytest.mark.slow
def test_a_model_that_cannot_be_shared_is_refused_once(folder: Path, tmp_path: Path) -> None:
    """One sentence from rank 0, and nobody waits for ever."""
    config = Path(shutil.copytree(folder / "llama", tmp_path / "odd")) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_key_value_heads": 1}))
    answer = torchrun("-m", "smartree", "generate", "--model", str(config.parent), "--policy", "none", "hello")
    assert [line for line in answer.stderr.splitlines() if line.startswith("smartree:")] == [
        f"smartree: Model {str(config.parent)!r} has 4 query and 1 key/value heads, which 2 processes cannot share "
        "evenly; start 1."
    ]
    assert answer.stdout == ""
    assert answer.returncode != 0


@pytest.mark.slow
def test_only_rank_0_of_the_command_line_answers(folder: Path) -> None:
    character_tokenizer(order=[*CHARACTERS, "~~"]).save_pretrained(folder / "llama")
    command = (
        "generate",
        "--model",
        str(folder / "llama"),
        "--policy",
        "none",
        "--dtype",
        "float64",
        "--max-tokens",
        "8",
        "Hi!",
    )
    shared = torchrun("-m", "smartree", *command)
    alone = subprocess.run([sys.executable, "-m", "smartree", *command], capture_output=True, text=True, check=True)
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout == alone.stdout
    assert "Hi!" in alone.stdout
    assert shared.stderr.count("tokens/s") == 1


@pytest.mark.slow
@pytest.mark.demo
@pytest.mark.usefixtures("demo_wheel")
def test_the_demo_model_and_its_head_are_shared_by_three(tmp_path: Path) -> None:
    """A checkpoint of another kind (GGUF), tied embeddings, and a head that borrows both ends of the target."""
    command = ("-m", "smartree", "generate", "--policy", "eagle2", "--dtype", "float32", "--max-tokens", "12")
    rows = []
    for name in ("shared.json", "alone.json"):
        given = (*command, "--json", str(tmp_path / name), "The capital of France is")
        if name == "shared.json":
            answer = torchrun(*given, processes=3)
            assert answer.returncode == 0, answer.stderr
        else:
            subprocess.run([sys.executable, *given], env=environment(), cwd=ROOT, capture_output=True, check=True)
        rows.append(json.loads((tmp_path / name).read_text())["rows"][0])
    shared, alone = rows
    assert shared["token_ids"] == alone["token_ids"]
    assert shared["stats"]["tau"] == alone["stats"]["tau"] > 1


@pytest.mark.slow
def test_a_verb_without_a_model_ends_too() -> None:
    answer = torchrun("-m", "smartree", "plan", "--help")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("--candidates") == 1


def test_sharing_needs_several_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(InputError, match="torchrun"):
        LLM(str(folder / "llama"), policy="none", tensor_parallel=True)
    with pytest.raises(InputError, match="in memory"):
        LLM(tiny_model(), policy="none", tensor_parallel=True)


def test_one_process_of_several_may_keep_a_model_to_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    llm = LLM(str(folder / "llama"), drafter="none", policy="none", dtype="float64", tensor_parallel=False)
    assert llm.target.crew is None
    assert llm.target.dtype is torch.float64
