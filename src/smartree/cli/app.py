"""The program `smartree`: its verbs, and how it ends when something is wrong.

Bad input and bad usage end in one line on stderr and exit code 2; Ctrl-C in one line and 130.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from smartree import __version__
from smartree.cli.bench import bench
from smartree.cli.chat import chat
from smartree.cli.demo import demo
from smartree.cli.explain import explain
from smartree.cli.generate import generate
from smartree.cli.plan import plan
from smartree.cli.profile import profile
from smartree.cli.simulate import simulate
from smartree.cli.train import train
from smartree.errors import InputError

_BAD_INPUT, _FAILED, _INTERRUPTED = 2, 1, 130
_ENGINE = ("torch", "transformers", "safetensors", "tokenizers")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
for verb in (demo, profile, generate, chat, explain, plan, simulate, train, bench):
    app.command()(verb)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"smartree {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Hardware-aware tree speculative decoding: the same tokens, sooner."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The entry point of the program."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            # A model may say what the terminal cannot show; that must not end the run.
            stream.reconfigure(errors="surrogateescape" if stream is sys.stdin else "replace")  # type: ignore[union-attr]
    if "LOCAL_RANK" in os.environ:  # set by torchrun, see docs/devices.md
        from smartree.models.follower import run_together  # imports torch, which takes seconds

        sys.exit(run_together(lambda: run(sys.argv[1:])))
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs a command line; returns the exit code."""
    try:
        result = get_command(app).main(args=list(arguments), prog_name="smartree", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _leave_pipe()
    except (Exception, KeyboardInterrupt) as error:
        code, message = _ending(error)
        if message is None:
            raise  # an error of ours: the traceback is what a report needs
        _say(message)
        return code
    except SystemExit as ending:  # how typer and rich leave a pipe that nobody reads any more
        _leave_pipe()
        return ending.code if isinstance(ending.code, int) else _FAILED
    code = result if isinstance(result, int) else 0
    if code == _INTERRUPTED:  # newer typers turn Ctrl-C into this code
        _say("interrupted")
    return code


def _ending(error: BaseException) -> tuple[int, str | None]:
    """The exit code and the sentence for an error; None for one that nobody expected."""
    usage: Any = getattr(error, "format_message", None)  # typer's own errors, under whatever name this version has
    if isinstance(error, InputError):
        return _BAD_INPUT, str(error)
    if usage is not None:
        message = str(usage()).strip()
        return _BAD_INPUT, f"{message}{'' if message[-1:] in '.?!' else '.'} See `smartree --help`."
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return _INTERRUPTED, "interrupted"
    if isinstance(error, ModuleNotFoundError) and str(error.name).split(".")[0] in _ENGINE:
        return _BAD_INPUT, f'This needs {error.name}; `pip install "smartree[engine]"` brings it.'
    if isinstance(error, OSError) and error.strerror:
        return _FAILED, f"{error.filename or 'This machine'}: {error.strerror}."
    return _FAILED, None


def _say(message: str) -> None:
    """Prints one line to stderr, whatever the message holds."""
    with contextlib.suppress(BrokenPipeError):
        print("smartree:", " ".join(message.split()), file=sys.stderr, flush=True)


def _leave_pipe() -> int:
    """The reader of stdout has gone (`smartree ... | head`): nothing more can be said to it, and that is no fault."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _FAILED
