"""A parametric acceptance process: what a likelihood-ranked drafter offers, and what the target makes of it.

At a node of depth d (0 for the root) of request r in step t, the drafter's first choice has the log-odds

    logit a = mean - depth_slope * d + request_spread * x + step_spread * z_rt + node_spread * e_node

with x, e independent standard normal and z a stationary AR(1) with lag-one correlation `persistence`; x is drawn anew
every `request_steps` steps, when a request ends and another takes its place. The remaining 1 - a is spread: a share
`coverage` over the further `children` - 1 ranks as rank^-rank_exponent, the rest over tokens that nobody drafts. The
drafter reports these probabilities; the target's token is child k with (1 - optimism) times the probability of k, and
none of them otherwise. So exactly one child or none is accepted, and the reported path probability of a node is
1 / (1 - optimism)^depth times the true one.

Every number of a node is a hash of (seed, request, step, ranks on the path): the tree is infinite, nothing is stored,
and a policy sees the same node whenever it asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from smartree.errors import InputError
from smartree.simulate.pools import Flags, along_paths
from smartree.tree.forest import Candidates, Floats, Forest, Ints

_KeyArray = NDArray[np.uint64]
_SEEDS = 2**31


@dataclass(frozen=True, slots=True)
class AcceptanceLaw:
    """Parameters of the process; the symbols of the module's docstring.

    Attributes:
        name: as given on the command line.
        mean: log-odds of the first choice at the root of an average request.
        request_spread, step_spread, node_spread: standard deviations of the log-odds.
        persistence: correlation of successive steps of a request, in [0, 1).
        request_steps: steps a request lasts.
        depth_slope: log-odds lost per level.
        coverage: share of what the first choice leaves that the other children have, in [0, 1].
        rank_exponent: how fast they fall.
        children: proposed per node.
        optimism: share of the reported acceptance that is not there, in [0, 1).
        source: what the numbers are matched to.
    """

    name: str
    mean: float
    request_spread: float = 0.4
    step_spread: float = 0.7
    node_spread: float = 1.5
    persistence: float = 0.8
    request_steps: int = 64
    depth_slope: float = 0.05
    coverage: float = 0.9
    rank_exponent: float = 1.6
    children: int = 10
    optimism: float = 0.05
    source: str = ""

    def __post_init__(self) -> None:
        spreads = (self.request_spread, self.step_spread, self.node_spread)
        if not np.all(np.isfinite([self.mean, self.depth_slope, self.rank_exponent])) or min(spreads) < 0:
            raise InputError(f"Acceptance law {self.name!r} needs finite numbers and spreads of at least 0.")
        if not (0 <= self.persistence < 1 and 0 <= self.optimism < 1 and 0 <= self.coverage <= 1):
            raise InputError(f"Acceptance law {self.name!r}: persistence, optimism or coverage is out of range.")
        if min(self.children, self.request_steps) < 1:
            raise InputError(f"Acceptance law {self.name!r} needs children and request_steps of at least 1.")


class ParametricPools:
    """The process for `batch` requests over `steps` steps."""

    def __init__(self, law: AcceptanceLaw, batch: int, steps: int, seed: int = 0) -> None:
        """Raises:
        InputError: batch or steps is below 1, or the seed out of range.
        """
        if min(batch, steps) < 1 or not 0 <= seed < _SEEDS:
            raise InputError(
                f"A simulation needs batch and steps of 1 or more, a seed in [0, 2^31); got {batch}, {steps}, {seed}."
            )
        self.law, self.name, self.batch = law, law.name, batch
        self.calibrated = law.optimism == 0
        self._easiness = np.stack([_easiness(law, steps, seed, request) for request in range(batch)], axis=1)
        requests = np.arange(1, batch + 1, dtype=np.uint64)
        self._seeds = _mix(_mix(requests + np.uint64(seed) * np.uint64(1 << 32)))
        ranks = np.arange(1, law.children, dtype=np.float64)
        weights = ranks**-law.rank_exponent
        self._shares = law.coverage * weights / weights.sum() if len(ranks) else ranks
        self._step, self._roots = 0, self._seeds

    def begin(self, step: int) -> None:
        """Moves to a step.

        Raises:
            InputError: the process was made for fewer steps.
        """
        if not 0 <= step < len(self._easiness):
            raise InputError(f"Step {step} is beyond the {len(self._easiness)} steps of these pools.")
        self._step = step
        self._roots = _mix(self._seeds ^ np.uint64(step + 1))

    def expand(self, forest: Forest, frontier: Ints) -> Candidates:
        """Children of the frontier's nodes; a handle is a node's key with the outcome in its lowest bit."""
        requests, depths = forest.request[frontier], forest.depth[frontier]
        keys = np.where(frontier < self.batch, self._roots[requests], forest.handle[frontier].astype(np.uint64))
        probabilities = self.children(requests, depths, keys)
        chosen = _uniform(_mix(keys ^ np.uint64(0x5851F42D4C957F2D)))
        bounds = np.cumsum((1 - self.law.optimism) * probabilities, axis=1)
        taken = (bounds <= chosen[:, None]).sum(axis=1)  # the accepted child's rank; `children` if there is none
        count = probabilities.shape[1]
        ranks = np.tile(np.arange(count), len(frontier))
        handles = _mix(np.repeat(keys, count) + (ranks + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        handles = (handles >> np.uint64(2)) << np.uint64(1) | (np.repeat(taken, count) == ranks)
        flat = probabilities.ravel()
        return Candidates(np.repeat(frontier, count), ranks, flat, ranks, handles.astype(np.int64), flat)

    def children(self, requests: Ints, depths: Ints, keys: _KeyArray) -> Floats:
        """[F, children] reported probabilities of the children of nodes, falling by rank."""
        law = self.law
        own = law.node_spread * ndtri(_uniform(keys)) if law.node_spread else 0.0
        first = expit(law.mean - law.depth_slope * depths + self._easiness[self._step, requests] + own)
        rest = (1 - first)[:, None] * self._shares
        both = np.concatenate([first[:, None], rest], axis=1)
        return np.asarray(np.clip(-np.sort(-both, axis=1), 1e-9, 1.0))

    def worth(self, forest: Forest) -> Floats:
        """[M] true path probabilities."""
        return along_paths(forest, (1 - self.law.optimism) * forest.feature)

    def accepted(self, forest: Forest) -> Flags:
        """[M] whether a node and all its ancestors are accepted; nodes that nobody has drafted are not."""
        drafted = forest.handle >= 0
        drafted[: forest.batch] = True
        return along_paths(forest, (drafted & (forest.handle & 1 > 0)).astype(np.float64)) > 0


def _easiness(law: AcceptanceLaw, steps: int, seed: int, request: int) -> Floats:
    """[steps] what request and step add to the log-odds in one slot of the batch; the same whatever the batch."""
    random = np.random.default_rng([seed, request])
    first = int(random.integers(law.request_steps))  # requests do not all end together
    requests = random.standard_normal(1 + (first + steps) // law.request_steps)
    innovations = random.standard_normal(steps)
    innovations[1:] *= np.sqrt(1 - law.persistence**2)
    series = np.array(list(accumulate(innovations.tolist(), lambda level, new: law.persistence * level + new)))
    return np.asarray(
        law.request_spread * requests[(first + np.arange(steps)) // law.request_steps] + law.step_spread * series
    )


def _mix(keys: _KeyArray) -> _KeyArray:
    """The finaliser of splitmix64: a bijection that scatters neighbouring keys."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _uniform(keys: _KeyArray) -> Floats:
    """Numbers in (0, 1) from the upper bits of mixed keys."""
    return ((_mix(keys) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


# `mean` is solved by benchmarks/simulate/presets.py for the accepted lengths named in `source`.
_EAGLE3 = "mean of MT-Bench, HumanEval, GSM8K at T=0 in the EAGLE-3 paper, arXiv 2503.01840, table 1 (from memory)"
_MSD = "fitted to the MSD row of the published L40S batch sweep, benchmarks/simulate/published.py"
PRESETS = {
    law.name: law
    for law in (
        AcceptanceLaw("eagle3-8b", mean=3.23, source=f"length 6.37: {_EAGLE3}"),
        AcceptanceLaw("eagle3-70b", mean=2.86, source=f"length 6.10: {_EAGLE3}"),
        AcceptanceLaw("eagle3-r1", mean=3.13, source=f"length 6.30: {_EAGLE3}"),
        AcceptanceLaw("msd-llava", mean=-0.72, depth_slope=0.1, coverage=0.6, source=f"length 2.62: {_MSD}"),
        AcceptanceLaw(
            "msd-qwen",
            mean=-0.94,
            depth_slope=0.1,
            coverage=0.6,
            source="length 2.53: that of msd-llava times the ratio of the published MSD speedups, 1.18 / 1.22",
        ),
        AcceptanceLaw(
            "lookup",
            mean=-2.0,
            step_spread=2.5,
            coverage=0.3,
            rank_exponent=1.0,
            children=3,
            optimism=0.1,
            source="a stand-in for n-gram lookup: mostly nothing found, now and then a long copy",
        ),
    )
}


def law_named(name: str) -> AcceptanceLaw:
    """Raises:
    InputError: there is no such preset.
    """
    if name not in PRESETS:
        raise InputError(f"Acceptance {name!r} is neither a preset ({', '.join(PRESETS)}) nor a pools file.")
    return PRESETS[name]
