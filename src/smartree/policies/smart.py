"""The default policy: the exact joint optimum on the measured cost table, at the price of time (design 3.2)."""

from __future__ import annotations

import numpy as np

from smartree.cost.model import CostModel
from smartree.policies.base import BasePolicy, StepOutcome, StepState
from smartree.policies.growth import Growth, best_width
from smartree.policies.level_costs import LevelCosts
from smartree.policies.price import Price, Savings
from smartree.policies.scan import Choice, by_width, falling, likeliest, likeliest_per_group, scan, scan_capped
from smartree.policies.smart_options import SmartOptions
from smartree.tree.forest import Candidates, Floats, Forest, Ints

_NOTHING = np.empty(0)
_LOOK_AHEAD = 8  # levels; gains fall with every one
_STEPS_TO_REPAY = 20  # within which speculation has to earn what reading a backlog costs
_LEAST_GAIN = 0.02  # of a plain step: where speculation hardly pays, beginning and ending it costs more than it brings
_PLANTED_GAIN = 0.05  # of a plain step's tokens
_RATE_SHARE = 0.1  # of a step in the running mean of tokens per second
_ROWS_BESIDE = 16  # over which the price of a row beside a prompt is taken
_GAIN_BESIDE = 0.1  # of a plain step, beside a prompt: such passes are modelled, not learned from
_STEPS_BETWEEN_QUESTIONS = 4  # whether to begin speculating; what the answer depends on changes slowly
_DEEPER_SHARE = 0.2  # of the explore_share, for one level more than seems to pay
_ROWS_AHEAD = np.array([1, 8, 32, 64, 128, 256])  # how far the price of one more row looks past the present choice
_ROW_SHARE = 0.25  # of that price counts when a draft level is sized: a heuristic, see docs/theory.md, 4


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
        self._running_price = Price()
        self._growth = Growth()
        self._looks = Savings(self.options.explore_share)
        self._deeper_looks = Savings(_DEEPER_SHARE * self.options.explore_share)
        self._plain_seconds = 1.0
        self._usual_rate = 0.0  # tokens per second of steps without prompts
        self._choice = Choice(0, 0.0, 1.0)
        self._pool = self._verify = np.empty(0)
        self._expanded: list[Ints] = []
        self._last_count = 0
        self._waiting = 0

    @property
    def price(self) -> float:
        """Tokens per second that time is worth now: the running price, else the ratio of the step as chosen so far."""
        known = self._known_price()
        return known if known is not None else self._choice.tokens / self._choice.seconds

    def _known_price(self) -> float | None:
        if not self.options.use_price:
            return None
        known = self._running_price.at(self.state.batch)
        if self.state.extra_tokens:
            # Few decode because others read their prompts: time is worth what it brings when these have joined. And the
            # step's own ratio would be that of reading prompts.
            own = float(self.state.batch) if known is None else known
            return max(own / self._plain_seconds, self._usual_rate)
        return None if known is None else known / self._plain_seconds

    def begin(self, state: StepState, forest: Forest) -> Ints:
        """Starts a step from plain decoding: no node, nothing drafted."""
        frontier = super().begin(state, forest)
        self._levels.begin(state.batch)
        self._expanded = []
        self._pool = np.sort(forest.path[forest.batch :]) if forest.planted else _NOTHING
        self._verify = _NOTHING
        self._plain_seconds = self._model.autoregressive(state.batch, state.context) + self._model.overhead
        self._choice = self._scan_pool(forest) if forest.planted else self._plain()
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
        passes = self._model.verify(state.batch, np.array([rows, rows + _ROWS_BESIDE]), state.context)
        return self.price * float(passes[1] - passes[0]) / _ROWS_BESIDE < float(self._growth.at(0)[0])

    def _beginners(self, forest: Forest, roots: Ints) -> Ints:
        """Roots to draft for after steps without drafts: all if that will repay reading the backlog, else scouts or
        none.
        """
        if self.state.extra_tokens > self.options.prompt_tokens:
            return roots[:0]
        batch, levels = self.state.batch, self._levels
        self._waiting -= 1
        if self._waiting <= 0:
            self._waiting = _STEPS_BETWEEN_QUESTIONS
            reading = levels.reading(levels.unread.rows) - levels.reading(levels.unread.usual(batch))
            # In as many steps as the backlog took to grow, so that a long one is no dearer a step than a short one.
            steps = max(_STEPS_TO_REPAY, levels.unread.rows / max(batch, 1))
            margin = _LEAST_GAIN * self._plain_seconds
            if self._level_pays(forest, roots, 0, levels.of(0, len(roots)) + reading / steps + margin):
                return roots
        levels.scouting = True
        return roots[: levels.unread.scouts(batch)] if self._looks.seconds >= levels.of(0, 1) else roots[:0]

    def wants_level(self, forest: Forest, frontier: Ints) -> bool:
        """True if the level pays, costs nothing, or is a look that the exploration budget covers."""
        if not super().wants_level(forest, frontier):
            return False
        depth = int(forest.depth[frontier[-1]])
        if depth > 0 and self.state.extra_tokens > self.options.prompt_tokens:
            return False
        seconds = self._levels.of(depth, len(frontier))
        savings = self._deeper_looks if depth else self._looks
        margin = 0.0 if depth else _GAIN_BESIDE if self.state.extra_tokens else _LEAST_GAIN
        wanted = seconds + margin * self._plain_seconds
        pays = seconds == 0 or (not self._levels.scouting and self._level_pays(forest, frontier, depth, wanted))
        if not pays and not savings.pay(seconds):
            return False
        self._levels.add(depth, len(frontier))
        if not self._levels.free:  # free levels are always wanted: nothing to learn
            self._expanded.append(frontier)
        return True

    def grow(self, forest: Forest, candidates: Candidates) -> Ints:
        """Records every candidate; expands those whose descendants can still be worth a draft row."""
        nodes = forest.append(candidates)
        if self._model.draft.by_level:  # else every level has been paid for with the first: nothing to decide
            most = self.options.max_nodes * self.state.batch
            self._pool = np.sort(np.concatenate([self._pool, forest.path[nodes]]))[-most:]
            self._choice = self._scan_pool(forest)
        return self._worth_a_row(forest, self.within_limits(forest, nodes))

    def select(self, forest: Forest) -> Ints:
        """The best n nodes of all requests together, n from the exact scan."""
        if len(forest) == forest.batch:
            return self._nothing(forest)
        uneven_costs = self.state.batch > 1 and not self._model.padding.free
        if self.options.padded or uneven_costs:
            order, self._choice = self._scan_widths(forest) if self.options.padded else self._scan_uneven(forest)
            count = self._choice.count or self._look(forest, order)
            selected = order[:count]
        else:
            nodes = self._within_cap(forest)
            paths = forest.path[nodes]
            ranked, seconds = np.sort(paths)[::-1], self._step_seconds(len(nodes))
            choice = self._steady(scan(ranked, seconds, self.state.batch, self._known_price()), ranked, seconds)
            self._choice = self._worth_having(choice) if forest.planted and not self._levels.count else choice
            count = self._choice.count or self._look(forest, nodes[likeliest(paths, self.options.explore_nodes)])
            selected = nodes[likeliest(paths, count)]
        self._last_count = count
        self.predict(forest, selected)
        return selected

    def _worth_having(self, choice: Choice) -> Choice:
        """The choice if it brings a few percent more than plain decoding, else that.

        Of many nodes that were found for nothing the best are chosen, and they are those that were thought too well of.
        """
        plain = self._plain()
        price = self._known_price() or choice.tokens / choice.seconds
        more = choice.tokens - plain.tokens - price * (choice.seconds - plain.seconds)
        return choice if more > _PLANTED_GAIN * plain.tokens else plain

    def _nothing(self, forest: Forest) -> Ints:
        """Selects nothing, as nothing was drafted."""
        nodes = np.empty(0, np.int64)
        self._last_count = 0
        self._choice = self._plain()
        self.predict(forest, nodes)
        return nodes

    def _plain(self) -> Choice:
        """The step as it is without a node, what has been drafted included."""
        return Choice(0, float(self.state.batch), self._seconds_of(0))

    def _seconds_of(self, nodes: int) -> float:
        """Modelled seconds of this step with so many nodes verified, drafting included."""
        if nodes == 0 and not self.state.extra_tokens:  # most steps where speculation does not pay
            return self._plain_seconds + self._levels.seconds
        return float(self._step_seconds(nodes)[-1])

    def observe(self, outcome: StepOutcome) -> None:
        """Updates the price of time, what is saved for looks, the growth per level and the costs."""
        spent = self._seconds_of(self._carried(outcome.forest, outcome.selected)) + self._uneven_seconds
        plain = self._plain_seconds
        one_look = max(plain, self._levels.of(0, self.state.batch))
        self._looks.save(spent, one_look)
        self._deeper_looks.save(spent, one_look)
        if outcome.state.extra_tokens == 0:
            rate = outcome.tokens / spent
            self._usual_rate += (rate - self._usual_rate) * (_RATE_SHARE if self._usual_rate else 1.0)
            self._running_price.update(outcome.state.batch, outcome.tokens, spent / plain)
        self._levels.learn(outcome, self._uneven_seconds)
        if self._expanded:
            self._growth.observe(outcome.forest, np.concatenate(self._expanded))
        super().observe(outcome)

    def _passes(self, nodes: int) -> Floats:
        """[nodes + 1] modelled seconds of this step's pass with 0, 1, ... `nodes` nodes.

        Beside prompts a node costs at least what it does without them: the pass is past its bend, and attention over
        a request's own context is no cheaper than elsewhere.
        """
        if len(self._verify) <= nodes:
            state, size = self.state, max(512, 2 * nodes)
            rows = np.arange(size) + state.batch
            self._verify = self._model.verify(state.batch, rows, state.context)
            if state.extra_tokens:
                beside = self._model.verify(state.batch, rows + state.extra_tokens, state.context)
                rise = np.maximum(np.diff(beside), np.diff(self._verify))
                self._verify = beside[0] + np.concatenate([[0.0], np.cumsum(rise)])
        return self._verify[: nodes + 1]

    def _step_seconds(self, nodes: int) -> Floats:
        """[nodes + 1] modelled seconds of this step with 0, 1, ... `nodes` nodes verified, drafting included."""
        return self._passes(nodes) + (self._model.overhead + self._levels.seconds)

    def _carried(self, forest: Forest, selected: Ints) -> int:
        """Nodes that the pass pays for: padding too, if the engine pads."""
        if not self.options.padded:
            return len(selected)
        widths = np.bincount(forest.request[selected], minlength=1)
        return self.state.batch * int(widths.max())

    def _level_pays(self, forest: Forest, frontier: Ints, depth: int, seconds: float) -> bool:
        """True if drafting on, for one level or several, is expected to be worth its time.

        Looks several levels ahead, because a block drafter pays for all levels with the first, and because a pass
        that jumps with its first node is only worth it for several.
        """
        price, row_price, pool = self.price, self._row_price(), self._pool
        now = self._worth(pool, price)
        paths, most = forest.left(frontier), self.options.width * self.state.batch
        thinnest = price * self._levels.of(depth + 1, 1)
        for ahead in range(min(_LOOK_AHEAD, self.max_depth - depth)):
            children = self._growth.gains(paths, depth + ahead)
            pool = np.sort(np.concatenate([pool, children]))
            if self._worth(pool, price) - price * seconds > now:
                return True
            # Children bring less with every level: once they bring less than the thinnest level costs, it is over.
            if np.maximum(children - row_price, 0.0).sum() <= thinnest:
                return False
            paths = children if len(children) <= most else np.partition(children, -most)[-most:]
            seconds += self._levels.of(depth + ahead + 1, len(paths))
        return False

    def _worth(self, pool: Floats, price: float) -> float:
        """Expected tokens less the price of the pass, at the best number of nodes of a pool (rising)."""
        passes = self._passes(len(pool))
        best = float(np.max(np.cumsum(pool[::-1]) - price * passes[1:], initial=-np.inf))
        return max(best, -price * float(passes[0]))

    def _row_price(self) -> float:
        """Tokens that a drafted node must bring to be worth verifying beside the present choice."""
        count = self._choice.count
        passes = self._passes(count + int(_ROWS_AHEAD[-1]))
        # Over several distances: on a staircase the next row may be dear and the fifty after it free.
        slopes = (passes[count + _ROWS_AHEAD] - passes[count]) / _ROWS_AHEAD
        return _ROW_SHARE * self.price * float(slopes.min())

    def _scan_pool(self, forest: Forest) -> Choice:
        """What would be verified if drafting ended here."""
        if self.options.padded:
            return self._scan_widths(forest)[1]
        return scan(self._pool[::-1], self._step_seconds(len(self._pool)), self.state.batch, self._known_price())

    def _within_cap(self, forest: Forest) -> Ints:
        """Nodes below the roots, without those that are beyond `max_nodes` of their request."""
        nodes, batch = np.arange(forest.batch, len(forest)), forest.batch
        requests, most = forest.request[batch:], self.options.max_nodes
        if len(nodes) <= most or int(np.bincount(requests).max()) <= most:
            return nodes
        return np.sort(nodes[likeliest_per_group(forest.path[batch:], requests, batch, most)])

    def _scan_widths(self, forest: Forest) -> tuple[Ints, Choice]:
        """The best width, every request padded to it: nodes by width, and how many of them."""
        batch = self.state.batch
        nodes = self._within_cap(forest)
        order = nodes[falling(forest.path[nodes])]
        places, gains, counts = by_width(forest.request[order], forest.path[order], batch)
        seconds = self._step_seconds(batch * len(gains))[::batch]
        choice = scan(gains, seconds, batch, self._known_price())
        return order[places], Choice(int(counts[choice.count]), choice.tokens, choice.seconds)

    def _scan_uneven(self, forest: Forest) -> tuple[Ints, Choice]:
        """The best number of nodes and the most for one request, where attention pads: nodes, and how many of them."""
        batch, context = self.state.batch, self.state.context
        nodes = self._within_cap(forest)
        price, slopes = self._known_price(), np.diff(self._passes(len(nodes)))
        if price is not None and len(nodes):
            # What is not even worth its row beside padding that it saves is in no choice: most of what was drafted.
            saved = self._model.padding.of(1, context) - self._model.padding.seconds
            nodes = nodes[forest.path[nodes] > price * max(float(slopes.min()) - float(saved), 0.0)]
        order = nodes[falling(forest.path[nodes])]

        def seconds(widths: Ints) -> Floats:
            rows = np.arange(len(widths)) + batch
            return self._step_seconds(len(widths) - 1) + self._model.unevenness(batch, rows, widths + 1, context)

        kept, choice = scan_capped(forest.request[order], forest.path[order], seconds, batch, price)
        return order[kept], choice

    def _steady(self, choice: Choice, paths: Floats, seconds: Floats) -> Choice:
        """The last size again if the best one is hardly better."""
        kept = min(self._last_count, len(paths))
        if not self.options.hysteresis or kept == choice.count:
            return choice
        price = self._known_price() or choice.tokens / choice.seconds
        tokens = self.state.batch + float(paths[:kept].sum())
        better = choice.tokens - tokens - price * (choice.seconds - float(seconds[kept]))
        if better > self.options.hysteresis * choice.tokens:
            return choice
        return Choice(kept, tokens, float(seconds[kept]))

    def _worth_a_row(self, forest: Forest, nodes: Ints) -> Ints:
        """The nodes to expand, in rising order: at most `width` of each request, as many as pay for their rows."""
        paths, batch, width = forest.path[nodes], self.state.batch, self.options.width
        if not self._model.draft.by_level:
            nodes = nodes[paths >= self.options.least_path]
            if len(nodes) <= width:
                return nodes
            return np.sort(nodes[likeliest_per_group(forest.path[nodes], forest.request[nodes], batch, width)])
        if len(nodes) == 0:
            return nodes
        rates, row_price = self._growth.at(int(forest.depth[nodes[0]])), self._row_price()
        thinnest, deeper = self._levels.of(1, 1), self._deeper_looks.seconds
        brought = np.maximum(np.multiply.outer(paths, rates) - row_price, 0.0).sum()
        if brought <= self.price * thinnest and deeper < thinnest:
            return nodes[:0]
        able = np.flatnonzero(paths * rates.max() > row_price)  # no other has a child that is worth its row
        able = able[likeliest_per_group(paths[able], forest.request[nodes[able]], batch, width)]
        modelled = self._model.refinement.scale * self._model.draft.level_seconds(batch, np.arange(1, len(able) + 1))
        seconds = self._model.drafting.levels(modelled)
        wide = best_width(paths[able], rates, row_price, self.price * seconds)
        if wide == 0 and deeper >= thinnest:
            return nodes[[int(np.argmax(paths))]]  # enough to see whether the level below is worth more by now
        return np.sort(nodes[able[:wide]])

    def _look(self, forest: Forest, nodes: Ints) -> int:
        """How many of `nodes`, the best first, to verify although they do not pay, out of what is saved for looks."""
        most = min(len(nodes), self.options.explore_nodes)
        if most == 0 or self._looks.seconds <= 0:
            return 0
        fronts = [nodes[:count] for count in range(most + 1)]
        carried = [self._carried(forest, front) for front in fronts]
        passes = self._passes(max(carried))
        extra = passes[carried] - passes[0] + [self._unevenness(forest, front) for front in fronts]
        count = int(np.flatnonzero(extra <= self._looks.seconds)[-1])
        self._looks.pay(float(extra[count]))
        return count
