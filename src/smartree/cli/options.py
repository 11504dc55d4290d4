"""Options that several verbs share, so that one name means one thing everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL, _SAMPLING, _DATA = "Model", "Sampling", "Input and output"

Model = Annotated[str, typer.Option("--model", help='"demo", a folder, or a Hugging Face id.', rich_help_panel=_MODEL)]
Drafter = Annotated[
    str,
    typer.Option(
        "--drafter",
        help='"auto" (the head that comes with the package, lookup joined, else ngram), "head" (that head alone), '
        '"ngram" (looks the text up), "none", or an EAGLE-3 head or draft model (folder or id; NAME+ngram joins '
        "lookup).",
        rich_help_panel=_MODEL,
    ),
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        help="What sizes the trees: smart, none, paper, eagle2, chain, static, opt-tree.",
        rich_help_panel=_MODEL,
    ),
]
Dtype = Annotated[
    str,
    typer.Option("--dtype", help="auto, bfloat16, float16, float32 or float64.", rich_help_panel=_MODEL),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.", rich_help_panel=_MODEL)]
Batch = Annotated[int, typer.Option("--batch", help="Most requests decoded together.", rich_help_panel=_MODEL)]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        help="Longest prompt plus output, in tokens; the model's window if not given.",
        rich_help_panel=_MODEL,
    ),
]
CacheTokens = Annotated[
    int | None,
    typer.Option(
        "--cache-tokens",
        help="Cache rows of all requests together, in tokens; room for --batch full windows if not given.",
        rich_help_panel=_MODEL,
    ),
]
PrefixReuse = Annotated[
    bool,
    typer.Option(
        "--prefix-reuse/--no-prefix-reuse",
        help="Whether prompts that begin alike share what was read of it.",
        rich_help_panel=_MODEL,
    ),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="A cost profile of this machine; the saved one if not given.",
        rich_help_panel=_MODEL,
    ),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Most tokens of an output.", rich_help_panel=_SAMPLING)]
Temperature = Annotated[
    float, typer.Option("--temperature", help="0 takes the most likely token.", rich_help_panel=_SAMPLING)
]
TopK = Annotated[
    int, typer.Option("--top-k", help="Sample from the k most likely tokens; 0: all.", rich_help_panel=_SAMPLING)
]
TopP = Annotated[
    float,
    typer.Option(
        "--top-p",
        help="Sample from the fewest tokens that have this probability together; 1: all.",
        rich_help_panel=_SAMPLING,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="The same seed gives the same output; drawn if not given.", rich_help_panel=_SAMPLING),
]
Raw = Annotated[
    bool,
    typer.Option("--raw", help="Send prompts as they are, without the model's chat template.", rich_help_panel=_DATA),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write the data as JSON; - writes it to stdout and nothing else.",
        rich_help_panel=_DATA,
    ),
]
PromptsFile = Annotated[
    str | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help="JSONL rows with prompt, messages or turns, or HumanEval's or GSM8K's own; - reads stdin.",
        rich_help_panel=_DATA,
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", help="Take only the first N prompts of the file.", rich_help_panel=_DATA)
]
