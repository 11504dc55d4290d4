"""`smartree explain`: the trees of a decoding, step by step, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from smartree.cli import options
from smartree.cli.header import run_header
from smartree.cli.json_file import JsonFile
from smartree.cli.loading import load_llm
from smartree.cli.prompts import gather_prompts
from smartree.cli.terminal import progress_bar, result_console
from smartree.config import EngineConfig
from smartree.errors import InputError
from smartree.sampling_params import SamplingParams

if TYPE_CHECKING:
    from smartree.engine.engine import Engine
    from smartree.engine.llm import LLM
    from smartree.engine.output import RequestOutput
    from smartree.engine.stats import RequestStats
    from smartree.engine.trace import StepTrace


def explain(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; stdin if none is given.")] = None,
    raw: options.Raw = False,
    steps: Annotated[int, typer.Option("--steps", help="Most steps to draw.")] = 8,
    nodes: Annotated[int, typer.Option("--nodes", help="Most nodes to draw in a step.")] = 16,
    json: options.Json = None,
    model: options.Model = "demo",
    drafter: options.Drafter = "auto",
    policy: options.Policy = "smart",
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    profile: options.ProfileFile = None,
    max_model_len: options.MaxModelLen = None,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
) -> None:
    """Decode one prompt and draw the trees that were chosen, step by step."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if steps < 1 or nodes < 1:
        raise InputError("steps and nodes must be at least 1.")
    target = JsonFile(json)
    given = gather_prompts([] if prompt is None else [prompt], None)[0]
    llm = load_llm(EngineConfig(model, drafter, policy, dtype, device, 1, max_model_len, profile=profile))
    tokens = given.encode(llm, raw)
    with progress_bar() as bar:
        bar.add_task("Decoding", total=None)
        output, traces = traced(llm, tokens, params)
    if not target.to_stdout:
        _print_steps(llm, traces, steps, nodes)
        print_summary(output.stats)
    header = run_header(llm, params, prompt=given.text, text=output.text, stats=output.stats.to_json())
    target.write({"header": header, "rows": step_rows(llm, traces)})


def traced(
    llm: LLM, tokens: list[int], params: SamplingParams, engine: Engine | None = None
) -> tuple[RequestOutput, list[StepTrace]]:
    """An output and what was decided in each of its decoding steps; `engine` is the model's own if not given."""
    engine = engine or llm.engine
    traces: list[StepTrace] = []
    engine.traces = traces
    try:
        output = llm.generate(tokens, params, engine=engine)[0]
    finally:
        engine.traces = None
    if traces:  # the walk of the last step may go on past the token that ended the request
        left = len(output.token_ids) - 1 - sum(len(step.tokens) for step in traces[:-1])
        traces[-1] = replace(traces[-1], tokens=traces[-1].tokens[:left])
    return output, traces


def token_text(llm: LLM, token: int) -> str:
    """The text of one token; its number if there is no tokenizer."""
    return str(llm.target.tokenizer.decode([token])) if llm.target.tokenizer is not None else f"<{token}>"


def _print_steps(llm: LLM, traces: Sequence[StepTrace], most: int, nodes: int) -> None:
    """Draws the first steps that drafted something, and says which ones did not."""
    from smartree.cli.tree_drawing import draw_step, legend

    console = result_console()
    console.print(legend(), soft_wrap=True)
    console.print()
    drawn, skipped = 0, []
    for number, step in enumerate(traces, 1):
        if not step.nodes:
            skipped.append(number)
            continue
        if drawn == most:
            left = sum(bool(later.nodes) for later in traces[number - 1 :])
            _say_skipped(console, skipped)
            text = f"... {left} more {'step' if left == 1 else 'steps'} with a tree; --steps N draws more.\n"
            console.print(Text(text, style="dim"))
            return
        _say_skipped(console, skipped)
        skipped = []
        console.print(draw_step(step, number, lambda token: token_text(llm, token), nodes))
        drawn += 1
    _say_skipped(console, skipped)


def _say_skipped(console: Console, steps: Sequence[int]) -> None:
    if steps:
        which = f"Step {steps[0]}" if len(steps) == 1 else f"Steps {steps[0]} to {steps[-1]}"
        console.print(Text(f"{which}: nothing drafted, one token each.\n", style="dim"))


def print_summary(stats: RequestStats) -> None:
    """Prints how deep drafts were accepted and how large the verified trees were."""
    console = result_console()
    console.print(Text(f"{stats.tokens} tokens in {stats.steps} steps: tau {stats.tau:.2f}", style="bold"))
    if stats.observed_by_depth:
        console.print("Accepted by depth, of the steps that got there:")
        for depth, (seen, taken) in enumerate(zip(stats.observed_by_depth, stats.accepted_by_depth, strict=True), 1):
            console.print(
                f"  depth {depth:2}  {_bar(taken / max(seen, 1))} {taken / max(seen, 1):4.0%}  {taken}/{seen}"
            )
    if stats.sizes:
        console.print("Steps by number of verified nodes:")
        largest = max(stats.sizes.values())
        for size, count in sorted(stats.sizes.items()):
            console.print(f"  {size:3} {'node ' if size == 1 else 'nodes'}  {_bar(count / largest)} {count}")


def _bar(share: float, width: int = 24) -> str:
    return ("█" * round(share * width)).ljust(width)


def step_rows(llm: LLM, traces: Sequence[StepTrace]) -> list[dict[str, Any]]:
    """One JSON row per decoding step."""
    return [
        {
            "step": number,
            "root": step.root,
            "root_text": token_text(llm, step.root),
            "nodes": [asdict(node) | {"text": token_text(llm, node.token)} for node in step.nodes],
            "tokens": list(step.tokens),
            "text": "".join(token_text(llm, token) for token in step.tokens),
            "price": step.price,
            "predicted_ms": 1e3 * step.predicted_seconds,
        }
        for number, step in enumerate(traces, 1)
    ]
