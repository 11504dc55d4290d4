"""The rule of the SMART paper (arXiv 2604.09731): keep a node while it pays at the margin."""

from __future__ import annotations

import numpy as np

from smartree.cost.fits import power_exponential_fits
from smartree.cost.model import CostModel
from smartree.errors import InputError
from smartree.policies.base import BasePolicy, StepOutcome, StepState
from smartree.tree.forest import Candidates, Forest, Ints

_ALPHA_PRIOR = 5.0  # accepted tokens that "as predicted" is worth
_ALPHA_KEEP = 0.98  # share of the past that a step keeps


class PaperPolicy(BasePolicy):
    """Layer by layer: child u stays if alpha * dC_target(u) / dC_spec(u) > C_target / C_spec (design 3.1).

    Per request, with |T| counting the root: dC_target = c_T * p_u, C_target = c_T * (1 + sum of kept p),
    dC_spec = lambda + gamma*delta*rho*|T|^(rho-1)*exp(delta*|T|^rho), C_spec = lambda*|T| + beta + C_verify(|T|), the
    curves fitted for the step's batch size. c_T cancels. A layer's children are asked in falling path probability and
    each one kept raises |T| and C_target for the next. The comparison is made in logarithms, so no |T| overflows.
    """

    name = "paper"

    def __init__(
        self,
        cost: CostModel,
        *,
        alpha: float = 0.8,
        adaptive: bool = False,
        budget: int = 300,
        free_eta: bool = True,
        top_k: int = 10,
        max_depth: int = 16,
    ) -> None:
        """Args:
            cost: its table is what the curves are fitted to.
            alpha: factor of the paper's rule.
            adaptive: multiply alpha by measured over predicted acceptance, between 0.25 and 1.5 times its value.
            budget: B_verify, most nodes of the batch in one pass; a request gets budget / batch of them, at most 300.
            free_eta: False is the paper's own choice, eta = 0.
            top_k: most children considered of a node.
            max_depth: most levels.

        Raises:
            InputError: a parameter is out of range, or the profile is too small to fit.
        """
        if not (alpha > 0 and np.isfinite(alpha)) or budget < 1 or top_k < 1:
            raise InputError(f"paper needs alpha > 0, budget >= 1, top_k >= 1; got {alpha}, {budget}, {top_k}.")
        super().__init__(cost, max_depth)
        self.alpha, self.budget, self.top_k = alpha, budget, top_k
        self._base_alpha, self._adaptive = alpha, adaptive
        self._accepted = self._predicted = _ALPHA_PRIOR
        self._fits = power_exponential_fits(cost.table.points, free_eta=free_eta)
        if not self._fits:
            raise InputError("The paper's curve needs 4 or more measured sizes at one batch size; profile again.")
        self._curve = next(iter(self._fits.values()))
        self._draft_slope = self._draft_base = 0.0
        self._kept_rows = self._kept_gain = np.empty(0)

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """Takes the curve of the nearest measured batch size and starts every tree at its root."""
        assert self.cost is not None
        self._curve = self._fits[min(self._fits, key=lambda batch: abs(batch - state.batch))]
        self._draft_slope, self._draft_base = _draft_line(self.cost, state.batch)
        self._kept_rows = np.ones(state.batch)
        self._kept_gain = np.ones(state.batch)
        return super().begin(state, forest)

    def pays(self, path: float, rows: float, gain: float) -> bool:
        """The paper's condition for one child.

        Args:
            path: p_u.
            rows: |T| before the child, root included.
            gain: 1 + the path probabilities kept so far.
        """
        log_slope = self._curve.log_slope(rows)
        if self._draft_slope > 0:
            log_slope = float(np.logaddexp(log_slope, np.log(self._draft_slope)))
        drafting = self._draft_slope * rows + self._draft_base
        log_spent = self._curve.log_seconds(rows)
        if drafting > 0:
            log_spent = float(np.logaddexp(log_spent, np.log(drafting)))
        return path > 0 and bool(np.log(self.alpha * path) - log_slope > np.log(gain) - log_spent)

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """Keeps the children that pay; kept nodes are both recorded and expanded."""
        paths = forest.path[candidates.parents] * candidates.probabilities
        requests = forest.request[candidates.parents]
        most = min(self.budget // max(self.state.batch, 1), 300)
        kept = []
        for index in np.argsort(-paths, kind="stable"):
            request = requests[index]
            if candidates.ranks[index] >= self.top_k or self._kept_rows[request] - 1 >= most:
                continue
            if self.pays(float(paths[index]), float(self._kept_rows[request]), float(self._kept_gain[request])):
                self._kept_rows[request] += 1
                self._kept_gain[request] += paths[index]
                kept.append(index)
        return self.within_limits(forest, forest.append(candidates.take(np.array(kept, np.int64))))

    def observe(self, outcome: StepOutcome) -> None:
        """Adapts alpha, if asked to, to what the drafter's probabilities turned out to be worth."""
        super().observe(outcome)
        if not self._adaptive:
            return
        predicted = float(outcome.forest.path[outcome.selected].sum())
        self._predicted = _ALPHA_KEEP * self._predicted + predicted
        self._accepted = _ALPHA_KEEP * self._accepted + outcome.tokens - outcome.state.batch
        factor = (self._accepted + _ALPHA_PRIOR) / (self._predicted + _ALPHA_PRIOR)
        self.alpha = self._base_alpha * min(max(factor, 0.25), 1.5)

    def select(self, forest: Forest) -> Ints:
        """Every kept node."""
        chosen = forest.best_first()
        self.predict(forest, chosen)
        return chosen


def _draft_line(cost: CostModel, batch: int) -> tuple[float, float]:
    """lambda (seconds per node and request) and beta of C_draft = lambda * |T| + beta."""
    if not cost.draft.by_level:
        return 0.0, cost.draft.seconds_per_step
    # A layer-wise drafter pays per level; the paper spreads it over the nodes: 10 per level, EAGLE's beam.
    return cost.draft.level_seconds(batch, 10 * batch) / 10, 0.0
