"""`smartree train`: trains an EAGLE-3 head for a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress
from rich.text import Text as Line

from smartree.cli import options
from smartree.cli.json_file import JsonFile
from smartree.cli.loading import load_llm
from smartree.cli.prompts import read_prompts
from smartree.cli.terminal import note, progress_bar, result_console
from smartree.config import EngineConfig
from smartree.errors import InputError

if TYPE_CHECKING:
    from smartree.engine.llm import LLM

_TEXTS, _TRAINING = "Texts", "Training"


def train(
    out: Annotated[Path, typer.Argument(help="Folder of the finished head; an older head there is replaced.")],
    model: options.Model = "demo",
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            "--prompts", metavar="FILE", help="JSONL file of prompts; may be repeated.", rich_help_panel=_TEXTS
        ),
    ] = None,
    own_prompts: Annotated[
        bool,
        typer.Option(help="Let the target write prompts of its own too.", rich_help_panel=_TEXTS),
    ] = True,
    tokens: Annotated[int, typer.Option(help="Answer tokens to train on.", rich_help_panel=_TEXTS)] = 1_000_000,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", rich_help_panel=_TEXTS)] = 256,
    temperatures: Annotated[
        str, typer.Option(help="Temperatures of the answers, in turn.", rich_help_panel=_TEXTS)
    ] = "0,0.7,1",
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder of texts, hidden states and checkpoints, from which an interrupted run goes on; OUT.work if "
            "not given.",
            rich_help_panel=_TEXTS,
        ),
    ] = None,
    cache_gb: Annotated[
        float,
        typer.Option(help="Disk for hidden states; beyond it they are computed anew.", rich_help_panel=_TEXTS),
    ] = 16.0,
    batch: Annotated[int, typer.Option("--batch", help="Texts written at a time.", rich_help_panel=_TEXTS)] = 48,
    epochs: Annotated[int, typer.Option(help="Passes over the texts.", rich_help_panel=_TRAINING)] = 5,
    warm_epochs: Annotated[
        int, typer.Option(help="First ones that train one step only.", rich_help_panel=_TRAINING)
    ] = 2,
    unrolled: Annotated[
        int, typer.Option(help="Levels the head runs on its own states.", rich_help_panel=_TRAINING)
    ] = 3,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of a batch.", rich_help_panel=_TRAINING)] = 1536,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.", rich_help_panel=_TRAINING)] = 2e-3,
    draft_vocab: Annotated[
        int, typer.Option(help="Most frequent tokens that the head can propose.", rich_help_panel=_TRAINING)
    ] = 8192,
    start: Annotated[
        Path | None,
        typer.Option(help="Folder of a head of this target to go on from.", rich_help_panel=_TRAINING),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of first weights and order.", rich_help_panel=_TRAINING)] = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    json: options.Json = None,
) -> None:
    """Train an EAGLE-3 head for a target, on text that the target writes itself."""
    target = JsonFile(json)
    settings = EngineConfig(model, "none", "none", dtype, device, batch)
    given = {Path(file).stem: read_prompts(file) for file in prompts or []}
    if not given and not own_prompts:
        raise InputError("There are no prompts: give files with --prompts, or leave --no-own-prompts out.")
    if not cache_gb >= 0:
        raise InputError(f"cache-gb is {cache_gb}; it must not be negative.")
    kinds = _temperatures(temperatures)
    from smartree.train.config import TrainConfig
    from smartree.train.run import Folders, train_head  # imports torch, which takes seconds
    from smartree.train.writing import WritingConfig

    writing = WritingConfig(tokens, max_tokens, kinds, own_prompts=own_prompts)
    config = TrainConfig(
        epochs=epochs,
        warm_epochs=warm_epochs,
        unrolled=unrolled,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        draft_vocab=draft_vocab,
        seed=seed,
    )
    llm = load_llm(settings)
    sources = {name: _encoded(llm, each, max_tokens) for name, each in given.items()}
    folders = Folders(out, work or out.with_name(out.name + ".work"))
    with progress_bar(transient=False) as bar:
        facts = train_head(llm, sources, writing, config, folders, int(cache_gb * 2**30), _Bars(bar), start)
    if not target.to_stdout:
        _print(facts)
    target.write({"header": {key: value for key, value in facts.items() if key != "log"}, "rows": facts["log"]})
    note(f"The head is in {out}; use it with --drafter {out}")


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        kinds = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"temperatures is {text!r}; give numbers with commas between, like 0,0.7,1.") from None
    if not all(0 <= kind < float("inf") for kind in kinds):
        raise InputError(f"temperatures is {text!r}; none may be negative.")
    return kinds


def _encoded(llm: LLM, prompts: Sequence[Any], max_tokens: int) -> list[list[int]]:
    """Token ids of the prompts that leave room for an answer."""
    every = [prompt.encode(llm) for prompt in prompts]
    return [tokens for tokens in every if len(tokens) + max_tokens < llm.window]


def _print(facts: dict[str, Any]) -> None:
    console = result_console()
    last = facts["log"][-1]
    console.print(
        Line(f"{facts['texts']} texts, {facts['answer_tokens']} answer tokens, trained on {facts['tokens_trained']}")
    )
    for depth, (loss, accuracy) in enumerate(zip(last["loss"], last["accuracy"], strict=True), 1):
        console.print(Line(f"depth {depth}: held-out loss {loss:.3f}, most likely token right {accuracy:.3f}"))
    console.print(Line(f"tau on held-out prompts, EAGLE-2's default tree, temperature 0: {facts['tau']:.2f}"))


class _Bars:
    """One bar a stage."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: Any = None
        self._name = ""

    def stage(self, name: str, total: int | None) -> None:
        """Shows a new bar."""
        self._name = name
        self._task = self._bar.add_task(name, total=total)

    def step(self, done: int, total: int, note: str = "") -> None:
        """Moves it."""
        description = f"{self._name} ({note})" if note else self._name
        self._bar.update(self._task, completed=done, total=total, description=description)
