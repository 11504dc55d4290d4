"""Decodes the same prompts with several policies in turn, and compares speed and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smartree.engine.engine import Engine
    from smartree.engine.llm import LLM
    from smartree.engine.stats import EngineStats
    from smartree.sampling_params import SamplingParams

_WARM_UP_TOKENS = 4
_CONTEXT = 128  # about half of a demo prompt and its output


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A prompt, what kind of task it is, and its tokens."""

    id: str
    kind: str
    text: str
    tokens: list[int]


@dataclass(slots=True)
class Run:
    """What one policy did at one batch size.

    Attributes:
        policy: its name.
        batch: requests decoded together.
        engine: it keeps what the policy has learned.
        outputs: generated tokens by prompt id.
        seconds: wall time by prompt id, its share of its group's; prompts' own passes included.
    """

    policy: str
    batch: int
    engine: Engine
    outputs: dict[str, list[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def stats(self) -> EngineStats:
        """The engine's counts."""
        return self.engine.stats

    @property
    def verified_per_step(self) -> float:
        """Verified tokens (N of the design) of a mean decoding step."""
        return self.stats.verified_rows / max(self.stats.decode_steps, 1)

    def tokens_per_second(self, ids: Sequence[str] | None = None) -> float:
        """Of all prompts, or of some."""
        chosen = list(self.outputs) if ids is None else ids
        return sum(len(self.outputs[name]) for name in chosen) / sum(self.seconds[name] for name in chosen)


def compare(
    llm: LLM,
    prompts: Sequence[DemoPrompt],
    policies: Sequence[str],
    batch: int,
    params: SamplingParams,
    advance: Callable[[str, int], None],
) -> list[Run]:
    """Decodes all prompts with every policy, group by group, so that a slow moment of the machine hits all alike.

    Args:
        llm: the model.
        prompts: decoded `batch` at a time.
        policies: names; which one goes first changes with every group.
        batch: requests decoded together.
        params: for all of them.
        advance: called with (policy, prompts done) after each group.
    """
    runs = [Run(policy, batch, llm.make_engine(policy, max_batch=batch)) for policy in policies]
    for run in runs:
        _warm_up(llm, run, prompts[0], params)
    for number, group in enumerate(mixed_groups(prompts, batch)):
        for run in runs if number % 2 == 0 else reversed(runs):
            begin = perf_counter()
            outputs = llm.generate([prompt.tokens for prompt in group], params, engine=run.engine)
            seconds = perf_counter() - begin
            for prompt, output in zip(group, outputs, strict=True):
                run.outputs[prompt.id] = output.token_ids
                run.seconds[prompt.id] = seconds / len(group)
            advance(run.policy, len(group))
    return runs


def mixed_groups(prompts: Sequence[DemoPrompt], batch: int) -> list[list[DemoPrompt]]:
    """Groups of `batch` prompts, of different kinds as far as prompts of a kind stand together."""
    stride = -(-len(prompts) // batch)
    return [list(prompts[start::stride]) for start in range(stride)]


def _warm_up(llm: LLM, run: Run, prompt: DemoPrompt, params: SamplingParams) -> None:
    """The first passes allocate; they are not what is compared."""
    from smartree.engine.stats import EngineStats

    llm.generate(prompt.tokens, replace(params, max_tokens=_WARM_UP_TOKENS), engine=run.engine)
    run.engine.stats = EngineStats()


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs gave different tokens for a prompt.

    Attributes:
        id: the prompt's.
        index: of the first token that differs.
        gap: of the two tokens' logits in a plain pass; nan if one output just ends.
        near_tie: whether rounding can explain it.
    """

    id: str
    index: int
    gap: float
    near_tie: bool


def differences(llm: LLM, prompts: Sequence[DemoPrompt], run: Run, plain: Run) -> list[Difference]:
    """The prompts whose tokens are not those of plain decoding, each with how close the decision was."""
    from smartree.engine.margin import first_difference_margin, near_tie

    found = []
    for prompt in prompts:
        margin = first_difference_margin(llm, prompt.tokens, plain.outputs[prompt.id], run.outputs[prompt.id])
        if margin is not None:
            found.append(Difference(prompt.id, *margin, near_tie(llm, margin[1])))
    return found


def identical_in_float32(llm: LLM, prompts: Sequence[DemoPrompt], params: SamplingParams) -> int:
    """How many prompts get the same tokens from policy smart as from none, in float32, where rounding decides nothing.

    The trees are those of `llm`'s costs: what is compared is the output, not the speed.
    """
    from smartree.engine.llm import LLM
    from smartree.policies.factory import make_policy

    config = llm.config
    precise = LLM(
        config.model,
        drafter=config.drafter,
        policy="none",
        dtype="float32",
        device=config.device,
        max_batch=min(len(prompts), config.max_batch),
    )
    tokens = [prompt.tokens for prompt in prompts]
    plain = precise.generate(tokens, params)
    smart = precise.generate(
        tokens, params, engine=precise.make_engine(make_policy("smart", llm.knowledge.cost_model()))
    )
    return sum(a.token_ids == b.token_ids for a, b in zip(plain, smart, strict=True))


def slowdown(llm: LLM, plain: Run) -> float:
    """Seconds of plain decoding's passes over the profile's: far above 1, the machine does something else too."""
    from smartree.cost.table import CostTable  # imports numpy: only when needed

    assert llm.profile is not None  # policy smart has one
    stats = plain.stats
    usual = CostTable(llm.profile.verify).autoregressive(plain.batch, _CONTEXT)
    return stats.compared_seconds / max(stats.compared_steps, 1) / usual


def run_row(run: Run, plain: Run, changed: Sequence[Difference], prompts: Sequence[DemoPrompt]) -> dict[str, Any]:
    """A run as a JSON row, in the names of `bench`."""
    speed = run.tokens_per_second()
    return {
        "batch": run.batch,
        "policy": run.policy,
        "prompts": len(run.outputs),
        "tokens": sum(len(tokens) for tokens in run.outputs.values()),
        "seconds": sum(run.seconds.values()),
        "tokens_per_second": speed,
        "speedup": speed / plain.tokens_per_second(),
        "tau": run.stats.tau,
        "verified_tokens_per_step": run.verified_per_step,
        "identical_to_none": len(run.outputs) - len(changed),
        "differences": [
            {"prompt": d.id, "token": d.index, "logit_gap": d.gap, "near_tie": d.near_tie} for d in changed
        ],
        "speedup_by_kind": speedup_by_kind(run, plain, prompts) if run.batch == 1 else {},
    }


def speedup_by_kind(run: Run, plain: Run, prompts: Sequence[DemoPrompt]) -> dict[str, float]:
    """SR for each kind of prompt; of batch 1, where every prompt has its own time."""
    kinds: dict[str, list[str]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.kind, []).append(prompt.id)
    return {kind: run.tokens_per_second(ids) / plain.tokens_per_second(ids) for kind, ids in kinds.items()}
