"""The step loop: plan, draft, verify, walk, commit, learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from time import monotonic, perf_counter

import numpy as np
import torch

from smartree.drafters.base import Drafter
from smartree.engine.budget import BLOCK, RowBudget
from smartree.engine.drafting import Draft, draft_trees, require_lossless
from smartree.engine.learning import Lessons
from smartree.engine.logprobs import note_logprobs
from smartree.engine.prompt_share import PromptShare
from smartree.engine.request import Request
from smartree.engine.scheduler import Scheduler, StepPlan
from smartree.engine.stats import EngineStats
from smartree.engine.target_pass import TargetPass
from smartree.engine.tenancy import Tenancy
from smartree.engine.text import StopText
from smartree.engine.trace import StepTrace, trace_step
from smartree.errors import InputError
from smartree.models.load import LoadedModel
from smartree.models.runner import ModelRunner
from smartree.policies.base import Policy, StepOutcome, StepState
from smartree.policies.calibration import Calibration
from smartree.sampling_params import SamplingParams
from smartree.tree.packed import PackedTrees, pack
from smartree.verify.sampler import Sampler
from smartree.verify.shaper import Shaper
from smartree.verify.walk import Walk, walk

CALIBRATION_LAG = 8  # steps; what a step teaches moves little


class Engine:
    """Decodes requests together; they join and leave between steps."""

    def __init__(
        self,
        target: LoadedModel,
        drafter: Drafter | None,
        policy: Policy,
        *,
        max_batch: int = 16,
        window: int | None = None,
        prefill_tokens: int = 512,
        calibration: Calibration | None = None,
        cache_tokens: int | None = None,
        prefix_reuse: bool = True,
        clock: Callable[[], float] = monotonic,
        cuda_graphs: bool = False,
    ) -> None:
        """Args:
            target: the model whose output counts.
            drafter: None decodes plainly.
            policy: what sizes the trees.
            max_batch: most requests decoded together.
            window: longest prompt plus output; None takes the model's.
            prefill_tokens: most prompt tokens in one step.
            calibration: what is known of the drafter already; it goes on learning.
            cache_tokens: cache rows of all requests together; None takes `max_batch` windows.
            prefix_reuse: whether requests share the cached rows of equal beginnings.
            clock: what timeouts are measured with, in seconds.
            cuda_graphs: whether target passes are recorded as CUDA graphs.

        Raises:
            InputError: the policy and the drafter do not go together, or the cache is smaller than a block.
        """
        require_lossless(policy, drafter)
        self.target, self.drafter, self.policy = target, drafter, policy
        self.window = min(window or target.window, target.window)
        tapped = drafter.feature_layers if drafter is not None else ()
        self.runner = ModelRunner(target, max_batch, self.window, tapped, cuda_graphs)
        self.sampler = Sampler(target.vocab_size, target.device)
        self.shaper = Shaper(target.tokenizer, target.vocab_size, target.eos_ids, target.device)
        self.calibration = calibration or Calibration(lag=CALIBRATION_LAG)
        self._lessons = Lessons(drafter, self.calibration)
        # Texts are rounded up to blocks: without a limit of its own the cache has room for full windows all the same.
        rows = max_batch * (self.window + BLOCK) if cache_tokens is None else cache_tokens
        self.budget = RowBudget(rows)
        self.scheduler = Scheduler(max_batch, prefill_tokens, self.budget)
        self.share = PromptShare(getattr(policy, "cost", None), prefill_tokens)  # an own policy need have no costs
        self.tenancy = Tenancy(self.scheduler, self.runner, drafter, prefix_reuse, self.share)
        self.stats = EngineStats()
        self.traces: list[StepTrace] | None = None
        self._ids = count()
        self._closing_seconds = 0.0
        self._clock = clock
        self._stepping = False
        self._aborted: list[Request] = []

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return self.scheduler.unfinished

    @contextmanager
    def in_a_hurry(self) -> Iterator[None]:
        """For as long as nobody reads tokens as they come: prompts are read at once, whoever waits for a token."""
        limited, self.share.limited = self.share.limited, False
        try:
            yield
        finally:
            self.share.limited = limited

    def add(self, prompt: Sequence[int], params: SamplingParams, timeout: float | None = None) -> Request:
        """Queues a prompt.

        Args:
            prompt: token ids.
            params: how to sample and when to end.
            timeout: seconds from now after which the request ends with "timeout" and what it has; None waits.

        Raises:
            InputError: the prompt is empty, too long, or holds a token the model does not know; the parameters ask for
                what this model or installation cannot do; the cache is too small for prompt and output; the timeout is
                not positive.
        """
        tokens = [int(token) for token in prompt]
        self._check(tokens, params)
        self.budget.require(len(tokens), params.max_tokens, self.window)
        if timeout is not None and not timeout > 0:
            raise InputError(f"timeout is {timeout}; it must be above 0 seconds.")
        own = frozenset() if params.ignore_eos else self.target.eos_ids
        stop_ids = own | frozenset(params.stop_token_ids)
        request = Request(
            id=next(self._ids),
            tokens=tokens,
            prompt_length=len(tokens),
            params=params,
            seed=Request.seed_for(params),
            stop_ids=stop_ids,
            stop_text=(
                StopText(self.target.tokenizer, params.stop, params.include_stop_str_in_output)
                if params.stop and self.target.tokenizer
                else None
            ),
            shaping=self.shaper.shaping(params, tokens, stop_ids),
            deadline=None if timeout is None else self._clock() + timeout,
        )
        self.scheduler.add(request)
        return request

    def step(self) -> list[Request]:
        """Runs one step; returns the requests that got tokens or ended."""
        self._stepping = True
        try:
            return self._end_expired() + self._step()
        finally:
            self._stepping = False
            while self._aborted:
                self.abort(self._aborted.pop())

    def _end_expired(self) -> list[Request]:
        expired = self.scheduler.expired(self._clock())
        for request in expired:
            request.finish_reason = "timeout"
            self.tenancy.end(request)
        return expired

    def _step(self) -> list[Request]:
        begin = perf_counter()
        plan = self.tenancy.plan()
        if not plan.seated:
            return []
        self.runner.seat([request.id for request in plan.seated])
        state = self._state(plan)
        wanted = draft_trees(self.policy, self.drafter, self.calibration, state, plan.decoding)
        draft = self.tenancy.fit(plan, wanted)
        packed = pack(draft.forest, draft.selected)
        target_begin = perf_counter()
        logits = self._verify(plan, packed)
        walks = self._walk(plan, packed, logits)
        first_tokens = self._first_tokens(plan, logits, len(packed.nodes))
        target_seconds = perf_counter() - target_begin
        if self.traces is not None:
            self.traces.extend(trace_step(plan.decoding, draft, packed, walks, self.policy))
        self._hand_features_over(plan, packed, walks)
        self._lessons.step(plan.decoding, draft, packed, walks)
        progressed = self._commit(plan, draft, packed, walks) + self._join(plan, first_tokens)
        note_logprobs(plan, packed, walks, first_tokens, logits)
        # What follows is part of a step, too; the last one's share stands for this one's.
        seconds = perf_counter() - begin + self._closing_seconds
        end = perf_counter()
        if plan.decoding:
            tokens = sum(len(walked.tokens) for walked in walks)
            outcome = StepOutcome(
                state,
                draft.forest,
                draft.selected,
                tokens,
                seconds,
                target_seconds,
                draft.seconds,
                draft.level_seconds,
            )
            self.policy.observe(outcome)
        nodes = len(packed.nodes) - state.batch
        self.share.observe(state.batch, nodes, state.extra_tokens, state.context, seconds, target_seconds)
        predicted = float("nan") if plan.chunks or draft is not wanted else self.policy.predicted_seconds
        self.stats.read_tokens += state.extra_tokens
        self.stats.reused_tokens += plan.reused
        self.stats.preemptions += plan.preempted
        self.stats.add_step(
            requests=len(plan.decoding),
            rows=len(packed.nodes),
            levels=draft.levels,
            seconds=perf_counter() - begin,
            target_seconds=target_seconds,
            draft_seconds=draft.seconds,
            predicted_seconds=predicted,
        )
        self._closing_seconds = perf_counter() - end
        return progressed

    def abort(self, request: Request) -> None:
        """Ends a request wherever it is, after the step if one is running; one that has ended already is left alone."""
        if self._stepping:
            self._aborted.append(request)
        elif request.finish_reason is None and self.scheduler.leave(request):
            self.tenancy.release(request)

    def _check(self, tokens: Sequence[int], params: SamplingParams) -> None:
        if not tokens:
            raise InputError("The prompt is empty and the model has no start token; give at least one token.")
        if len(tokens) >= self.window:
            raise InputError(
                f"The prompt has {len(tokens)} tokens, but the window is {self.window}: shorten it to "
                f"{self.window - 1} or fewer."
            )
        unknown = next((token for token in tokens if not 0 <= token < self.target.vocab_size), None)
        if unknown is not None:
            raise InputError(f"Token id {unknown} is not in the vocabulary of {self.target.vocab_size} tokens.")
        if params.stop and self.target.tokenizer is None:
            raise InputError(f"Stop strings need a tokenizer, and {self.target.name!r} has none; use stop_token_ids.")
        if params.logprobs is not None and params.logprobs > self.target.vocab_size:
            raise InputError(f"logprobs is {params.logprobs}; the vocabulary has {self.target.vocab_size} tokens.")
        if params.n != 1:
            raise InputError(f"n is {params.n}, but a request is one output; `LLM.generate` makes n of them.")

    def _state(self, plan: StepPlan) -> StepState:
        room = [min(request.remaining, self.window - len(request.tokens)) - 1 for request in plan.decoding]
        rows = [self.budget.room(len(request.tokens), plan.free_blocks) for request in plan.decoding]
        lengths = [len(request.tokens) - 1 for request in plan.decoding]
        return StepState(
            batch=len(plan.decoding),
            context=sum(lengths) // max(len(lengths), 1),
            depth_limits=np.minimum(np.array(room, np.int64), np.array(rows, np.int64)),
            extra_tokens=sum(chunk.end - chunk.start for chunk in plan.chunks),
            generated=np.array([len(request.tokens) - request.prompt_length for request in plan.decoding], np.int64),
            unread=0 if self.drafter is None else self.drafter.unread(plan.decoding),
        )

    def _verify(self, plan: StepPlan, packed: PackedTrees) -> torch.Tensor:
        """One pass over all trees and prompt chunks."""
        target_pass = TargetPass.of(plan, packed, self.runner.seating)
        return self.runner.forward(target_pass.groups, target_pass.tokens, target_pass.keep, target_pass.logits)

    def _walk(self, plan: StepPlan, packed: PackedTrees, logits: torch.Tensor) -> list[Walk]:
        paths: list[list[int]] = [[] for _ in plan.decoding]

        best = self.runner.best
        if best is not None and all(request.takes_best for request in plan.decoding):
            # A walk asks level by level; the pass itself has looked at every row already.
            known = best.tolist()
            return walk(packed, lambda _, rows: [known[row] for row in rows])

        def choose(indices: Sequence[int], rows: Sequence[int]) -> list[int]:
            draws = [plan.decoding[index].draw(row, paths[index]) for index, row in zip(indices, rows, strict=True)]
            tokens = self.sampler.draw(logits, draws)
            for index, token in zip(indices, tokens, strict=True):
                plan.decoding[index].note_guide(paths[index])
                paths[index].append(token)
            return tokens

        return walk(packed, choose)

    def _first_tokens(self, plan: StepPlan, logits: torch.Tensor, row: int) -> list[int]:
        """The next token of every request whose text is complete; their logits begin at `row`."""
        done = [chunk.request for chunk in plan.chunks if chunk.last]
        best = self.runner.best
        if best is not None and all(request.takes_best for request in done):
            return best[row : row + len(done)].tolist()
        draws = [request.draw(row + place, ()) for place, request in enumerate(done)]
        tokens = self.sampler.draw(logits, draws) if draws else []
        for request in done:
            request.note_guide(())
        return tokens

    def _hand_features_over(self, plan: StepPlan, packed: PackedTrees, walks: Sequence[Walk]) -> None:
        """Gives the drafter the hidden states it reads: of every request's root and accepted nodes, and of prompts."""
        if self.drafter is None or self.runner.taps is None:
            return
        ids = [request.id for request in plan.decoding]
        chunks = [chunk.end - chunk.start for chunk in plan.chunks]
        behind, read = len(packed.nodes), sum(chunks)
        everyone = ids + [chunk.request.id for chunk in plan.chunks]
        states = self.runner.taps.all_rows()  # with padding behind them if the pass was a CUDA graph's
        if behind == len(ids):  # no tree: every row is a root or a prompt's
            known = states if states.shape[0] == behind + read else states[: behind + read]
            self.drafter.absorb(everyone, [1] * behind + chunks, known)
            return
        counts = [1 + len(walked.rows) for walked in walks] + chunks
        starts = packed.starts[:-1].tolist()
        accepted = [row for start, walked in zip(starts, walks, strict=True) for row in (start, *walked.rows)]
        self.drafter.absorb(everyone, counts, states, np.array([*accepted, *range(behind, behind + read)], np.int64))

    def _commit(self, plan: StepPlan, draft: Draft, packed: PackedTrees, walks: Sequence[Walk]) -> list[Request]:
        """Commits the accepted rows and appends the tokens."""
        drafted = np.bincount(draft.forest.request, minlength=draft.forest.batch).tolist()
        starts = packed.starts.tolist()
        parents = set(packed.parents.tolist())
        self._commit_rows(plan, starts[:-1], walks)
        for index, (request, walked) in enumerate(zip(plan.decoding, walks, strict=True)):
            taken = request.accept(walked.tokens, self.window)
            self.stats.tokens += taken
            last = walked.rows[-1] if walked.rows else starts[index]  # its children were put to the test
            verified_depth = min(len(walked.rows) + (last in parents), taken)
            accepted = min(len(walked.rows), taken)  # what lies beyond the end of a request does not count
            verified = starts[index + 1] - starts[index] - 1
            request.stats.add_step(drafted[index] - 1, verified_depth, verified, accepted, taken)
            self._leave_if_finished(request)
        return plan.decoding

    def _commit_rows(self, plan: StepPlan, starts: Sequence[int], walks: Sequence[Walk]) -> None:
        """Makes the accepted rows the committed end of each slot."""
        ids = [request.id for request in plan.decoding]
        rows = []
        for request_id, start, walked in zip(ids, starts, walks, strict=True):
            shift = self.runner.seating.cached[request_id] - start
            rows.append([row + shift for row in (start, *walked.rows)])
        self.runner.commit_all(ids, rows)

    def _join(self, plan: StepPlan, first_tokens: Sequence[int]) -> list[Request]:
        """Notes which prompt tokens are cached; requests with a complete prompt begin to decode."""
        for chunk in plan.chunks:
            self.runner.seating.cached[chunk.request.id] = chunk.end
        done = [chunk.request for chunk in plan.chunks if chunk.last]
        for request, token in zip(done, first_tokens, strict=True):
            self.scheduler.joined(request)
            self.stats.tokens += request.accept([token], self.window)
            self.stats.first_tokens += 1
            self._leave_if_finished(request)
        return done

    def _leave_if_finished(self, request: Request) -> None:
        if request.finish_reason is not None:
            self.tenancy.end(request)
