"""The parts of the device check. Each takes the setup and a deadline, and gives rows as it gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from device.drafter import AssumedDrafter
from device.models import TINY, lively
from device.setup import Row, Setup
from device.timing import Deadline, finish, medians, seconds_of

from smartree import LLM, SamplingParams
from smartree.cost.draft import DraftCost, DraftPoint
from smartree.cost.profile import Profile
from smartree.cost.table import CostPoint
from smartree.engine.engine import Engine
from smartree.engine.margin import first_difference_margin, near_tie
from smartree.engine.request import Request
from smartree.engine.stats import EngineStats
from smartree.models.rehearsal import rehearsal
from smartree.models.runner import ModelRunner
from smartree.policies.factory import make_policy
from smartree.simulate.acceptance import AcceptanceLaw

_LOSSLESS = (("ngram", "static"), ("model", "smart"), ("model", "eagle2"))
_POLICIES = ("none", "eagle2", "smart")
_DRAFT_ROWS = (1, 4, 10)
_WARM_UP_STEPS = 48


def lossless(setup: Setup, deadline: Deadline) -> Iterator[Row]:
    """Whether speculation gives the tokens of plain decoding: always in float32; up to near ties in bfloat16."""
    draw = np.random.default_rng(0)
    prompts = [np.tile(draw.integers(0, TINY.vocab, half), 2).tolist() for half in (1, 2, 4, 8, 16, 32, 5, 11)]
    kinds = {
        "greedy": SamplingParams(max_tokens=48),
        "sampled": SamplingParams(max_tokens=48, temperature=1.0, top_p=0.9, seed=7),
    }
    for dtype in (torch.float32, torch.bfloat16):
        for drafter, policy in _LOSSLESS:
            llm = LLM(
                lively(TINY, dtype, setup.device),
                drafter=lively(TINY, dtype, setup.device, seed=1) if drafter == "model" else drafter,
                policy="none",
                profile=flat_profile(),
                max_batch=4,
            )
            for kind, params in kinds.items():
                plain = llm.generate(prompts, params)
                engine = llm.make_engine(policy)
                found = llm.generate(prompts, params, engine=engine)
                pairs = [(a.prompt_token_ids, a.token_ids, b.token_ids) for a, b in zip(plain, found, strict=True)]
                gaps = [first_difference_margin(llm, *pair) for pair in pairs if pair[1] != pair[2]]
                unexplained = [gap for gap in gaps if gap is not None and not near_tie(llm, gap[1])]
                wrong = bool(gaps if dtype is torch.float32 else unexplained)
                # Noise is added to sampled logits, so a gap between two tokens' logits says nothing there.
                unclear = wrong and kind == "sampled" and dtype is torch.bfloat16
                speculated = engine.stats.verified_rows > engine.stats.requests_decoded
                name = str(dtype).removeprefix("torch.")
                yield {
                    "what": f"{policy}, {drafter} drafter, {kind}, {name}",
                    "value": len(prompts) - len(gaps),
                    "unit": f"of {len(prompts)} texts equal",
                    "ok": None if unclear else speculated and not wrong,
                }
                if deadline.left < 0:
                    return


def flat_profile() -> Profile:
    """A made profile that favours drafting, so that decisions do not depend on the device's speed."""
    points = tuple(CostPoint(b, b * n, 0, 0.01 * (1 + 1e-4 * b * n)) for b in (1, 2, 4) for n in (1, 2, 4, 8, 16, 64))
    levels = tuple(DraftPoint(b, b * n, 1e-4) for b in (1, 2, 4) for n in _DRAFT_ROWS)
    return Profile(None, points, DraftCost(levels=levels))


