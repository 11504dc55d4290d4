"""`smartree profile`: measures what passes cost on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from smartree.cli import options
from smartree.cli.json_file import JsonFile
from smartree.cli.loading import load_llm, measure_profile
from smartree.cli.terminal import note, result_console
from smartree.config import EngineConfig

if TYPE_CHECKING:
    from smartree.cost.profile import Profile


def profile(
    json: options.Json = None,
    model: options.Model = "demo",
    drafter: options.Drafter = "auto",
    batch: options.Batch = 16,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    max_model_len: options.MaxModelLen = None,
) -> None:
    """Measure this machine anew, save the profile, and show where it bends."""
    target = JsonFile(json)
    # Policy none needs no profile, so that loading measures nothing yet.
    llm = load_llm(EngineConfig(model, drafter, "none", dtype, device, batch, max_model_len))
    measured = measure_profile(llm)
    from smartree.engine.measure import profile_key, profile_path

    if not target.to_stdout:
        print_profile(measured)
    target.write(measured.to_json())
    saved = profile_path(profile_key(llm.target, llm.drafter))
    note(f"Measured in {measured.seconds:.1f} s; saved to {_short(saved)}")


def print_profile(profile: Profile) -> None:
    """Prints the measured table, the curves, and where the device bends."""
    from smartree.cli.curves import bend_sentence, fits_table, measured_table
    from smartree.cost.fits import fit_warnings  # imports scipy: only when needed

    console = result_console()
    console.print(measured_table(profile))
    console.print(fits_table(profile))
    if profile.draft.levels:
        console.print(_draft_table(profile))
    for warning in fit_warnings(profile.verify):
        console.print(Text(warning, style="yellow"), soft_wrap=True)
    console.print(Text(bend_sentence(profile)), soft_wrap=True)


def _draft_table(profile: Profile) -> Table:
    from rich import box

    from smartree.cli.curves import milliseconds

    table = Table(title="Draft levels", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in ("batch", "rows", "ms"):
        table.add_column(name, justify="right")
    for point in profile.draft.levels:
        table.add_row(str(point.batch), str(point.width), milliseconds(point.seconds))
    return table


def _short(path: Path) -> str:
    """A path with the home folder as ~."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
