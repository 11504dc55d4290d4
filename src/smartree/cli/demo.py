"""`smartree demo`: what this project is for, on this machine, in a few minutes."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from importlib.resources import files
from time import perf_counter
from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from smartree.cli import options
from smartree.cli.comparison import (
    DemoPrompt,
    Difference,
    Run,
    compare,
    differences,
    identical_in_float32,
    run_row,
    slowdown,
    speedup_by_kind,
)
from smartree.cli.explain import token_text, traced
from smartree.cli.header import run_header
from smartree.cli.json_file import JsonFile
from smartree.cli.loading import load_llm
from smartree.cli.prompts import of_text
from smartree.cli.terminal import note, progress_bar, result_console, shorten
from smartree.config import EngineConfig
from smartree.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rich.progress import Progress

    from smartree.engine.llm import LLM
    from smartree.engine.trace import StepTrace

_BATCHES, _POLICIES = (1, 4), ("none", "eagle2", "smart")
_TREE_KIND, _TREE_NODES = "rewrite", 24
_BUSY = 1.3  # passes this much slower than in the profile say that the machine does something else too


def demo(
    json: options.Json = None,
    model: options.Model = "demo",
    drafter: options.Drafter = "auto",
    dtype: options.Dtype = "bfloat16",
    device: options.Device = "auto",
    max_tokens: options.MaxTokens = 96,
) -> None:
    """Profile this machine, decode 12 prompts plainly, with EAGLE-2's trees and with smart ones, and compare."""
    begin = perf_counter()
    params = SamplingParams(max_tokens=max_tokens)
    target = JsonFile(json)
    llm = load_llm(EngineConfig(model, drafter, "smart", dtype, device))
    prompts = demo_prompts(llm)
    if not target.to_stdout:
        _print_profile(llm)
    with progress_bar(transient=False) as bar:
        runs = _compare_all(llm, prompts, params, bar)
        changed = {
            (run.batch, run.policy): differences(llm, prompts, run, plain) for plain, *rest in runs for run in rest
        }
        tree = _interesting_step(llm, prompts, params, runs, bar)
        precise = _check_float32(llm, prompts, params, bar) if any(changed.values()) else None
    if not target.to_stdout:
        _print_comparison(runs, prompts, max_tokens, slowdown(llm, runs[0][0]))
        _print_identity(llm, runs, changed, precise)
        _print_tree(llm, tree)
    rows = [run_row(run, pair[0], changed.get((run.batch, run.policy), []), prompts) for pair in runs for run in pair]
    target.write({"header": run_header(llm, params, identical_in_float32=precise), "rows": rows})
    note(f"Done in {perf_counter() - begin:.0f} s. Next: smartree explain PROMPT, smartree chat, smartree --help")