def cost_curves(setup: Setup, deadline: Deadline) -> Iterator[Row]:
    """Seconds of a target pass by batch, tokens and context, and of a draft level."""
    sizes, points, levels = setup.sizes, [], []
    runner = ModelRunner(setup.target, max(sizes.batches), sizes.window, cuda_graphs=setup.cuda_graphs)
    share = deadline.left / (len(sizes.batches) * (len(sizes.contexts) + 1))
    for context in sizes.contexts:
        for batch in sizes.batches if context == sizes.contexts[0] else (1, sizes.batches[-1]):
            rows = [each for each in sizes.rows if batch * each <= sizes.most_rows]
            runs = [_argmax_of(runner, [each] * batch, context) for each in rows]
            for each, seconds in zip(rows, medians(runs, setup.device, share), strict=True):
                points.append(CostPoint(batch, batch * each, context, seconds))
                what = f"batch {batch}, {batch * each} tokens, context {context}"
                yield {"what": what, "batch": batch, "tokens": batch * each, "context": context} | _ms(seconds)
    for batch in sizes.batches:
        for each in _DRAFT_ROWS:
            level = setup.carrier.rehearsal(batch, each, sizes.contexts[0])
            if level is not None:
                seconds = medians([level], setup.device, share / len(_DRAFT_ROWS))[0]
                levels.append(DraftPoint(batch, batch * each, seconds))
                yield {"what": f"draft level, batch {batch}, {batch * each} rows", "batch": batch} | _ms(seconds)
    setup.profile = Profile(None, tuple(points), DraftCost(levels=tuple(levels)))


def _argmax_of(runner: ModelRunner, sizes: list[int], context: int) -> Callable[[], object]:
    run = rehearsal(runner, sizes, context)
    return lambda: run().argmax(dim=-1).tolist()


def _ms(seconds: float) -> Row:
    return {"value": round(1e3 * seconds, 4), "unit": "ms"}


def bandwidth(setup: Setup, deadline: Deadline) -> Iterator[Row]:
    """Plain decoding at batch 1 against the time that reading the weights once would take."""
    rate = _copy_rate(setup, deadline.left / 4)
    yield {"what": "copy", "value": round(rate / 1e9, 2), "unit": "GB/s"}
    model = setup.target.model
    embeddings = model.get_input_embeddings().weight  # only a row of it is read
    read = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    read -= embeddings.numel() * embeddings.element_size()
    floor = read / rate
    yield {"what": f"reading {read / 1e9:.2f} GB of weights"} | _ms(floor)
    runner = ModelRunner(setup.target, 1, setup.sizes.window, cuda_graphs=setup.cuda_graphs)
    one = medians([_argmax_of(runner, [1], setup.sizes.contexts[0])], setup.device, deadline.left / 4)[0]
    yield {"what": "pass of 1 token", "of_floor": round(one / floor, 3)} | _ms(one)
    decoding = _decode(setup, _engine(setup, "none", None, 1, setup.cuda_graphs), 1, deadline.left / 2)
    step = decoding["seconds"] / max(decoding["steps"], 1)
    yield {"what": "step of plain decoding", "of_floor": round(step / floor, 3)} | _ms(step)


