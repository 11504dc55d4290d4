"""The comparison with other engines: who takes part, resuming, rows, and what workers and driver say to each other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.full_batch import Progress, keep_full
from benchmarks.peers.lineup import ENGINES, PLAIN, SPECULATION, Entry, line_up, parse_places
from benchmarks.peers.record import Record, RecordFile, agreement
from benchmarks.peers.rows import rows_of
from smartree.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


class Countdown:
    """A made-up engine: a prompt [n] takes n steps to read, then every step gives its next token."""

    def __init__(self) -> None:
        self.running: dict[int, tuple[int, int]] = {}
        self.most_running = 0

    def add(self, number: int, prompt: Sequence[int], max_tokens: int) -> None:
        self.running[number] = (prompt[0], max_tokens)
        self.most_running = max(self.most_running, len(self.running))

    def step(self) -> list[Progress]:
        progress = []
        for number, (reading, left) in list(self.running.items()):
            if reading > 0:
                self.running[number] = (reading - 1, left)
                continue
            progress.append(Progress(number, [left], left == 1))
            self.running[number] = (0, left - 1)
            if left == 1:
                del self.running[number]
        return progress


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_never_more_prompts_run_than_the_batch_has_and_tokens_stay_in_order(batch: int) -> None:
    engine = Countdown()
    reply = keep_full(engine, [[2], [0], [3], [1]], batch, 3)
    assert reply.tokens == [[3, 2, 1]] * 4
    assert engine.most_running == min(batch, 4)


def test_only_steps_with_a_full_batch_and_no_prompt_in_it_are_timed() -> None:
    # Two prompts that are read in one step each: of the steps that give 3 tokens, the first one also reads.
    reply = keep_full(Countdown(), [[0], [0]], 2, 3)
    assert reply.steps == 2
    # A third one in the queue joins alone and stays alone: nothing of it is timed.
    assert keep_full(Countdown(), [[0], [0], [5]], 2, 3).steps == 2


def test_a_batch_that_is_never_full_has_no_time_of_a_step() -> None:
    reply = keep_full(Countdown(), [[0]], 2, 3)
    assert (reply.step_ms, reply.steps) == (None, 0)


def test_an_engine_that_is_not_there_is_left_out_with_a_line(tmp_path: Path) -> None:
    entries, skipped = line_up(["smartree", "vllm"], tmp_path, {})
    assert [entry.name for entry in entries] == [f"smartree/{PLAIN}", f"smartree/{SPECULATION}"]
    assert len(skipped) == 1
    assert "vllm is left out" in skipped[0]
    assert "--python vllm=PATH" in skipped[0]


def test_a_program_is_driven_from_this_python(tmp_path: Path) -> None:
    program = tmp_path / "llama.cpp" / "llama-server"
    program.parent.mkdir()
    program.touch()
    entries, _ = line_up(["llama_cpp"], tmp_path, {})
    assert {(entry.python, entry.program) for entry in entries} == {(sys.executable, str(program))}


def test_a_path_given_by_hand_wins(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.touch()
    entries, skipped = line_up(["vllm"], tmp_path / "elsewhere", parse_places([f"vllm={python}"]))
    assert {entry.python for entry in entries} == {str(python)}
    assert skipped == []


@pytest.mark.parametrize("text", ["vllm", "vllm=", "=x", "tensorrt=x"])
def test_a_place_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not NAME=PATH"):
        parse_places([text])


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="'tensorrt' is not one of smartree"):
        line_up(["tensorrt"], None, {})


def test_speculation_for_single_prompts_stays_out_of_batches() -> None:
    engine = next(engine for engine in ENGINES if engine.name == "transformers")
    speculating = Entry(engine, SPECULATION, "python", None)
    assert [speculating.takes(batch) for batch in (1, 4)] == [True, False]
    assert replace(speculating, mode=PLAIN).takes(4)


RECORD = Record("vllm/plain", 4, 0, 768, 6.0, 25.0, 0.9)


def test_an_interrupted_comparison_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    RecordFile(path, {"threads": 2}, False).add(RECORD)
    with path.open("a") as file:
        file.write('{"entry": "vl')  # the line that was being written
    again = RecordFile(path, {"threads": 2}, False)
    assert again.records == [RECORD]
    assert again.has("vllm/plain", 4, 0)
    assert not again.has("vllm/plain", 4, 1)
    again.add(replace(RECORD, repeat=1))
    assert len(RecordFile(path, {"threads": 2}, False).records) == 2


def test_what_engines_say_and_what_they_are_held_against_outlive_an_interruption(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    first = RecordFile(path, {}, False)
    first.add_about("vllm/plain", {"engine": "vllm"})
    first.add_reference(4, [[1, 2], [3, 4]])
    again = RecordFile(path, {}, False)
    assert (again.about, again.references) == ({"vllm/plain": {"engine": "vllm"}}, {4: [[1, 2], [3, 4]]})


def test_runs_with_other_settings_are_refused_and_can_be_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    RecordFile(path, {"threads": 2, "max_tokens": 96}, False).add(RECORD)
    with pytest.raises(InputError, match=r"other settings \(threads\)"):
        RecordFile(path, {"threads": 1, "max_tokens": 96}, False)
    assert RecordFile(path, {"threads": 1, "max_tokens": 96}, True).records == []


@pytest.mark.parametrize("content", ["", "[]\n", '{"settings": {}}\n{"run": {"entry": 1}}\n', "{\n"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "runs"
    path.write_text(content)
    with pytest.raises(InputError, match="is not what this benchmark writes"):
        RecordFile(path, {}, False)


def test_agreement_counts_tokens_before_the_first_difference() -> None:
    assert agreement([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4], [5, 0, 7, 8]]) == (1 + 0.25) / 2


def record(entry: str, repeat: int, seconds: float) -> Record:
    return Record(entry, 4, repeat, 400, seconds, None, None)


def test_ratios_are_taken_within_a_repeat() -> None:
    # The machine is twice as slow in the second repeat; in each of them ours takes half the other's time.
    runs = [("smartree/plain", 0, 1.0), ("vllm/plain", 0, 2.0), ("smartree/plain", 1, 2.0), ("vllm/plain", 1, 4.0)]
    rows = {row["engine"]: row for row in rows_of([record(*run) for run in runs])}
    assert rows["vllm"]["none_over_this"] == 2.0
    assert rows["smartree"]["none_over_this"] == 1.0
    assert rows["vllm"]["smart_over_this"] is None
    assert rows["vllm"]["repeats"] == 2


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4))
def test_a_machine_that_is_slower_in_some_repeats_changes_no_ratio(slow: list[float]) -> None:
    runs = []
    for repeat, factor in enumerate(slow):
        runs.append(record("smartree/speculation", repeat, 3.0 * factor))
        runs.append(record("openvino/plain", repeat, 4.0 * factor))
    rows = {row["engine"]: row for row in rows_of(runs)}
    assert rows["openvino"]["smart_over_this"] == pytest.approx(4 / 3, abs=1e-3)


WORKER = """
import os
from benchmarks.peers.worker_protocol import Reply, serve

