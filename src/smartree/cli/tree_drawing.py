"""Draft trees on the terminal: what was drafted, what was verified, what the target agreed with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from smartree.engine.trace import NodeTrace, StepTrace

TokenText = Callable[[int], str]
_ACCEPTED, _REJECTED, _UNVERIFIED = ("✓", "green"), ("✗", "red"), ("·", "dim")


@dataclass(frozen=True, slots=True)
class Run:
    """Nodes below each other without a fork: drawn as lines of one column, so that long paths do not run off the page.

    Attributes:
        nodes: indices into the step's nodes, parents first.
        children: the runs that begin where it forks.
    """

    nodes: tuple[int, ...]
    children: tuple[Run, ...]


def legend() -> Text:
    """What the marks mean."""
    text = Text("Legend: ", style="dim")
    text.append("✓ verified, accepted", style=_ACCEPTED[1]).append("   ")
    text.append("✗ verified, rejected", style=_REJECTED[1]).append("   ")
    text.append("· drafted, not verified", style=_UNVERIFIED[1])
    notes = (
        "p: chance that a node is accepted if its parent is; path: that it and all above it are.",
        "Nodes stand below each other until the tree forks.",
    )
    return text.append("".join(f"\n{note}" for note in notes), style="dim")


def draw_step(step: StepTrace, number: int, token_text: TokenText, limit: int) -> RenderableType:
    """One step: what it committed, its price and predicted time, and its tree.

    Args:
        step: the step.
        number: its place in the output, from 1.
        token_text: text of a token id.
        limit: most nodes to draw; verified ones come first, then the most likely.
    """
    shown = visible_nodes(step.nodes, limit)
    tree = Tree(Text(f"{_quoted(token_text(step.root))} (last committed token)"))
    for run in runs_below(step.nodes, shown, -1):
        _add_run(tree, run, step.nodes, token_text)
    parts: list[RenderableType] = [_headline(step, number, token_text), tree]
    hidden = len(step.nodes) - len(shown)
    if hidden:
        parts.append(Text(f"... and {hidden} more {'node' if hidden == 1 else 'nodes'}, drafted only", style="dim"))
    return Group(*parts, "")


def visible_nodes(nodes: Sequence[NodeTrace], limit: int) -> set[int]:
    """The nodes to draw: all verified ones, then the most likely until there are `limit`."""
    order = sorted(range(len(nodes)), key=lambda index: (not nodes[index].verified, -nodes[index].path, index))
    verified = sum(node.verified for node in nodes)
    return set(order[: max(limit, verified)])


def runs_below(nodes: Sequence[NodeTrace], shown: set[int], parent: int) -> tuple[Run, ...]:
    """The runs that begin below a node, most likely first; -1 is the root."""
    children: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        if index in shown:
            children.setdefault(node.parent, []).append(index)

    def run_from(first: int) -> Run:
        line = [first]
        while len(children.get(line[-1], [])) == 1:
            line.append(children[line[-1]][0])
        return Run(tuple(line), forks(line[-1]))

    def forks(parent: int) -> tuple[Run, ...]:
        order = sorted(children.get(parent, []), key=lambda index: (-nodes[index].path, index))
        return tuple(run_from(index) for index in order)

    return forks(parent)


def _add_run(tree: Tree, run: Run, nodes: Sequence[NodeTrace], token_text: TokenText) -> None:
    below = tree.add(Text("\n").join(_node_line(nodes[index], token_text) for index in run.nodes))
    for child in run.children:
        _add_run(below, child, nodes, token_text)


def _node_line(node: NodeTrace, token_text: TokenText) -> Text:
    mark, style = _ACCEPTED if node.accepted else _REJECTED if node.verified else _UNVERIFIED
    line = Text(f"{mark} {_quoted(token_text(node.token))}", style=style, no_wrap=True)
    return line.append(f"  p {node.probability:.2f}  path {node.path:.2f}", style="dim")


def _headline(step: StepTrace, number: int, token_text: TokenText) -> Text:
    verified = sum(node.verified for node in step.nodes)
    accepted = sum(node.accepted for node in step.nodes)
    line = Text(f"Step {number}", style="bold")
    line.append(f": drafted {len(step.nodes)}, verified {verified}, accepted {accepted}; commits ", style="default")
    committed = "".join(token_text(token) for token in step.tokens)
    line.append(_quoted(committed), style="green")
    facts = []
    if step.price is not None:
        facts.append(f"price {step.price:.1f} tokens/s")
    if step.predicted_seconds == step.predicted_seconds:
        facts.append(f"predicted {1e3 * step.predicted_seconds:.1f} ms")
    return line.append(f"\n{', '.join(facts)}" if facts else "", style="dim")


def _quoted(text: str) -> str:
    """The text as Python writes it, so that spaces and line ends show."""
    return repr(text)
