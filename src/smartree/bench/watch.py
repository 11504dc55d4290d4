"""Shows on stderr how far a bench is: a bar with the time left on a terminal, and a line for every finished group."""

from __future__ import annotations

from time import perf_counter

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from smartree.bench.config import Group
from smartree.bench.report import headline
from smartree.bench.rows import group_rows
from smartree.bench.run import Bench
from smartree.cli.terminal import note_console

_MINUTE = 60.0
_FEWEST_WORK = 0.01  # share of the work after which its own pace tells more than the profile


class BarWatcher:
    """The bar; used as a context, it leaves nothing on the screen but the lines of finished groups."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._console = note_console()
        jobs = bench.jobs()
        self.total = sum(job.seconds for job in jobs)
        self._parts = len(jobs)
        self._done = 0.0
        self._groups = list(bench.config.groups())
        self._begin = perf_counter()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        # A slow refresh: on a small machine drawing the bar takes time from the model.
        self._bar = Progress(
            *columns,
            console=self._console,
            transient=True,
            refresh_per_second=2,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=self.total, left="")

    def __enter__(self) -> BarWatcher:
        kept = len(self._bench.done.cells)
        known = f"{kept} measurements of an interrupted bench are kept; " if kept else ""
        if self._parts:
            self._say(f"{known}{self._parts} to go, {duration(self.total)} by the profile.")
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def advance(self, what: str, work: float) -> None:
        """Moves the bar."""
        self._done += work
        self._bar.update(self._task, completed=self._done, description=what, left=f"{duration(self.left())} left")

    def left(self) -> float:
        """Seconds to go, by the pace so far; by the profile while hardly anything has been done."""
        work = max(self.total - self._done, 0.0)
        if self._done < _FEWEST_WORK * self.total:
            return work
        return work * (perf_counter() - self._begin) / self._done

    def finished(self, group: Group) -> None:
        """Says the speedups of the group."""
        bench = self._bench
        cells = [cell for cell in bench.done.cells if cell.group == group]
        prompts = len(bench.suites[group.suite].measured)
        rows = group_rows(bench.config, group, cells, bench.done.trees.get(group), prompts)
        place = f"{self._groups.index(group) + 1} of {len(self._groups)}"
        left = f", {duration(self.left())} left" if group != self._groups[-1] else ""
        self._say(f"{group}: {headline(rows) or 'measured'} ({place}{left})")

    def _say(self, message: str) -> None:
        self._bar.console.print(Text(message, style="dim"), soft_wrap=True)


def duration(seconds: float) -> str:
    """About how long something takes."""
    if seconds < _MINUTE:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / _MINUTE)
    return f"about {minutes} min" if minutes < 120 else f"about {minutes / 60:.1f} h"