class Engine:
    def __init__(self, settings):
        print("loading", settings.threads)
        os.write(1, b"from C\\n")

    def about(self):
        return {"engine": "made up"}

    def run(self, prompts, batch, max_tokens):
        if max_tokens > 9:
            raise MemoryError("out of blocks\\nand a lot of details")
        return Reply([prompt[:max_tokens] for prompt in prompts], 0.5, None, None)

serve(Engine)
"""


def test_a_worker_answers_with_json_lines_and_nothing_else() -> None:
    settings = {"speculation": False, "model": "m", "gguf_folder": None, "program": None, "threads": 2}
    asked = [{"prompts": [[1, 2, 3]], "batch": 1, "max_tokens": tokens} for tokens in (2, 10)]
    run = subprocess.run(
        [sys.executable, "-c", WORKER, json.dumps(settings | {"window": 64, "max_batch": 4})],
        input="".join(json.dumps(one) + "\n" for one in asked),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    ready, reply, error = (json.loads(line) for line in run.stdout.splitlines())
    assert ready == {"ready": {"engine": "made up"}}
    assert reply == {"tokens": [[1, 2]], "seconds": 0.5, "step_ms": None, "steps": None}
    assert error == {"error": "MemoryError: out of blocks"}
    assert "loading 2" in run.stderr
    assert "from C" in run.stderr
