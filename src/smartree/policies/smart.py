"""The default policy: the exact joint optimum on the measured cost table, at the price of time (design 3.2)."""

from __future__ import annotations

import numpy as np

from smartree.cost.model import CostModel
from smartree.policies.base import BasePolicy, StepOutcome, StepState
from smartree.policies.growth import Growth, above_price, best_width
from smartree.policies.level_costs import LevelCosts
from smartree.policies.price import Price, Savings
from smartree.policies.scan import Choice, falling, likeliest_per_group, places_in_group
from smartree.policies.selection import Selection
from smartree.policies.smart_options import SmartOptions
from smartree.policies.step_costs import StepCosts
from smartree.tree.forest import Candidates, Floats, Forest, Ints

_NOTHING = np.empty(0)
_LOOK_AHEAD = 8  # levels; gains fall with every one
_STEPS_TO_REPAY = 20  # within which speculation has to earn what reading a backlog costs
_LEAST_GAIN = 0.02  # of a plain step: where speculation hardly pays, beginning and ending it costs more than it brings
_RATE_SHARE = 0.1  # of a step in the running mean of tokens per second
_ROWS_BESIDE = 16  # over which the price of a row beside a prompt is taken
_GAIN_BESIDE = 0.1  # of a plain step, beside a prompt: such passes are modelled, not learned from
_STEPS_BETWEEN_QUESTIONS = 4  # whether to begin speculating; what the answer depends on changes slowly
_QUIET_AT_FIRST = 8  # steps without a node, all of which are learned from
_QUIET_LATER = 4  # of which one is
_WORST_LOOK = 4  # times what a look should take: more than that was a slow moment of the machine
_DEEPER_SHARE = 0.2  # of the explore_share, for one level more than seems to pay
_ROW_SHARE = 0.25  # of the price of a row counts when a draft level is sized: a heuristic, see docs/theory.md, 4


