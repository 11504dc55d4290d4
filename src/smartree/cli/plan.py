"""`smartree plan`: candidate pools and a cost profile in, chosen nodes and predicted speedup out."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from smartree.cli import options
from smartree.cli.json_file import JsonFile
from smartree.cli.terminal import note, result_console
from smartree.errors import InputError

if TYPE_CHECKING:
    from smartree.cost.model import CostModel
    from smartree.policies.planning import Plan
    from smartree.tree.draft_tree import DraftTree

_INPUT, _DECISION = "Input and output", "Decision"


def plan(
    candidates: Annotated[
        str,
        typer.Option(
            "--candidates", metavar="FILE", help="Candidate pools, JSON; - reads stdin.", rich_help_panel=_INPUT
        ),
    ],
    cost: Annotated[
        str,
        typer.Option("--cost", metavar="FILE", help="A cost profile of any machine, JSON.", rich_help_panel=_INPUT),
    ],
    json: options.Json = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="smart, none, paper, eagle2, chain, static or opt-tree.",
            rich_help_panel=_DECISION,
        ),
    ] = "smart",
    price: Annotated[
        float | None,
        typer.Option(
            "--price",
            metavar="TOKENS_PER_SECOND",
            help="What the batch's time is worth (smart only); the step's own ratio if not given.",
            rich_help_panel=_DECISION,
        ),
    ] = None,
    context: Annotated[
        int, typer.Option("--context", help="Cached tokens of each request.", rich_help_panel=_DECISION)
    ] = 0,
) -> None:
    """Choose the nodes to verify from candidate pools, offline, on the costs of any machine."""
    from smartree.cost.profile import Profile
    from smartree.policies.planning import parse_pools
    from smartree.policies.planning import plan as plan_step

    if context < 0:
        raise InputError(f"--context is {context}; it must be 0 or more.")
    target = JsonFile(json)
    trees = parse_pools(read_json("--candidates", candidates))
    if not any(len(tree) for tree in trees):
        raise InputError(f"--candidates {candidates} holds requests without a single node: there is nothing to choose.")
    model = Profile.from_json(read_json("--cost", cost)).cost_model()
    chosen = plan_step(trees, model, policy, price, context)
    if not target.to_stdout:
        print_plan(trees, chosen, model, context)
    target.write(chosen.to_json())
    if price is not None and policy != "smart":
        note(f"--price is for smart; {policy} does not look at it.")
    if len(trees) not in model.table.batches:
        known = ", ".join(map(str, model.table.batches))
        note(f"The profile has no batch {len(trees)}: interpolated between its batches {known}.")


def read_json(option: str, name: str) -> Any:
    """The content of a JSON file that must not hold what JSON does not have.

    Raises:
        InputError: it cannot be read, or is no JSON.
    """

    def refuse(constant: str) -> None:
        raise InputError(f"{option} {name} holds {constant}, which is no number of JSON.")

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{option} {name} is not UTF-8 text.") from error
    except OSError as error:
        raise InputError(f"{option} {name} cannot be read: {error.strerror}.") from error
    try:
        return json_format.loads(text, parse_constant=refuse)
    except InputError:
        raise
    except json_format.JSONDecodeError as error:
        raise InputError(f"{option} {name} is not JSON (line {error.lineno}: {error.msg}).") from error
    except RecursionError as error:
        raise InputError(f"{option} {name} is nested too deeply.") from error
    except ValueError as error:  # Python reads whole numbers of up to 4300 digits
        raise InputError(f"{option} {name} holds a number with too many digits.") from error


def print_plan(trees: Sequence[DraftTree], chosen: Plan, cost: CostModel, context: int) -> None:
    """Prints what was chosen of each request, and what the step is expected to bring."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("request", "nodes", "depth", "expected tokens"):
        table.add_column(name, justify="right")
    for request, (tree, nodes) in enumerate(zip(trees, chosen.selected, strict=True)):
        depth = max((int(tree.depths[node]) for node in nodes), default=0)
        tokens = 1 + float(tree.paths[list(nodes)].sum())
        table.add_row(str(request), f"{len(nodes)} of {len(tree)}", str(depth), f"{tokens:.2f}")
    count, drafted = sum(map(len, chosen.selected)), sum(map(len, trees))
    if len(trees) > 1:
        table.add_section()
        table.add_row("all", f"{count} of {drafted}", "", f"{chosen.expected_tokens:.2f}")
    console = result_console()
    console.print(table)
    plain = cost.autoregressive(len(trees), context) + cost.overhead
    console.print(
        Text(
            f"A step of {len(trees) + count} rows takes {_ms(chosen.step_seconds)} (plain: {_ms(plain)}) and brings "
            f"{chosen.expected_tokens:.2f} tokens: speedup {chosen.speedup:.2f}."
        ),
        soft_wrap=True,
    )
    if count == 0:
        console.print(Text("Nothing is verified: plain decoding."), soft_wrap=True)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
