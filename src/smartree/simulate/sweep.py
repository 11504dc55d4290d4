"""Policies x devices x models x batch sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from smartree.cost import CostModel
from smartree.errors import InputError
from smartree.policies import NEED_COST, POLICY_NAMES, make_policy
from smartree.simulate.acceptance import PRESETS, AcceptanceLaw, ParametricPools
from smartree.simulate.loop import Outcome, SimulatedStep, price, run
from smartree.simulate.oracle import GridRun, best_tree, run_grid
from smartree.simulate.pools import Pools
from smartree.simulate.recorded import RecordedPool, RecordedPools
from smartree.simulate.setups import Setup

ORACLE = "oracle"
POLICIES = (*POLICY_NAMES, ORACLE)
_FEWEST_STEPS = 60
_LARGEST_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a sweep (design 7)."""

    device: str
    model: str
    batch: int
    policy: str
    speedup: float
    expected_accepted_length: float
    verified_tokens: float
    draft_ms: float
    verify_ms: float

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What the line is about."""
        return self.device, self.model, self.batch, self.policy

    def to_json(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded pools under a name; compared by name, so that runs on them can be kept."""

    name: str
    pools: tuple[RecordedPool, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recording) and other.name == self.name and other.pools is self.pools

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What to simulate.

    Attributes:
        policies: names, of POLICIES.
        batches: batch sizes.
        steps: counted steps at batch 1; a batch of B needs steps / B for the same precision, 60 at least.
        warm_up: steps before, in which policies learn.
        seed: of the acceptance process.
        acceptance: an acceptance law or recorded pools; None takes each model's preset.
    """

    policies: tuple[str, ...] = POLICIES
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    steps: int = 480
    warm_up: int = 60
    seed: int = 0
    acceptance: AcceptanceLaw | Recording | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.policies if name not in POLICIES]
        if unknown or not self.policies:
            raise InputError(f"Policy {', '.join(unknown) or 'none given'}: choose from {', '.join(POLICIES)}.")
        if not self.batches or not all(1 <= batch <= _LARGEST_BATCH for batch in self.batches):
            raise InputError(f"Batch sizes {list(self.batches)}: give whole numbers from 1 to {_LARGEST_BATCH}.")
        if self.steps < 1 or self.warm_up < 0:
            raise InputError(f"A sweep needs steps of at least 1 and no negative warm_up; got {self.steps}.")

    def steps_at(self, batch: int) -> int:
        """Counted steps at a batch size."""
        return max(self.steps // batch, min(self.steps, _FEWEST_STEPS))


@dataclass(frozen=True, slots=True)
class _Workload:
    """What a policy's run depends on, beside costs."""

    acceptance: AcceptanceLaw | Recording
    batch: int
    context: int
    steps: int
    warm_up: int
    seed: int

    def pools(self) -> Pools:
        if isinstance(self.acceptance, Recording):
            return RecordedPools(self.acceptance.name, self.acceptance.pools, self.batch)
        return ParametricPools(self.acceptance, self.batch, self.steps + self.warm_up, self.seed)


def sweep(
    setups: Sequence[Setup], options: SweepOptions, done: Collection[tuple[str, str, int, str]] = ()
) -> Iterator[Row]:
    """Simulates every cell that fits into memory and is not `done`, batch by batch.

    Raises:
        InputError: a profile was not measured for one of the batch sizes.
    """
    for batch in options.batches:
        for setup in setups:
            if setup.fits(batch):
                yield from _cell(setup, batch, options, done)


def count_rows(setups: Sequence[Setup], options: SweepOptions) -> int:
    """Rows that a sweep yields if none is done."""
    return len(options.policies) * sum(setup.fits(batch) for setup in setups for batch in options.batches)


def _cell(
    setup: Setup, batch: int, options: SweepOptions, done: Collection[tuple[str, str, int, str]]
) -> Iterator[Row]:
    wanted = [name for name in options.policies if (setup.device, setup.model, batch, name) not in done]
    if not wanted:
        return
    cost = setup.cost(batch)
    acceptance = options.acceptance or PRESETS[setup.acceptance]
    steps = options.steps_at(batch)
    workload = _Workload(acceptance, batch, setup.context, steps, options.warm_up, options.seed)
    for name in wanted:
        outcome = _simulate(name, workload, cost)
        yield Row(
            setup.device,
            setup.model,
            batch,
            name,
            outcome.speedup,
            outcome.expected_accepted_length,
            outcome.verified_tokens,
            outcome.draft_ms,
            outcome.verify_ms,
        )


def _simulate(name: str, work: _Workload, cost: CostModel) -> Outcome:
    if name == ORACLE:
        return best_tree(_grid(work), cost, work.context).outcome
    if name not in NEED_COST:
        return price(_run_without_costs(name, work), cost, work.batch, work.context)
    policy = make_policy(name, cost)
    steps = run(policy, work.pools(), cost, context=work.context, steps=work.steps, warm_up=work.warm_up)
    return price(steps, cost, work.batch, work.context)


# What decides without costs decides alike on every device: kept for the next one.
@lru_cache(maxsize=64)
def _run_without_costs(name: str, work: _Workload) -> tuple[SimulatedStep, ...]:
    policy = make_policy(name, None)
    steps = run(policy, work.pools(), None, context=work.context, steps=work.steps, warm_up=work.warm_up)
    return tuple(steps)


@lru_cache(maxsize=16)
def _grid(work: _Workload) -> GridRun:
    return run_grid(work.pools(), work.context, work.steps, work.warm_up)