def _copy_rate(setup: Setup, seconds: float) -> float:
    """Bytes a second, read and written, of a copy far larger than any cache."""
    source = torch.zeros(setup.sizes.copied // 2, dtype=torch.bfloat16, device=setup.device)
    target = torch.empty_like(source)
    return 2 * setup.sizes.copied / medians([lambda: target.copy_(source)], setup.device, seconds)[0]


def policies(setup: Setup, deadline: Deadline, law: AcceptanceLaw) -> Iterator[Row]:
    """Tokens per second of policies over plain decoding, with a drafter whose acceptance follows a law."""
    if setup.profile is None:
        raise RuntimeError("the cost curves were not measured: the part `cost` comes first")
    share = deadline.left / (len(setup.sizes.policy_batches) * len(_POLICIES))
    for batch in setup.sizes.policy_batches:
        plain = None
        for policy in _POLICIES:
            drafter = AssumedDrafter(law, setup.successor, setup.carrier)
            engine = _engine(setup, policy, drafter, batch, setup.cuda_graphs)
            found = _decode(setup, engine, batch, share)
            rate = found["tokens"] / found["seconds"]
            plain = rate if policy == "none" else plain
            yield {
                "what": f"{policy}, batch {batch}",
                "batch": batch,
                "policy": policy,
                "value": round(rate / plain, 3),
                "unit": "SR",
                "ok": found["right"],
                "tokens_per_second": round(rate, 1),
                "tau": round(engine.stats.tau, 3),
                "verified_tokens_per_step": round(engine.stats.verified_rows / max(engine.stats.decode_steps, 1), 2),
                "step_ms": round(1e3 * found["seconds"] / found["steps"], 3),
                "draft_share": round(engine.stats.draft_seconds / engine.stats.seconds, 4),
                "bookkeeping_share": round(engine.stats.bookkeeping_seconds / engine.stats.seconds, 4),
                "predicted_over_measured": round(
                    engine.stats.predicted_seconds / max(engine.stats.compared_seconds, 1e-9), 3
                ),
            }
            del engine


def graphs(setup: Setup, deadline: Deadline) -> Iterator[Row]:
    """Passes as CUDA graphs against eager ones: the same best tokens, and how much sooner."""
    if setup.device.type != "cuda":
        yield {"what": "no CUDA here, nothing to record"}
        return
    sizes = setup.sizes
    eager, graphed = (
        ModelRunner(setup.target, max(sizes.policy_batches), sizes.window, cuda_graphs=on) for on in (False, True)
    )
    share = deadline.left / (4 * len(sizes.policy_batches))
    for batch in sizes.policy_batches:
        for each in (1, 7, 24):  # two of them are padded
            one, other = (rehearsal(runner, [each] * batch, sizes.contexts[0]) for runner in (eager, graphed))
            pair = medians(
                [_argmax_of(runner, [each] * batch, sizes.contexts[0]) for runner in (eager, graphed)],
                setup.device,
                share,
            )
            same = torch.equal(one().argmax(dim=-1), other().argmax(dim=-1))
            yield {
                "what": f"batch {batch}, {batch * each} tokens",
                "value": round(pair[0] / pair[1], 3),
                "unit": "times as fast",
                "ok": same and len(graphed.graphs or ()) > 0,
                "eager_ms": round(1e3 * pair[0], 4),
                "graph_ms": round(1e3 * pair[1], 4),
            }
        found = [_decode(setup, _engine(setup, "none", None, batch, on), batch, share / 2) for on in (False, True)]
        yield {
            "what": f"plain decoding, batch {batch}",
            "value": round(found[1]["tokens"] / found[1]["seconds"] / (found[0]["tokens"] / found[0]["seconds"]), 3),
            "unit": "times as fast",
            "ok": found[1]["right"],
        }


def _engine(setup: Setup, policy: str, drafter: AssumedDrafter | None, batch: int, cuda_graphs: bool) -> Engine:
    cost = setup.profile.cost_model() if setup.profile is not None else None
    own = drafter if policy != "none" else None
    return Engine(
        setup.target,
        own,
        make_policy(policy, cost),
        max_batch=batch,
        window=setup.sizes.window,
        cuda_graphs=cuda_graphs,
    )


def _decode(setup: Setup, engine: Engine, batch: int, seconds: float) -> Row:
    """Decodes with a full batch for a while: tokens, seconds, steps, and whether every token was the right one."""
    draw, requests = np.random.default_rng(1), []
    params = SamplingParams(max_tokens=setup.sizes.window - setup.sizes.prompt)

    def step() -> None:
        while engine.unfinished < batch:
            requests.append(engine.add(draw.integers(0, setup.sizes.shape.vocab, setup.sizes.prompt).tolist(), params))
        engine.step()

    for _ in range(_WARM_UP_STEPS):
        step()
    engine.stats = EngineStats()
    finish(setup.device)
    deadline, spent = Deadline(0.9 * seconds), 0.0
    while deadline.left > 0 or engine.stats.steps == 0:
        spent += seconds_of(step, setup.device)
    tokens, steps = engine.stats.tokens, engine.stats.steps
    right = all(_is_right(request, setup) for request in requests)
    for request in requests:
        engine.abort(request)
    return {"tokens": tokens, "seconds": spent, "steps": steps, "right": right}


def _is_right(request: Request, setup: Setup) -> bool:
    """Whether the output is what the permutation says."""
    text = np.array(request.tokens[request.prompt_length - 1 :])
    return bool(np.array_equal(setup.successor[text[:-1]], text[1:]))
