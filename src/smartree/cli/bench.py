"""`smartree bench`: policies on the real engine, by suite, batch size and temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from smartree.cli import options
from smartree.cli.header import run_header
from smartree.cli.json_file import JsonFile
from smartree.cli.loading import load_llm
from smartree.cli.terminal import note, result_console
from smartree.config import EngineConfig
from smartree.errors import InputError

if TYPE_CHECKING:
    from smartree.bench.config import BenchConfig
    from smartree.bench.run import Bench
    from smartree.bench.suites import Suite
    from smartree.engine.llm import LLM

_WHAT, _HOW, _DATA = "What to measure", "How", "Input and output"
_DATA_SUITES = "mt_bench,humaneval,gsm8k"

Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder of the suites' JSONL files.", rich_help_panel=_WHAT),
]
Suites = Annotated[
    str | None,
    typer.Option(
        "--suites",
        help=f'Comma-separated: mt_bench, humaneval, gsm8k, spec_bench, any other file of the folder, "built-in", or '
        f'"org/dataset" of the hub. Not given: {_DATA_SUITES} with --data, else built-in.',
        rich_help_panel=_WHAT,
    ),
]
Batches = Annotated[str, typer.Option("--batch", help="Batch sizes, comma-separated.", rich_help_panel=_WHAT)]
Temperatures = Annotated[
    str, typer.Option("--temperature", help="Temperatures, comma-separated.", rich_help_panel=_WHAT)
]
Policies = Annotated[
    str,
    typer.Option(
        "--policies",
        help="Comma-separated: none, smart, paper, eagle2, chain, static, opt-tree, and oracle, the best fixed tree.",
        rich_help_panel=_WHAT,
    ),
]
Prompts = Annotated[
    int,
    typer.Option("--prompts-per-suite", help="Measured prompts, spread over the suite.", rich_help_panel=_WHAT),
]
OracleGrid = Annotated[
    str | None,
    typer.Option(
        "--oracle-grid",
        help="Trees the oracle may choose, depth/top_k/total comma-separated; a grid of its own if not given.",
        rich_help_panel=_WHAT,
    ),
]
Repeats = Annotated[int, typer.Option("--repeats", help="Times that all is measured.", rich_help_panel=_HOW)]
Seed = Annotated[int, typer.Option("--seed", help="Prompt i gets seed + i.", rich_help_panel=_HOW)]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Forget an interrupted bench in place of going on.", rich_help_panel=_HOW)
]
Plot = Annotated[str | None, typer.Option("--plot", metavar="DIR", help="Write pictures there.", rich_help_panel=_DATA)]


def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as --model.")] = None,
    model: options.Model = "demo",
    drafter: options.Drafter = "auto",
    dtype: options.Dtype = "bfloat16",
    device: options.Device = "auto",
    profile: options.ProfileFile = None,
    max_model_len: options.MaxModelLen = None,
    data: Data = None,
    suites: Suites = None,
    prompts_per_suite: Prompts = 12,
    batch: Batches = "1,4",
    temperature: Temperatures = "0",
    policies: Policies = "none,eagle2,smart",
    oracle_grid: OracleGrid = None,
    max_tokens: options.MaxTokens = 96,
    repeats: Repeats = 3,
    seed: Seed = 0,
    raw: options.Raw = False,
    fresh: Fresh = False,
    json: options.Json = None,
    plot: Plot = None,
) -> None:
    """Measure policies against plain decoding on suites of prompts; an interrupted bench goes on where it stopped."""
    from smartree.bench.plots import plot_folder

    target, folder = JsonFile(json), plot_folder(plot)
    if suites is None and data is not None:
        suites = _DATA_SUITES
    config = replace(
        _lists(suites, batch, temperature, policies, oracle_grid),
        prompts_per_suite=prompts_per_suite,
        max_tokens=max_tokens,
        repeats=repeats,
        seed=seed,
        raw=raw,
    )
    if drafter == "none" and len(config.policies) > 1:
        raise InputError("--drafter none leaves the policies nothing to choose from; name a drafter, or policy none.")
    chosen = _load_suites(config, data)
    largest = max(config.batches)
    llm = load_llm(
        EngineConfig(_one_model(name, model), drafter, "smart", dtype, device, largest, max_model_len, profile=profile)
    )
    work = _prepare(llm, config, chosen, json, fresh)
    rows = _measure(work)
    if not target.to_stdout:
        _print(rows, llm)
    target.write({"header": _header(llm, chosen, context), "rows": rows})
    work.done.remove()
    if folder is not None:
        _draw(folder, llm, rows)


def _lists(suites: str | None, batch: str, temperature: str, policies: str, oracle_grid: str | None) -> BenchConfig:
    """What comes as lists; the rest of the settings at their defaults.

    Raises:
        InputError: a list cannot be read, or holds what does not exist.
    """
    from smartree.bench.config import BUILT_IN, ORACLE_GRID, BenchConfig, tree_named

    config = BenchConfig(
        suites=_words(BUILT_IN if suites is None else suites),
        batches=_numbers("--batch", batch, int, "whole numbers; write it like 1,4,16"),
        temperatures=_numbers("--temperature", temperature, float, "numbers; write it like 0,1"),
        policies=_words(policies),
        oracle_grid=ORACLE_GRID if oracle_grid is None else tuple(tree_named(word) for word in _words(oracle_grid)),
    )
    if oracle_grid is not None and not config.oracle:
        raise InputError("--oracle-grid is of use only with the policy oracle; add it to --policies.")
    return config


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(option: str, text: str, kind: Callable[[str], Any], what: str) -> tuple[Any, ...]:
    try:
        return tuple(kind(word) for word in _words(text))
    except ValueError as error:
        raise InputError(f"{option} {text} is no list of {what}.") from error


def _one_model(name: str | None, option: str) -> str:
    """Raises:
    InputError: two models are named.
    """
    if name is not None and option not in ("demo", name):
        raise InputError(f"Two models are named, {name} and --model {option}; name one.")
    return name or option


def _load_suites(config: BenchConfig, data: Path | None) -> list[Suite]:
    from smartree.bench.suites import load_suite

    return [load_suite(name, data, config.prompts_per_suite, config.oracle) for name in config.suites]


def _prepare(llm: LLM, config: BenchConfig, suites: Sequence[Suite], json: str | None, fresh: bool) -> Bench:
    """The bench, with what an interrupted one has done already.

    Raises:
        InputError: a prompt does not fit the model, or the interrupted bench was another one.
    """
    from smartree.bench.partial import Partial, partial_path
    from smartree.bench.run import Bench, settings_of
    from smartree.bench.suites import encode

    encoded = {suite.name: encode(llm, suite, config.raw) for suite in suites}
    header = run_header(llm)
    setup = {name: header[name] for name in ("model", "drafter", "dtype", "device_name", "threads", "window")}
    settings = settings_of(config, encoded, setup | header["versions"])
    return Bench(llm, config, encoded, Partial(partial_path(json), settings, fresh=fresh))


def _measure(work: Bench) -> list[dict[str, Any]]:
    """All rows, with progress on stderr; Ctrl-C says what is kept."""
    from smartree.bench.rows import all_rows
    from smartree.bench.watch import BarWatcher

    try:
        with BarWatcher(work) as watcher:
            work.run(watcher)
    except KeyboardInterrupt:
        if work.done.path is not None:
            kept = len(work.done.cells)
            note(f"{kept} measurements are kept in {work.done.path}; the same command goes on from there.")
        raise
    prompts = {name: len(suite.measured) for name, suite in work.suites.items()}
    return all_rows(work.config, work.done.cells, work.done.trees, prompts)


def _header(llm: LLM, suites: Sequence[Suite], context: typer.Context) -> dict[str, Any]:
    """Everything that somebody needs to run the same again; prompts by their number in the suite."""
    header = run_header(llm)
    del header["policy"]  # of the model's own engine, which decodes nothing here
    given = sorted(context.params.items())
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in given}
    prompts = {suite.name: list(suite.measured_rows) for suite in suites}
    search = {suite.name: list(suite.search_rows) for suite in suites if suite.search}
    return header | {
        "date": date.today().isoformat(),
        "arguments": arguments,
        "prompts": prompts,
        "oracle_searched_on": search,
    }


def _print(rows: Sequence[dict[str, Any]], llm: LLM) -> None:
    from smartree.bench.report import notes, tables

    console = result_console()
    console.print(Text(_title(llm), style="bold"), soft_wrap=True)
    for table in tables(rows):
        console.print(table)
    for sentence in notes(rows, llm.target.dtype.itemsize < 4):
        console.print(Text(sentence, style="dim"), soft_wrap=True)


def _title(llm: LLM) -> str:
    header = run_header(llm)
    title = f"{header['model']} in {header['dtype']}, drafter {header['drafter']}, on {header['device_name']}"
    if header["threads"]:
        title += f", {header['threads']} {'thread' if header['threads'] == 1 else 'threads'}"
    return title


def _draw(folder: Path, llm: LLM, rows: Sequence[dict[str, Any]]) -> None:
    from smartree.bench.plots import draw_all

    draw_all(folder, rows, _title(llm))
    note(f"Pictures are in {folder}.")