class SmartPolicy(BasePolicy):
    """Drafts while a level pays, then verifies the best n nodes of all requests together.

    What has been drafted is paid for, so the only question while drafting is whether the next level's expected
    tokens (learned per depth) are worth its draft time and the verify time they would take. "No speculation" is n = 0
    of the scan. When it wins, `explore_share` of the time is saved up and spent on looks at speculation. A fifth as
    much is saved for looks at one level more than seems to pay: without them, a depth that was once bad stays unseen.
    """

    name = "smart"
    takes_planted = True

    def __init__(self, cost: CostModel, options: SmartOptions | None = None) -> None:
        self.options = options or SmartOptions()
        super().__init__(cost, self.options.max_depth)
        self._model = cost
        self._levels = LevelCosts(cost)
        self._costs = StepCosts(cost, self._levels)
        self._running_price = Price()
        self._growth = Growth()
        self._looks = Savings(self.options.explore_share)
        self._deeper_looks = Savings(_DEEPER_SHARE * self.options.explore_share)
        self._selection = Selection(cost, self.options, self._costs, self._looks)
        self._usual_rate = 0.0  # tokens per second of steps without prompts
        self._choice = Choice(0, 0.0, 1.0)
        self._pool = _NOTHING  # path probabilities of all nodes so far, rising
        self._worth = 0.0  # of the pool at the known price, by the last scan
        self._scanned = (0, 0, 0)  # of the last scan: nodes, levels, changes of costs
        self._expanded: list[Ints] = []
        self._waiting = 0
        self._quiet = 0  # steps since the last one with a level or a node

    @property
    def price(self) -> float:
        """Tokens per second that time is worth now: the running price, else the ratio of the step as chosen so far."""
        return self._at_choice(self._known_price())

    def _at_choice(self, known: float | None) -> float:
        return known if known is not None else self._choice.tokens / self._choice.seconds

    def _known_price(self) -> float | None:
        if not self.options.use_price:
            return None
        known, plain = self._running_price.at(self.state.batch), self._costs.plain
        if self.state.extra_tokens:
            # Few decode because others read their prompts: time is worth what it brings when these have joined. And the
            # step's own ratio would be that of reading prompts.
            own = float(self.state.batch) if known is None else known
            return max(own / plain, self._usual_rate)
        return None if known is None else known / plain

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """Starts a step from plain decoding: no node, nothing drafted."""
        frontier = super().begin(state, forest)
        self._levels.begin(state.batch)
        self._costs.begin(state)
        self._costs.price = self._known_price()
        self._expanded = []
        self._pool = np.sort(forest.path[forest.batch :]) if forest.planted else _NOTHING
        self._scan(forest)
        if not self._model.draft.by_level:
            return frontier
        if state.extra_tokens and not self._rows_pay_beside():
            return frontier[:0]
        return self._beginners(forest, frontier) if self._levels.unread.is_long(state.batch) else frontier

    def _rows_pay_beside(self) -> bool:
        """False if beside this step's prompt tokens not even the likeliest child of a root is worth its row.

        Or if nobody knows yet what time is worth.
        """
        if self.options.use_price and not self._usual_rate:
            return False
        state, rows = self.state, self.state.batch + self.state.extra_tokens
        fewer, more = (self._model.pass_seconds(state.batch, rows + few, state.context) for few in (0, _ROWS_BESIDE))
        return self._at_choice(self._costs.price) * (more - fewer) / _ROWS_BESIDE < float(self._growth.at(0)[0])

    def _beginners(self, forest: Forest, roots: Ints) -> Ints:
        """Roots to draft for after steps without drafts: all if that will repay reading the backlog, else scouts or
        none.
        """
        if len(roots) == 0 or self.state.extra_tokens > self.options.prompt_tokens:
            return roots[:0]
        state, batch, levels = self.state, self.state.batch, self._levels
        self._waiting -= 1
        if self._waiting <= 0:
            self._waiting = _STEPS_BETWEEN_QUESTIONS
            rows = max(levels.unread.rows, state.unread)  # prompts are not counted by those who see steps only
            reading = levels.reading(rows) - levels.reading(levels.unread.usual(batch))
            steps = float(_STEPS_TO_REPAY)
            if self._growth.known:
                # In as many steps as the backlog took to grow, so that a long one is no dearer a step than a short one.
                steps = max(steps, rows / max(batch, 1))
            margin = _LEAST_GAIN * self._costs.plain
            if self._level_pays(forest, roots, 0, levels.of(0, len(roots)) + reading / steps + margin):
                return roots
        levels.scouting = True
        return roots[: levels.unread.scouts(batch)] if self._looks.seconds >= levels.of(0, 1) else roots[:0]

    def wants_level(self, forest: Forest, frontier: Ints) -> bool:
        """True if the level pays, costs nothing, or is a look that the exploration budget covers."""
        if len(frontier) == 0:
            return False
        depth, width, extra = int(forest.depth[frontier[-1]]), len(frontier), self.state.extra_tokens
        if depth >= self.max_depth:
            return False
        if depth > 0 and extra > self.options.prompt_tokens:
            return False
        seconds = self._levels.of(depth, width)
        margin = 0.0 if depth else (_GAIN_BESIDE if extra else _LEAST_GAIN) * self._costs.plain
        if seconds > 0:
            pays = not self._levels.scouting and self._level_pays(forest, frontier, depth, seconds + margin)
            if not pays and not (self._deeper_looks if depth else self._looks).pay(seconds):
                return False
        self._levels.add(depth, width)
        if not self._levels.free:  # free levels are always wanted: nothing to learn
            self._expanded.append(frontier)
        return True

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """Records every candidate; expands those whose descendants can still be worth a draft row."""
        nodes = forest.append(candidates)
        if len(nodes) == 0:
            return nodes
        depth = int(forest.depth[nodes[0]])  # of all of them: they are one level
        able = nodes if depth < self._least_limit else self.within_limits(forest, nodes)
        if not self._model.draft.by_level:  # every level has been paid for with the first: nothing to decide
            return self._likely(forest, able)
        self._pool = np.concatenate((self._pool, forest.path[nodes[0] :]))
        self._pool.sort()
        self._pool = self._pool[-self.options.max_nodes * self.state.batch :]
        self._scan(forest)
        return self._worth_a_row(forest, able, depth) if len(able) else able

    def select(self, forest: Forest) -> Ints:
        """The best n nodes of all requests together, n from the exact scan."""
        if len(forest) == forest.batch:
            selected, self._choice = np.empty(0, np.int64), self._costs.plain_choice()
            self._selection.last_count = 0
        else:
            known = self._choice if self._scanned == self._now(forest) else None
            selected, self._choice = self._selection.of(forest, known, self._levels.count > 0)
        self.predict(forest, selected)
        return selected

    def observe(self, outcome: StepOutcome) -> None:
        """Updates the price of time, what is saved for looks, the growth per level and the costs."""
        idle = not self._expanded and len(outcome.forest) == outcome.state.batch
        self._quiet = self._quiet + 1 if idle else 0
        if self._quiet > _QUIET_AT_FIRST and self._quiet % _QUIET_LATER:
            self._pass_quietly(outcome)
            return
        plain, carried = self._costs.plain, self._carried(outcome.forest, outcome.selected)
        spent = self._costs.seconds_of(carried) + self._uneven_seconds
        one_look = max(plain, self._levels.of(0, self.state.batch))
        self._looks.save(spent, one_look)
        self._deeper_looks.save(spent, one_look)
        if self._levels.scouting and self._levels.count:
            self._looks.owe(outcome.seconds - spent, _WORST_LOOK * one_look)
        if outcome.state.extra_tokens == 0:
            rate = outcome.tokens / spent
            self._usual_rate += (rate - self._usual_rate) * (_RATE_SHARE if self._usual_rate else 1.0)
            self._running_price.update(outcome.state.batch, outcome.tokens, spent / plain)
        self._levels.learn(outcome, self._uneven_seconds)
        if self._expanded:
            self._growth.observe(outcome.forest, np.concatenate(self._expanded))
        super().observe(outcome)

    def _pass_quietly(self, outcome: StepOutcome) -> None:
        """A step like those before it, without a node: only what adds up is noted, as learning takes time too."""
        plain = self._costs.plain
        one_look = max(plain, self._levels.of(0, self.state.batch))
        self._looks.save(plain, one_look)
        self._deeper_looks.save(plain, one_look)
        self._levels.unread.update(outcome.state.batch, outcome.tokens, drafted=False, scouting=False)

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
        for ahead in range(min(_LOOK_AHEAD, self.max_depth - depth)):
            children = self._growth.gains(paths, depth + ahead)
            pool = np.concatenate((pool, children))
            pool.sort()
            if costs.worth(pool, price) - price * seconds > now:
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

    def _likely(self, forest: Forest, nodes: Ints) -> Ints:
        """The nodes to expand in a level that costs nothing, in rising order: at most `width` of each request."""
        nodes, width = nodes[forest.path[nodes] >= self.options.least_path], self.options.width
        if len(nodes) <= width:
            return nodes
        return np.sort(nodes[likeliest_per_group(forest.path[nodes], forest.request[nodes], forest.batch, width)])

    def _worth_a_row(self, forest: Forest, nodes: Ints, depth: int) -> Ints:
        """The nodes to expand, in rising order: at most `width` of each request, as many as pay for their rows.

        Args:
            forest: where they are.
            nodes: at least one, in rising order.
            depth: of all of them.
        """
        price = self._at_choice(self._costs.price)
        rates, highest, row_price = self._growth.at(depth), self._growth.highest(depth), self._row_price(price)
        thinnest, deeper = self._levels.of(1, 1), self._deeper_looks.seconds
        order = falling(forest.path[nodes])
        ranked = forest.path[nodes[order]]
        able = int(np.count_nonzero(ranked * highest > row_price))  # no other has a child that is worth its row
        brought = above_price(ranked[:able], rates, row_price)
        if np.add.reduce(brought) <= price * thinnest and deeper < thinnest:
            return nodes[:0]
        places, brought = self._within_width(forest, nodes, order[:able], brought)
        wide = best_width(brought, price * self._levels.by_width(len(places)))
        if wide == 0 and deeper >= thinnest:
            return nodes[order[:1]]  # enough to see whether the level below is worth more by now
        expanded = nodes[places[:wide]]
        expanded.sort()
        return expanded

    def _within_width(self, forest: Forest, nodes: Ints, places: Ints, brought: Floats) -> tuple[Ints, Floats]:
        """Of `places` among the nodes, and of what these bring, the first `width` of each request."""
        width = self.options.width
        if len(places) <= width:
            return places, brought
        if forest.batch == 1:
            return places[:width], brought[:width]
        kept = places_in_group(forest.request[nodes[places]], forest.batch) < width
        return places[kept], brought[kept]
