"""`smartree bench` on the tiny model: data, sentences, interruption."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smartree.bench.cell import measure_cell
from tests.cli.conftest import Smartree, read_json

Refused = Callable[..., str]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short prompts that repeat themselves, so that something is drafted."""
    folder = tmp_path_factory.mktemp("data")
    for name, field in (("mt_bench", "turns"), ("gsm8k_test", "question")):
        texts = [f"{name[:2]}{number} " * 4 for number in range(6)]
        rows = [json.dumps({field: [text] if field == "turns" else text}) for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def command(model: str, data: Path, profile_file: Path) -> list[str]:
    return [
        "bench", "--model", model, "--data", str(data), "--suites", "mt_bench,gsm8k", "--dtype", "float32",
        "--prompts-per-suite", "2", "--max-tokens", "6", "--batch", "1,2", "--repeats", "2",
    ]  # fmt: skip


def test_verb(smartree: Smartree, command: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, pictures = tmp_path / "out.json", tmp_path / "pictures"
    result = smartree(
        *command, "--temperature", "0,1", "--policies", "smart,eagle2", "--json", str(file), "--plot", str(pictures)
    )
    assert result.code == 0, result.stderr
    data = read_json(file)
    assert [(row["suite"], row["temperature"], row["batch"], row["policy"]) for row in data["rows"]] == [
        (suite, temperature, batch, policy)
        for suite in ("mt_bench", "gsm8k")
        for temperature in (0, 1)
        for batch in (1, 2)
        for policy in ("none", "smart", "eagle2")
    ]
    assert all(row["identical_to_none"] and row["prompts"] == 2 and row["repeats"] == 2 for row in data["rows"])
    header = data["header"]
    assert {"model", "drafter", "dtype", "device", "device_name", "threads", "versions", "date"} <= set(header)
    assert (header["drafter"], header["dtype"], header["max_batch"]) == ("ngram", "float32", 2)
    assert header["arguments"]["batch"] == "1,2"
    assert header["prompts"] == {"mt_bench": [2, 5], "gsm8k": [2, 5]}
    assert header["oracle_searched_on"] == {}
    assert not (tmp_path / "out.json.partial").exists()
    assert len(list(pictures.glob("*.png"))) == 4
    assert "mt_bench, T=0" in result.stdout
    assert "all suites, T=1" in result.stdout
    assert "Tokens identical to plain decoding: 32 of 32 outputs." in result.stdout
    assert "gsm8k, temperature 1, batch 2: smart" in result.stderr
    assert "(8 of 8)" in result.stderr


def test_oracle_and_data_on_stdout(smartree: Smartree, command: list[str]) -> None:
    short = [*command, "--suites", "gsm8k", "--repeats", "1", "--json", "-"]
    result = smartree(*short, "--policies", "oracle", "--oracle-grid", "2/1/2,3/2/4")
    data = json.loads(result.stdout)
    rows = [row for row in data["rows"] if row["policy"] == "oracle"]
    assert [row["chosen"] in ("none", "2/1/2", "3/2/4") for row in rows] == [True, True]
    [searched], measured = data["header"]["oracle_searched_on"].values(), data["header"]["prompts"]["gsm8k"]
    assert not set(searched) & set(measured)


def test_interrupted_and_resumed(
    smartree: Smartree, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    file, partial = tmp_path / "out.json", tmp_path / "out.json.partial"
    measured = 0

    def interrupt(*arguments: Any, **settings: Any) -> Any:
        nonlocal measured
        if measured == 3:
            raise KeyboardInterrupt
        measured += 1
        return measure_cell(*arguments, **settings)

    full = [*command, "--policies", "smart", "--json", str(file)]
    with monkeypatch.context() as patch:
        patch.setattr("smartree.bench.run.measure_cell", interrupt)
        result = smartree(*full)
    assert result.code == 130
    assert f"3 measurements are kept in {partial}; the same command goes on from there." in result.stderr
    assert result.stderr.endswith("smartree: interrupted\n")
    assert not file.exists()
    message = refused(*full, "--max-tokens", "7")
    assert "max_tokens (6 there, 7 here)" in message
    assert "--fresh" in message
    result = smartree(*full)
    assert result.code == 0
    assert "3 measurements of an interrupted bench are kept; 5 to go" in result.stderr
    rows = read_json(file)["rows"]
    assert len(rows) == len({(row["suite"], row["batch"], row["policy"]) for row in rows}) == 8
    assert all(row["repeats"] == 2 for row in rows)
    assert not partial.exists()


def test_fresh_forgets(smartree: Smartree, command: list[str], tmp_path: Path) -> None:
    file, partial = tmp_path / "out.json", tmp_path / "out.json.partial"
    partial.write_text('{"settings": {"seed": 3}}\n', encoding="utf-8")
    full = [*command, "--suites", "gsm8k", "--batch", "1", "--repeats", "1", "--policies", "none", "--json", str(file)]
    assert "seed (3 there, 0 here)" in smartree(*full).stderr
    assert smartree(*full, "--fresh").code == 0
    assert len(read_json(file)["rows"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "1,x"], "--batch 1,x is no list of whole numbers; write it like 1,4,16."),
        (["--batch", "0"], "batch is 0; it must be at least 1."),
        (["--batch", ","], "at least one of its batches"),
        (["--temperature", "warm"], "--temperature warm is no list of numbers"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--policies", "none,smrt"], "Policy 'smrt' is unknown; choose one of none, smart"),
        (["--prompts-per-suite", "0"], "prompts_per_suite is 0"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--repeats", "0"], "repeats is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--dtype", "int8"], "dtype 'int8' is unknown"),
        (["--suites", "nowhere"], "Suite nowhere needs --data"),
        (["--data", "no-such-folder"], "The data folder no-such-folder does not exist."),
        (["--oracle-grid", "1/1/1"], "--oracle-grid is of use only with the policy oracle"),
        (["--policies", "oracle", "--oracle-grid", "1/1"], "Tree '1/1' is no triple"),
        (["--drafter", "none"], "--drafter none leaves the policies nothing"),
        (["--json", "no/such/folder/out.json"], "folder of --json"),
        (["--json", "."], "is a folder"),
        (["--plot", "/dev/null/pictures"], "--plot"),
        (["one", "--model", "two"], "Two models are named, one and --model two; name one."),
        (["./no-such-folder"], "does not exist"),
    ],
)
def test_bad_input(refused: Refused, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smartree.bench.plots.find_spec", lambda name: object())
    assert message in refused("bench", *arguments)


def test_missing_suite_names_those_that_are_there(refused: Refused, data: Path) -> None:
    message = refused("bench", "--data", str(data), "--suites", "humaneval")
    assert f"looked for {data / 'humaneval.jsonl'}; the folder has gsm8k, mt_bench." in message
    assert "humaneval" in refused("bench", "--data", str(data))  # one of those measured if none are named


def test_prompt_that_does_not_fit(refused: Refused, model: str, profile_file: Path) -> None:
    message = refused("bench", model, "--dtype", "float32", "--suites", "built-in")
    assert "built-in prompt" in message
    assert "the window is 160" in message


def test_help_is_light() -> None:
    code = (
        "import sys\nfrom smartree.cli.app import run\nassert run(['bench', '--help']) == 0\n"
        "print([name for name in ('torch', 'transformers', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: smartree bench" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
@pytest.mark.demo
@pytest.mark.usefixtures("demo_wheel")
def test_built_in_prompts_of_the_demo_model(
    smartree: Smartree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SMARTREE_CACHE")
    file = tmp_path / "out.json"
    short = ["--dtype", "float32", "--prompts-per-suite", "2", "--max-tokens", "8", "--batch", "2", "--repeats", "1"]
    result = smartree("bench", *short, "--json", str(file))
    assert result.code == 0, result.stderr
    assert all(row["identical_to_none"] for row in read_json(file)["rows"])
