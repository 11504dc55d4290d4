"""The default policy: the exact joint optimum on the measured cost table, at the price of time (design 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smartree.cost.model import CostModel
from smartree.policies.base import BasePolicy, StepOutcome, StepState
from smartree.policies.beginning import GAIN_TO_GO_ON, Beginning
from smartree.policies.expansion import Expansion
from smartree.policies.growth import Growth
from smartree.policies.habit import Habit
from smartree.policies.insight import Insight
from smartree.policies.level_costs import LevelCosts
from smartree.policies.planting import Planting
from smartree.policies.price import Savings
from smartree.policies.prices import Prices
from smartree.policies.rest import Rest
from smartree.policies.row_trial import RowTrial
from smartree.policies.scan import Choice
from smartree.policies.selection import Selection
from smartree.policies.smart_options import SmartOptions
from smartree.policies.step_costs import StepCosts
from smartree.tree.forest import Candidates, Forest, Ints

_NOTHING = np.empty(0)
_NOBODY = np.empty(0, np.int64)
_LOOK_AHEAD = 8  # levels; gains fall with every one
_RATE_SHARE = 0.1  # of a step in the running mean of tokens per second
_LITTLE_GAIN = 0.15  # of a plain step: whether that is so depends on what a plain step takes, so one is taken at times
_WORST_LOOK = 4  # times what a look should take: more than that was a slow moment of the machine
_DEEPER_SHARE = 0.2  # of the explore_share, for one level more than seems to pay
_PLANTED_SHARE = 0.5  # of the price of a row: that of the last step, and the next one's may be lower
_ROW_SHARE = 0.25  # of the price of a row counts when a draft level is sized: a heuristic, see docs/theory.md, 4


class SmartPolicy(BasePolicy):
    """Drafts while a level pays, then verifies the best n nodes of all requests together.

    What has been drafted is paid for, so the only question while drafting is whether the next level's expected
    tokens (learned per depth) are worth its draft time and the verify time they would take. "No speculation" is n = 0
    of the scan. When it wins, `explore_share` of the time is saved up and spent on looks at speculation. A fifth as
    much is saved for looks at one level more than seems to pay: without them, a depth that was once bad stays unseen.
    """

    name = "smart"

    def __init__(self, cost: CostModel, options: SmartOptions | None = None) -> None:
        self.options = options or SmartOptions()
        super().__init__(cost, self.options.max_depth)
        self._model = cost
        self._levels = LevelCosts(cost)
        self._costs = StepCosts(cost, self._levels)
        self._prices = Prices()
        self._growth = Growth()
        self._looks = Savings(self.options.explore_share)
        self._deeper_looks = Savings(_DEEPER_SHARE * self.options.explore_share)
        self._selection = Selection(cost, self.options, self._costs, self._looks)
        self._beginning = Beginning(self._levels, self._growth, self._looks)
        self._expansion = Expansion(self.options, self._levels, self._growth, self._deeper_looks)
        self._usual_rate = 0.0  # tokens per second of steps without prompts
        self._choice = Choice(0, 0.0, 1.0)
        self._pool = _NOTHING  # path probabilities of all nodes so far, rising
        self._worth = 0.0  # of the pool at the known price, by the last scan
        self._scanned = (0, 0, 0)  # of the last scan: nodes, levels, changes of costs
        self._expanded: list[Ints] = []
        self._rest = Rest()
        self._begins, self._ends = Habit(True), Habit(True)  # one level is wanted; the first was the last
        self._usual = False  # a step like the one before it, after which habits may be followed
        self._planting, self._looked_up = Planting(), False
        self._insight = Insight()
        self._trial = RowTrial(cost, self._costs, self.options.explore_share)

    @property
    def price(self) -> float:
        """Tokens per second that time is worth now: the running price, else the ratio of the step as chosen so far."""
        return self._at_choice(self._known_price())

    def _at_choice(self, known: float | None) -> float:
        return known if known is not None else self._choice.tokens / self._choice.seconds

    def _known_price(self) -> float | None:
        if not self.options.use_price:
            return None
        known, plain = self._prices.at(self.state.batch), self._costs.plain
        if self.state.extra_tokens:
            # Few decode because others read their prompts: time is worth what it brings when these have joined. And the
            # step's own ratio would be that of reading prompts.
            own = float(self.state.batch) if known is None else known
            return max(own / plain, self._usual_rate)
        return None if known is None else known / plain

    def least_planted(self, state: StepState) -> float | None:
        """Half of what a row costs by the last step's price; nothing is planted in a rest."""
        due = self._rest.is_due(state.is_like(self.state), self._is_long_beside(state))
        if due or self._tries_plain(state) or not self._planting.wanted(not state.extra_tokens):
            self._looked_up = False
            return None
        self._looked_up = True
        price = self._costs.price
        return 0.0 if price is None else _PLANTED_SHARE * price * self._costs.row_seconds(0)

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """Starts a step from plain decoding: no node, nothing drafted."""
        same = state.is_like(self.state) and not forest.planted
        if self._rest.begin(same, self._is_long_beside(state)):
            self.state = state
            return _NOBODY
        self._count_rested(self._rest.end())
        if state.batch != self.state.batch:
            self._begins.forget()
            self._ends.forget()
        behind = self._levels.unread.is_long(state.batch)
        self._usual = same and self._model.draft.by_level and not behind
        frontier = super().begin(state, forest)
        self._levels.begin(state.batch)
        self._prices.begin(forest)
        self._costs.begin(state)
        self._costs.price = self._known_price()
        self._expanded = []
        self._trial.begin()
        self._insight.begin()
        self._pool = np.sort(forest.path[forest.batch :]) if forest.planted else _NOTHING
        self._scan(forest)
        if self._tries_plain(state):
            return _NOBODY
        if not self._model.draft.by_level:
            return frontier
        if state.extra_tokens and not self._rows_pay_beside():
            return frontier[:0]
        if not behind:
            return frontier
        if len(frontier) == 0 or self._is_long_beside(state):
            return frontier[:0]
        begin = self._beginning.roots(
            frontier,
            state.batch,
            state.unread,
            self._costs.plain,
            lambda seconds: self._level_pays(forest, frontier, 0, seconds),
        )
        return frontier[:0] if len(begin) < len(frontier) and self._trial.starts(forest) else begin

    def _is_long_beside(self, state: StepState) -> bool:
        """True if a step reads so many prompt tokens that nobody begins to speculate in it."""
        return self._model.draft.by_level and state.extra_tokens > self.options.prompt_tokens

    def _tries_plain(self, state: StepState) -> bool:
        """True if this step had better be plain, only to see what that takes: everybody has speculated for long."""
        if state.extra_tokens or not self._model.draft.by_level or not self._rest.wants_plain():
            return False
        achieved = self._prices.highest(state.batch)
        return achieved is not None and achieved < (1 + _LITTLE_GAIN) * state.batch

    def _rows_pay_beside(self) -> bool:
        """False if beside this step's prompt tokens not even the likeliest child of a root is worth its row.

        Or if nobody knows yet what time is worth.
        """
        if self.options.use_price and not self._usual_rate:
            return False
        return self._at_choice(self._costs.price) * self._costs.row_beside() < float(self._growth.at(0)[0])

    def wants_level(self, forest: Forest, frontier: Ints) -> bool:
        """True if the level pays, costs nothing, or is a look that the exploration budget covers."""
        if len(frontier) == 0:
            return False
        first = self._usual and int(frontier[0]) < forest.batch
        if first and self._begins.holds():
            return self._take_level(0, frontier)
        depth, width, extra = int(forest.depth[frontier[-1]]), len(frontier), self.state.extra_tokens
        if depth >= self.max_depth:
            return False
        if depth > 0 and extra > self.options.prompt_tokens:
            return False
        seconds = self._levels.of(depth, width)
        margin = 0.0 if depth else GAIN_TO_GO_ON * self._costs.plain
        if seconds > 0:
            pays = not self._levels.scouting and self._level_pays(forest, frontier, depth, seconds + margin)
            if first:
                self._begins.note(pays)
            if not pays and not (self._deeper_looks if depth else self._looks).pay(seconds):
                return False
        return self._take_level(depth, frontier)

    def _take_level(self, depth: int, frontier: Ints) -> bool:
        self._levels.add(depth, len(frontier))
        if not self._levels.free:  # free levels are always wanted: nothing to learn
            self._expanded.append(frontier)
        return True

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """Records every candidate; expands those whose descendants can still be worth a draft row."""
        nodes = forest.append(candidates)
        if len(nodes) == 0:
            return nodes
        depth = int(forest.depth[nodes[0]])  # of all of them: they are one level
        usual = self._usual and depth == 1
        if usual and self._ends.holds():
            return nodes[:0]
        by_level = self._model.draft.by_level
        level = nodes
        if by_level and forest.planted:  # planted nodes of this level can be drafted on from like its others
            level = np.concatenate((forest.planted_below(self._expanded[-1]), nodes))
        able = level if depth < self._least_limit else self.within_limits(forest, level)
        if not by_level:  # every level has been paid for with the first: nothing to decide
            return self._expansion.likely(forest, able)
        # Planted nodes may be thought of differently now.
        older = forest.path[forest.batch : nodes[0]] if forest.planted else self._pool
        self._pool = np.concatenate((older, forest.path[nodes[0] :]))
        self._pool.sort()
        self._pool = self._pool[-self.options.max_nodes * self.state.batch :]
        self._scan(forest)
        if depth == 1 and self._scanned == self._now(forest):  # else it was not at a price, or of another worth
            self._insight.learn(self._worth)
        price = self._at_choice(self._costs.price)
        expanded = self._expansion.worth_a_row(forest, able, depth, price, self._row_price(price))
        if usual and len(able):
            self._ends.note(len(expanded) == 0)
        return expanded

    def select(self, forest: Forest) -> Ints:
        """The best n nodes of all requests together, n from the exact scan."""
        if self._rest.now:  # what the last step was predicted to take holds for this one
            return _NOBODY
        if len(self._trial.nodes):
            selected, self._choice = self._trial.nodes, self._costs.plain_choice()
        elif len(forest) == forest.batch:
            selected, self._choice = np.empty(0, np.int64), self._costs.plain_choice()
            self._selection.last_count = 0
        else:
            known = self._choice if self._scanned == self._now(forest) else None
            selected, self._choice = self._selection.of(forest, known, self._levels.count > 0)
        self.predict(forest, selected)
        return selected

    def observe(self, outcome: StepOutcome) -> None:
        """Updates the price of time, what is saved for looks, the growth per level and the costs."""
        if self._rest.now:
            self._rest.add(outcome.state.batch, outcome.tokens, bool(outcome.state.extra_tokens))
            return
        idle = not self._expanded and len(outcome.selected) == len(self._trial.nodes)
        self._rest.note(idle, beside=bool(outcome.state.extra_tokens), may_rest=not self._levels.free)
        plain, carried = self._costs.plain, self._carried(outcome.forest, outcome.selected)
        spent = self._costs.seconds_of(carried) + self._uneven_seconds
        one_look = max(plain, self._levels.of(0, self.state.batch))
        self._looks.save(spent, one_look)
        self._deeper_looks.save(spent, one_look)
        if self._levels.scouting and self._levels.count:
            self._looks.owe(outcome.seconds - spent, _WORST_LOOK * one_look)
        if outcome.state.extra_tokens == 0:
            self._trial.note(outcome.state.batch, outcome.state.batch + carried, spent, outcome.seconds)
            rate = outcome.tokens / spent
            self._usual_rate += (rate - self._usual_rate) * (_RATE_SHARE if self._usual_rate else 1.0)
            self._prices.now.update(outcome.state.batch, outcome.tokens, spent / plain, self._rest.quiet)
        self._levels.learn(outcome, self._uneven_seconds)
        if self._looked_up and not self._expanded and not self._levels.free and not outcome.state.extra_tokens:
            found = outcome.forest.planted > 0
            more = outcome.draft_seconds + (spent - plain + self._levels.beside(outcome) if found else 0.0)
            self._planting.observe(outcome.state.batch, outcome.tokens - outcome.state.batch - self.price * more)
        if self._expanded:
            self._growth.observe(outcome.forest, np.concatenate(self._expanded))
        super().observe(outcome)

    def expect(self, rates: Sequence[Sequence[float]]) -> None:
        """Begins with what is known of the drafter: [depths][ranks] of drafts accepted, given their parents."""
        self._growth.expect(rates)

    def learned(self) -> Mapping[str, Any]:
        """What the next level brings, what speculation achieves, and what the clock has taught."""
        own = {"growth": self._growth.to_json(), "price": self._prices.to_json()}
        return {**super().learned(), **own}

    def resume(self, learned: Mapping[str, Any]) -> None:
        """Begins with what an earlier engine's policy has `learned`."""
        super().resume(learned)
        self._growth.load_json(learned["growth"])
        self._prices.load_json(learned["price"])
        self._trial.resume()

    def _count_rested(self, passed: list[tuple[int, int, bool]]) -> None:
        """Adds up steps that were passed without a question: looks are saved for, and backlogs grow."""
        if not passed:
            return
        plain = self._costs.plain
        one_look = max(plain, self._levels.of(0, self.state.batch))
        self._looks.save(plain * len(passed), one_look)
        self._deeper_looks.save(plain * len(passed), one_look)
        for batch, tokens, beside in passed:
            self._levels.unread.update(batch, tokens, drafted=False, scouting=False, alone=not beside)
            if not beside:
                self._prices.plain.update(batch, tokens, 1.0, quiet=True)
        self._beginning.pass_by(len(passed))
        self._trial.pass_by(len(passed), plain)

    def _carried(self, forest: Forest, selected: Ints) -> int:
        """Nodes that the pass pays for: padding too, if the engine pads."""
        return self._selection.carried(forest, selected)

    def _scan(self, forest: Forest) -> None:
        """Notes what would be verified if drafting ended here."""
        self._scanned = (0, 0, 0)
        if len(self._pool) == 0:
            self._choice = self._costs.plain_choice()
        elif self.options.padded:
            self._choice = self._selection.scan_widths(forest)[1]
        elif self._costs.price is None:
            self._choice = self._costs.best_ratio(self._pool)
        else:
            self._choice, self._worth = self._costs.best(self._pool, self._costs.price)
            self._scanned = self._now(forest)

    def _now(self, forest: Forest) -> tuple[int, int, int]:
        """What a scan depends on: it is good for as long as none of it changes."""
        return len(forest) - forest.batch, self._levels.count, self._costs.changes

    def _level_pays(self, forest: Forest, frontier: Ints, depth: int, seconds: float) -> bool:
        """True if drafting on, for one level or several, is expected to be worth its time.

        Looks several levels ahead, because a block drafter pays for all levels with the first, and because a pass
        that jumps with its first node is only worth it for several.
        """
        costs, price, pool = self._costs, self._at_choice(self._costs.price), self._pool
        now = self._worth if self._scanned == self._now(forest) else costs.worth(pool, price)
        paths, most = forest.left(frontier), self.options.width * self.state.batch
        told = 0.0
        for ahead in range(min(_LOOK_AHEAD, self.max_depth - depth)):
            children = self._growth.gains(paths, depth + ahead)
            pool = np.concatenate((pool, children))
            pool.sort()
            worth = costs.worth(pool, price)
            if depth + ahead == 0 and forest.planted:
                told = self._insight.foresee(forest, worth)
            if worth + told - price * seconds > now:
                return True
            # Children bring less with every level: once they bring less than the thinnest level costs, it is over.
            above = np.maximum(children - self._row_price(price), 0.0)
            if np.add.reduce(above) <= price * self._levels.of(depth + 1, 1):
                return False
            paths = children if len(children) <= most else np.partition(children, -most)[-most:]
            seconds += self._levels.of(depth + ahead + 1, len(paths))
        return False

    def _row_price(self, price: float) -> float:
        """Tokens that a drafted node must bring to be worth verifying beside the present choice."""
        return _ROW_SHARE * price * self._costs.row_seconds(self._choice.count)
