"""What goes where: results to stdout; progress, notes and errors to stderr."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text


class _Count(MofNCompleteColumn):
    """Done and total; nothing as long as nobody knows the total."""

    def render(self, task: Task) -> Text:
        """The column's text."""
        return Text() if task.total is None else super().render(task)


def result_console() -> Console:
    """A console on stdout; texts of models and users must be given as `Text`, so that nothing in them is markup."""
    return Console(highlight=False, emoji=False)


def note_console() -> Console:
    """A console on stderr."""
    return Console(stderr=True, highlight=False, emoji=False)


def note(message: str) -> None:
    """Prints a note to stderr, unwrapped, so that one note is one line."""
    note_console().print(Text(message, style="dim"), soft_wrap=True)


def progress_bar(*, transient: bool = True) -> Progress:
    """A progress bar on stderr.

    Args:
        transient: remove it at the end. On something that is no terminal such a bar shows nothing at all, and one that
            stays shows its last state.
    """
    console = note_console()
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        _Count(),
        TimeElapsedColumn(),
    ]
    # A slow refresh: on a small machine drawing the bar takes time from the model.
    return Progress(
        *columns,
        console=console,
        transient=transient,
        refresh_per_second=4,
        disable=transient and not console.is_terminal,
    )


def shorten(text: str, width: int = 72) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def interactive() -> bool:
    """True if somebody types: stdin is a terminal."""
    return sys.stdin.isatty()
