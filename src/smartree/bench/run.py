"""Runs a bench: what is left to do, in order, each part kept as soon as it is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from smartree.bench.cell import Cell, make_lane, measure_cell
from smartree.bench.config import ORACLE, PLAIN, BenchConfig, Group, tree_name, tree_named
from smartree.bench.estimate import Round, round_seconds
from smartree.bench.lane import Lane, Load
from smartree.bench.oracle import Search, rounds, search_tree
from smartree.bench.partial import Partial
from smartree.bench.suites import EncodedSuite

if TYPE_CHECKING:
    from smartree.engine.llm import LLM


class Watcher(Protocol):
    """Hears how far a bench is."""

    def advance(self, what: str, work: float) -> None:
        """Some work was done on something, in estimated seconds."""
        ...

    def finished(self, group: Group) -> None:
        """All repeats of a group are done."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A repeat of a group, or the oracle's search for it (repeat None), and about how long it takes."""

    group: Group
    repeat: int | None
    seconds: float


class Bench:
    """A bench on a loaded model."""

    def __init__(self, llm: LLM, config: BenchConfig, suites: Mapping[str, EncodedSuite], done: Partial) -> None:
        """Args:
        llm: the model, with a profile, and with room for the largest batch.
        config: what to measure.
        suites: tokens of the prompts.
        done: what has been done already; results are added to it.
        """
        self.llm, self.config, self.suites, self.done = llm, config, suites, done

    def jobs(self) -> list[Job]:
        """What is left to do, in order."""
        left = []
        for group in self.config.groups():
            repeats: list[int | None] = [n for n in range(self.config.repeats) if self.done.find(group, n) is None]
            if self.config.oracle and repeats and group not in self.done.trees:
                repeats.insert(0, None)
            new = True
            for repeat in repeats:
                left.append(Job(group, repeat, self._seconds(group, repeat, new)))
                new = new and repeat is None
        return left

    def _seconds(self, group: Group, repeat: int | None, new: bool) -> float:
        """About how long a job takes."""
        cost = self.llm.knowledge.cost_model()
        assert cost is not None  # a bench has a profile
        work = [Round(len(self.config.policies), self.config.max_tokens, new)]
        if repeat is None:
            work = rounds(self.config.oracle_grid)
        return sum(round_seconds(cost, self._load(group, repeat), group.batch, each) for each in work)

    def run(self, watcher: Watcher) -> None:
        """Does what is left. An exception of the watcher's, or Ctrl-C, loses no more than the part in progress."""
        jobs, lanes = self.jobs(), _Lanes(self)
        for place, job in enumerate(jobs):

            def advance(policy: str, share: float, job: Job = job) -> None:
                watcher.advance(f"{job.group}, {'oracle tries ' * (job.repeat is None)}{policy}", share * job.seconds)

            load = self._load(job.group, job.repeat)
            if job.repeat is None:
                search = Search(self.config.oracle_grid, job.group.batch, load)
                self.done.add_tree(job.group, search_tree(self.llm, search, advance))
            else:
                measures = measure_cell(self.llm, lanes.of(job.group), load, advance, reverse=job.repeat % 2 == 1)
                self.done.add_cell(Cell(job.group, job.repeat, measures))
            if place + 1 == len(jobs) or jobs[place + 1].group != job.group:
                watcher.finished(job.group)

    def _load(self, group: Group, repeat: int | None) -> Load:
        suite = self.suites[group.suite]
        prompts = suite.search if repeat is None else suite.measured
        return Load(prompts, self.config.max_tokens, group.temperature, self.config.seed)


class _Lanes:
    """The lanes of the group at work: its repeats share them, and the next group gets new ones."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._group: Group | None = None
        self._lanes: list[Lane] = []

    def of(self, group: Group) -> list[Lane]:
        """Of a group."""
        if group != self._group:
            self._lanes = []  # their caches are free before the next ones are made
            self._lanes = [self._make(group, policy) for policy in self._bench.config.policies]
            self._group = group
        return self._lanes

    def _make(self, group: Group, policy: str) -> Lane:
        chosen = self._bench.done.trees[group] if policy == ORACLE else PLAIN
        tree = None if chosen == PLAIN else tree_named(chosen)
        return make_lane(self._bench.llm, policy, group.batch, tree)


def settings_of(config: BenchConfig, suites: Mapping[str, EncodedSuite], setup: Mapping[str, Any]) -> dict[str, Any]:
    """What results depend on: those of an interrupted bench may only be added to if it is all the same.

    Args:
        config: the bench.
        suites: tokens of the prompts, of which a fingerprint is kept.
        setup: model, device, versions and so on, by name.
    """
    settings: dict[str, Any] = {
        "suites": list(config.suites),
        "batch": list(config.batches),
        "temperature": list(config.temperatures),
        "policies": list(config.policies),
        "prompts_per_suite": config.prompts_per_suite,
        "max_tokens": config.max_tokens,
        "repeats": config.repeats,
        "seed": config.seed,
    }
    if config.oracle:
        settings["oracle_grid"] = [tree_name(size) for size in config.oracle_grid]
    prints = {f"prompts of {name}": _fingerprint([suite.measured, suite.search]) for name, suite in suites.items()}
    return settings | prints | dict(setup)


def _fingerprint(prompts: Sequence[Sequence[list[int]]]) -> str:
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:12]