def demo_prompts(llm: LLM) -> list[DemoPrompt]:
    """The built-in prompts, as the model's chat template writes them."""
    lines = files("smartree.cli").joinpath("demo_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [jsonlib.loads(line) for line in lines]
    return [
        DemoPrompt(row["id"], row["kind"], row["prompt"], of_text(row["prompt"], row["id"]).encode(llm)) for row in rows
    ]


def _compare_all(llm: LLM, prompts: Sequence[DemoPrompt], params: SamplingParams, bar: Progress) -> list[list[Run]]:
    """The runs of each batch size, plain decoding first."""
    task = bar.add_task("Decoding", total=len(_BATCHES) * len(_POLICIES) * len(prompts))
    runs = []
    for batch in _BATCHES:

        def advance(policy: str, count: int, batch: int = batch) -> None:
            bar.update(task, advance=count, description=f"Decoding, batch {batch}, {policy:6}")

        runs.append(compare(llm, prompts, _POLICIES, batch, params, advance))
    bar.update(task, description="Decoding")
    return runs


def _interesting_step(
    llm: LLM, prompts: Sequence[DemoPrompt], params: SamplingParams, runs: Sequence[Sequence[Run]], bar: Progress
) -> tuple[str, int, StepTrace] | None:
    """The step with the most accepted nodes of the rewriting prompts, rather one whose tree forks.

    Returns:
        The prompt's text, the step's number and the step; None if nothing was ever drafted.
    """
    task = bar.add_task("Looking for a tree", total=None)
    engine = next(run.engine for run in runs[0] if run.policy == "smart")
    found: list[tuple[str, int, StepTrace]] = []
    for prompt in prompts:
        if prompt.kind == _TREE_KIND:
            steps = traced(llm, prompt.tokens, params, engine)[1]
            found += [(prompt.text, number, step) for number, step in enumerate(steps, 1) if step.nodes]
    bar.remove_task(task)
    return max(found, key=lambda item: interest(item[2]), default=None)


def interest(step: StepTrace) -> tuple[bool, int, int]:
    """Orders steps: those that verified a fork and accepted some of it, then by nodes accepted, then by nodes."""
    parents = [node.parent for node in step.nodes if node.verified]
    accepted = sum(node.accepted for node in step.nodes)
    return len(set(parents)) < len(parents) and accepted >= 3, accepted, len(step.nodes)


def _check_float32(llm: LLM, prompts: Sequence[DemoPrompt], params: SamplingParams, bar: Progress) -> int | None:
    """How many prompts get identical tokens in float32; None if that is the element type already."""
    if llm.target.dtype.itemsize >= 4:
        return None
    task = bar.add_task("Checking tokens in float32", total=None)
    try:
        return identical_in_float32(llm, prompts, params)
    finally:
        bar.remove_task(task)


def _print_profile(llm: LLM) -> None:
    from smartree.cli.curves import bend_sentence, measured_table

    assert llm.profile is not None  # policy smart needs one
    console = result_console()
    header = run_header(llm)
    title = f"{header['model']} in {header['dtype']} on {header['device_name']}"
    if header["threads"]:
        title += f", {header['threads']} {'thread' if header['threads'] == 1 else 'threads'}"
    console.print(Text(title, style="bold"))
    console.print(measured_table(llm.profile))
    console.print(Text(bend_sentence(llm.profile)), soft_wrap=True)


def _print_comparison(
    runs: Sequence[Sequence[Run]], prompts: Sequence[DemoPrompt], max_tokens: int, slower: float
) -> None:
    title = f"{len(prompts)} prompts, up to {max_tokens} tokens each, temperature 0"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in ("batch", "policy", "tokens/s", "SR", "tau", "verified tokens a step"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for pair in runs:
        for run in pair:
            speed, plain = run.tokens_per_second(), pair[0].tokens_per_second()
            cells = f"{speed:.1f}", f"{speed / plain:.2f}", f"{run.stats.tau:.2f}", f"{run.verified_per_step:.1f}"
            table.add_row(str(run.batch), run.policy, *cells)
    console = result_console()
    console.print("", table)
    if slower > _BUSY:
        text = f"The machine was busy: steps took {slower:.1f} times as long as when it was profiled, so take the "
        console.print(Text(f"{text}figures above with care.", style="yellow"), soft_wrap=True)
    ratios = speedup_by_kind(runs[0][-1], runs[0][0], prompts)
    parts = [f"{kind} {ratio:.2f}" for kind, ratio in ratios.items()]
    console.print(Text(f"SR of smart by kind of prompt, batch 1: {', '.join(parts)}"), soft_wrap=True)
    console.print(Text("SR: tokens/s over those of none; tau: tokens a request gets per step.", style="dim"))


def _print_identity(
    llm: LLM, runs: Sequence[Sequence[Run]], changed: dict[tuple[int, str], list[Difference]], precise: int | None
) -> None:
    """Prints for how many prompts the tokens are those of plain decoding, and what it was where they are not."""
    console = result_console()
    console.print("")
    total = len(runs[0][0].outputs)
    for (batch, policy), found in changed.items():
        style = "green" if all(difference.near_tie for difference in found) else "bold red"
        line = f"Batch {batch}, {policy}: tokens identical: {total - len(found)} of {total} prompts"
        console.print(Text(line, style=style), soft_wrap=True)
        ties = [f"{d.id} at token {d.index + 1} ({d.gap:.3g})" for d in found if d.near_tie]
        if ties:
            dtype = str(llm.target.dtype).removeprefix("torch.")
            text = f"{dtype} rounding decided between near-equal logits (their distance): {', '.join(ties)}"
            console.print(Padding(Text(text, style="dim"), (0, 0, 0, 2)))
        for d in found:
            if not d.near_tie:
                text = f"  {d.id} differs at token {d.index + 1}, logits {d.gap:.3g} apart: a fault; please report it."
                console.print(Text(text, style="bold red"), soft_wrap=True)
    if precise is not None:
        line = f"In float32, where rounding decides nothing: tokens identical: {precise} of {total} prompts"
        console.print(Text(line, style="green" if precise == total else "bold red"), soft_wrap=True)


def _print_tree(llm: LLM, found: tuple[str, int, StepTrace] | None) -> None:
    from smartree.cli.tree_drawing import draw_step, legend

    console = result_console()
    if found is None:
        console.print(Text("\nNothing was drafted, so there is no tree to show.", style="dim"))
        return
    text, number, step = found
    title = f"\nA tree, as `smartree explain` draws it, from: {shorten(text, 60)}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(draw_step(step, number, lambda token: token_text(llm, token), _TREE_NODES))
    console.print(legend(), soft_wrap=True)
