"""smartree beside the engines that somebody with a CPU would pick: same prompts, same run, in turns.

    python -m benchmarks.peers --data DIR --peers FOLDER --json benchmarks/results/peers.json

FOLDER is what `benchmarks/peers/setup.sh FOLDER` fills. Every engine runs in a process of its own, in plain decoding
and with its own speculation; it is set up once, and stands still while another one has its turn. Prompts are those of
`smartree bench` (MT-Bench, HumanEval and GSM8K in turn, as chats), decoded greedily, with the same number of tokens of
each. Runs are kept in FILE.runs as they are made, and the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from benchmarks.peers.lineup import ENGINES, GGUF_FOLDER, PLAIN, SPECULATION, Entry, line_up, parse_places
from benchmarks.peers.plot import draw
from benchmarks.peers.prompts import SUITES, load_prompts
from benchmarks.peers.record import Record, RecordFile, agreement
from benchmarks.peers.rows import rows_of, table_of
from benchmarks.peers.worker import Worker, WorkerError
from benchmarks.peers.worker_protocol import Reply, WorkerSettings
from smartree.cli.json_file import JsonFile
from smartree.engine.measure import device_name
from smartree.errors import InputError
from smartree.models.demo import demo_folder

REFERENCE = f"smartree/{PLAIN}"
_WINDOW = 2048


def main() -> int:
    """Runs the comparison; returns the exit code."""
    options = _options()
    try:
        compare(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the suites' .jsonl files")
    folder = os.environ.get("SMARTREE_PEERS")
    parser.add_argument("--peers", type=Path, default=folder, help="what setup.sh filled (or set SMARTREE_PEERS)")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="an engine's own place")
    parser.add_argument("--engines", default=",".join(engine.name for engine in ENGINES if engine.by_default))
    parser.add_argument("--batch", default="1,4,16")
    parser.add_argument("--max-tokens", type=_positive, default=96)
    parser.add_argument("--repeats", type=_positive, default=3)
    parser.add_argument("--threads", type=_positive, default=2)
    parser.add_argument(
        "--prompts", type=_positive, default=None, help="per batch size (default: two full batches, at least 6)"
    )
    parser.add_argument("--json", default=None, metavar="FILE")
    parser.add_argument("--plot", type=Path, default=None, metavar="FILE.png")
    parser.add_argument("--log", type=Path, default=None, help="takes what the engines print (default: nobody)")
    parser.add_argument("--fresh", action="store_true", help="forget the runs of an earlier comparison")
    return parser.parse_args()


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def compare(options: argparse.Namespace) -> None:
    """Runs what is left to run, then writes rows, table and picture.

    Raises:
        InputError: something was asked for that is not there.
    """
    json_file = JsonFile(options.json)
    batches = _batches(options.batch)
    entries, skipped = line_up(options.engines.split(","), options.peers, parse_places(options.python))
    for line in skipped:
        print(line, file=sys.stderr)
    prompts = load_prompts(options.data, batches, options.prompts)
    settings = {
        "max_tokens": options.max_tokens,
        "threads": options.threads,
        "prompts": options.prompts or "two full batches, at least 6",
        "fingerprint_of_prompts": prompts.fingerprint,
    }
    runs = RecordFile(None if options.json is None else Path(f"{options.json}.runs"), settings, options.fresh)
    with ExitStack() as stack:
        log = stack.enter_context(open(options.log or os.devnull, "a", encoding="utf-8"))
        wanted = [entry for entry in entries if _missing(entry, batches, options.repeats, runs)]
        workers = [worker for entry in wanted if (worker := _start(entry, options, batches, log, stack))]
        for worker in workers:
            runs.add_about(worker.entry.name, worker.about)
        for batch in batches:
            _take_turns(workers, prompts.by_batch[batch], batch, options, runs)
    rows = rows_of(runs.records)
    Console(width=120).print(table_of(rows))
    json_file.write({"header": _header(options, settings, runs.about), "rows": rows})
    if options.plot is not None:
        draw(options.plot, rows, f"{device_name_here()}, {options.threads} threads, bfloat16, greedy")


def _batches(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--batch {text} is not a list of positive numbers such as 1,4,16.")
    return sorted({int(part) for part in parts})


def _missing(entry: Entry, batches: list[int], repeats: int, runs: RecordFile) -> bool:
    """Whether anything is left to run of an entry."""
    return any(
        entry.takes(batch) and not runs.has(entry.name, batch, repeat) for batch in batches for repeat in range(repeats)
    )


def _start(
    entry: Entry, options: argparse.Namespace, batches: list[int], log: TextIO, stack: ExitStack
) -> Worker | None:
    """A worker that is ready and stands still; None, with a line, if the engine does not come up."""
    print(f"{entry.name}: setting up ...", file=sys.stderr)
    gguf = None if options.peers is None else str(options.peers.absolute() / GGUF_FOLDER)
    settings = WorkerSettings(
        speculation=entry.mode == SPECULATION,
        model=str(demo_folder()),
        gguf_folder=gguf,
        program=entry.program,
        threads=options.threads,
        window=_WINDOW,
        max_batch=max(batches),
        compiled=entry.engine.compiled,
    )
    try:
        return stack.enter_context(Worker(entry, settings, log))
    except WorkerError as error:
        print(f"{entry.name} is left out: {error}", file=sys.stderr)
        return None


def _take_turns(
    workers: list[Worker], prompts: list[list[int]], batch: int, options: argparse.Namespace, runs: RecordFile
) -> None:
    """All runs of a batch size that are not there yet; the order turns round from repeat to repeat."""
    taking = [worker for worker in workers if worker.entry.takes(batch)]
    wanted = [
        (repeat, worker)
        for repeat in range(options.repeats)
        for worker in (taking[::-1] if repeat % 2 else taking)
        if not runs.has(worker.entry.name, batch, repeat)
    ]
    failed: set[str] = set()
    warm: set[str] = set()
    for place, (repeat, worker) in enumerate(wanted):
        name = worker.entry.name
        if name in failed:
            continue
        try:
            if name not in warm:
                worker.run(prompts[:batch], batch, options.max_tokens)
                warm.add(name)
            reply = worker.run(prompts, batch, options.max_tokens)
        except WorkerError as error:
            print(f"{error} It is left out at batch {batch}.", file=sys.stderr)
            failed.add(name)
            continue
        record = _recorded(name, batch, repeat, reply, runs)
        rate = f"{record.tokens_per_second:.1f} tokens/s"
        print(f"batch {batch}, {place + 1} of {len(wanted)}: {name} {rate}", file=sys.stderr)


def _recorded(name: str, batch: int, repeat: int, reply: Reply, runs: RecordFile) -> Record:
    """Keeps a run; smartree's first plain tokens are what all others are held against."""
    if name == REFERENCE and batch not in runs.references:
        runs.add_reference(batch, reply.tokens)
    reference = runs.references.get(batch)
    same = None if reference is None else agreement(reply.tokens, reference)
    tokens = sum(len(one) for one in reply.tokens)
    record = Record(name, batch, repeat, tokens, reply.seconds, reply.step_ms, same)
    runs.add(record)
    return record


def _header(options: argparse.Namespace, settings: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    return {
        "command": "python -m benchmarks.peers --data DIR --peers FOLDER --json benchmarks/results/peers.json",
        "date": datetime.date.today().isoformat(),
        "device_name": device_name_here(),
        "model": "demo (SmolLM2-135M-Instruct)",
        "suites": list(SUITES),
        "repeats": options.repeats,
        "engines": about,
    } | settings


def device_name_here() -> str:
    """The processor's name."""
    import torch

    return device_name(torch.device("cpu"))


if __name__ == "__main__":
    sys.exit(main())
