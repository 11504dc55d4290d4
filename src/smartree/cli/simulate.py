"""`smartree simulate`: what policies would bring on devices that are not at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from smartree.cli import options
from smartree.cli.json_file import JsonFile
from smartree.cli.terminal import note, progress_bar, result_console
from smartree.errors import InputError

if TYPE_CHECKING:
    from smartree.simulate.setups import Setup
    from smartree.simulate.sweep import Row, SweepOptions

_WHAT, _HOW, _DATA = "What to simulate", "How", "Input and output"


Devices = Annotated[
    list[str] | None,
    typer.Option("--device", help='Preset, profile.json, or "all"; may be repeated.', rich_help_panel=_WHAT),
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help='Shape preset or "all"; may be repeated.', rich_help_panel=_WHAT),
]
Batches = Annotated[str, typer.Option("--batch", help="Batch sizes, comma-separated.", rich_help_panel=_WHAT)]
Policies = Annotated[
    str | None,
    typer.Option("--policies", help="Comma-separated; all, and the oracle, if not given.", rich_help_panel=_WHAT),
]
Steps = Annotated[
    int, typer.Option("--steps", help="Counted steps at batch 1; fewer at larger ones.", rich_help_panel=_HOW)
]
Acceptance = Annotated[
    str | None,
    typer.Option(
        "--acceptance", help="Preset or pools file (.jsonl); the model's own if not given.", rich_help_panel=_HOW
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of the acceptance process.", rich_help_panel=_HOW)]
Plot = Annotated[str | None, typer.Option("--plot", metavar="DIR", help="Write pictures there.", rich_help_panel=_DATA)]


def simulate(
    device: Devices = None,
    model: Models = None,
    batch: Batches = "1,2,4,8,16,32,64",
    policies: Policies = None,
    steps: Steps = 480,
    acceptance: Acceptance = None,
    seed: Seed = 0,
    json: options.Json = None,
    plot: Plot = None,
) -> None:
    """Simulate policies by device, model and batch size, from rooflines or measured profiles."""
    from smartree.bench.plots import plot_folder
    from smartree.simulate.devices import Overheads
    from smartree.simulate.report import sweep_header
    from smartree.simulate.setups import setups_for
    from smartree.simulate.sweep import POLICIES, SweepOptions

    target, folder = JsonFile(json), plot_folder(plot)
    chosen = tuple(_words(policies)) if policies is not None else POLICIES
    wanted = SweepOptions(chosen, _batches(batch), steps, seed=seed, acceptance=_acceptance(acceptance))
    setups = setups_for(device or ["rtx-pro-6000"], _models(model or ["llama-3.1-8b"]), Overheads())
    rows = _run(setups, wanted)
    if not target.to_stdout:
        _print(rows)
    target.write({"header": sweep_header(setups, wanted, Overheads()), "rows": [row.to_json() for row in rows]})
    if folder is not None:
        _draw(folder, setups, rows)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _batches(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(word) for word in _words(text)))
    except ValueError as error:
        raise InputError(f"--batch {text} is no list of whole numbers; write it like 1,4,16.") from error


def _models(names: Sequence[str]) -> list[Any]:
    from smartree.simulate.models import MODELS, model_named

    return list(MODELS.values()) if "all" in names else [model_named(name) for name in dict.fromkeys(names)]


def _acceptance(text: str | None) -> Any:
    from smartree.simulate.acceptance import law_named
    from smartree.simulate.recorded import read_pools
    from smartree.simulate.sweep import Recording

    if text is None:
        return None
    if text.endswith(".jsonl"):
        return Recording(Path(text).name, tuple(read_pools(Path(text))))
    return law_named(text)


def _run(setups: Sequence[Setup], wanted: SweepOptions) -> list[Row]:
    """All rows, with a bar on stderr and a note for what does not fit into memory.

    Raises:
        InputError: nothing fits.
    """
    from smartree.simulate.sweep import count_rows, sweep

    left_out = [
        f"{setup.model} on {setup.device} at batch {size}"
        for setup in setups
        for size in wanted.batches
        if not setup.fits(size)
    ]
    total = count_rows(setups, wanted)
    if total == 0:
        raise InputError(f"Nothing to simulate: {left_out[0]} does not fit into memory; choose another device.")
    rows: list[Row] = []
    with progress_bar() as bar:
        task = bar.add_task("Simulating", total=total)
        for row in sweep(setups, wanted):
            rows.append(row)
            bar.advance(task)
    if left_out:
        note(f"Left out, as they do not fit into memory: {'; '.join(left_out)}.")
    return rows


def _print(rows: Sequence[Row]) -> None:
    """One table per device and model: speedup by policy and batch, and the tree that smart chooses."""
    from rich import box

    console = result_console()
    for device, model in dict.fromkeys((row.device, row.model) for row in rows):
        chosen = [row for row in rows if (row.device, row.model) == (device, model)]
        table = Table(
            title=f"{model} on {device}: speedup over plain decoding (verified tokens per request)",
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        table.add_column("policy")
        batches = sorted({row.batch for row in chosen})
        for size in batches:
            table.add_column(f"batch {size}", justify="right")
        for policy in dict.fromkeys(row.policy for row in chosen):
            cells = {row.batch: row for row in chosen if row.policy == policy}
            values = (_cell(cells[size]) if size in cells else Text("") for size in batches)
            table.add_row(Text(policy), *values)
        console.print(table)


def _cell(row: Row) -> Text:
    style = "red" if row.speedup < 1 else ""
    return Text(f"{row.speedup:.2f}", style=style).append(f" ({row.verified_tokens / row.batch:.0f})", style="dim")


def _draw(folder: Path, setups: Sequence[Setup], rows: Sequence[Row]) -> None:
    """Per device and model two pictures by batch; per model one of the bends."""
    from matplotlib.figure import Figure

    from smartree.simulate.plots import DOTS_PER_INCH, SIZE, draw_bend, draw_sizes, draw_speedups

    def save(name: str, draw: Any, *arguments: Any) -> None:
        figure = Figure(figsize=SIZE, layout="constrained")
        draw(figure, *arguments)
        figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH)

    for device, model in dict.fromkeys((row.device, row.model) for row in rows):
        chosen = [row for row in rows if (row.device, row.model) == (device, model)]
        name = f"{_file_name(device)}-{_file_name(model)}"
        save(f"speedup-{name}", draw_speedups, chosen)
        save(f"size-{name}", draw_sizes, chosen)
    for model in dict.fromkeys(setup.model for setup in setups):
        own = [setup for setup in setups if setup.model == model]
        save(f"bend-{_file_name(model)}", draw_bend, {setup.device: setup.bend() for setup in own}, f"{model}, a pass")
    note(f"Pictures are in {folder}.")


def _file_name(text: str) -> str:
    return "".join(character if character.isalnum() or character in ".-" else "-" for character in text)
