"""What a bench measures; checked once, then never changed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from smartree.errors import InputError
from smartree.policies.factory import POLICY_NAMES
from smartree.policies.fixed import ORACLE_GRID, TreeSize

ORACLE = "oracle"
PLAIN = "none"
BUILT_IN = "built-in"
MOST_SEED = 2**62  # every prompt adds its number


@dataclass(frozen=True, slots=True)
class Group:
    """What policies are compared on: prompts of one suite, decoded at one temperature and batch size."""

    suite: str
    temperature: float
    batch: int

    def __str__(self) -> str:
        return f"{self.suite}, temperature {self.temperature:g}, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """A bench.

    Attributes:
        suites: names of files of the data folder, "built-in", or "org/dataset".
        batches: requests decoded together.
        temperatures: 0 takes the most likely token.
        policies: names of policies, and "oracle"; plain decoding is always measured, and first.
        prompts_per_suite: measured prompts of each suite; fewer if it has fewer.
        max_tokens: most tokens of an output.
        repeats: times that everything is measured.
        seed: prompt number i is decoded with seed + i.
        oracle_grid: the trees that the oracle may choose.
        raw: send prompts without the model's chat template.

    Raises:
        InputError: a value is out of range; the sentence names it.
    """

    suites: tuple[str, ...] = (BUILT_IN,)
    batches: tuple[int, ...] = (1, 4)
    temperatures: tuple[float, ...] = (0.0,)
    policies: tuple[str, ...] = (PLAIN, "eagle2", "smart")
    prompts_per_suite: int = 12
    max_tokens: int = 96
    repeats: int = 3
    seed: int = 0
    oracle_grid: tuple[TreeSize, ...] = ORACLE_GRID
    raw: bool = False

    def __post_init__(self) -> None:
        for name in ("suites", "batches", "temperatures", "policies", "oracle_grid"):
            if not getattr(self, name):
                raise InputError(f"A bench needs at least one of its {name.replace('_', ' ')}; the list is empty.")
        for name in ("prompts_per_suite", "max_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for batch in self.batches:
            if batch < 1:
                raise InputError(f"batch is {batch}; it must be at least 1.")
        for temperature in self.temperatures:
            if not (math.isfinite(temperature) and temperature >= 0):
                raise InputError(f"temperature is {temperature}; it must be 0 (argmax) or a positive number.")
        known = (*POLICY_NAMES, ORACLE)
        for policy in self.policies:
            if policy not in known:
                raise InputError(f"Policy {policy!r} is unknown; choose one of {', '.join(known)}.")
        if not 0 <= self.seed < MOST_SEED:
            raise InputError(f"seed is {self.seed}; it must be between 0 and 2**62 - 1.")
        for name in ("suites", "batches", "temperatures", "oracle_grid"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        object.__setattr__(self, "policies", tuple(dict.fromkeys((PLAIN, *self.policies))))

    @property
    def oracle(self) -> bool:
        """True if the best fixed tree is to be found and measured."""
        return ORACLE in self.policies

    def groups(self) -> Iterator[Group]:
        """Everything that policies are compared on, in the order of the results."""
        for suite in self.suites:
            for temperature in self.temperatures:
                for batch in self.batches:
                    yield Group(suite, temperature, batch)


def tree_name(size: TreeSize) -> str:
    """A fixed tree in writing: depth, top_k, and most nodes without the root, as in "5/4/16"."""
    return f"{size.depth}/{size.top_k}/{size.nodes}"


def tree_named(text: str) -> TreeSize:
    """The fixed tree of a triple.

    Raises:
        InputError: it is none.
    """
    try:
        depth, top_k, nodes = (int(part) for part in text.split("/"))
    except ValueError:
        raise InputError(f"Tree {text!r} is no triple; write depth/top_k/total, like 5/4/16.") from None
    if min(depth, top_k, nodes) < 1:
        raise InputError(f"Tree {text!r} needs a depth, a top_k and a total of at least 1.")
    return TreeSize(depth, top_k, nodes)
