"""`smartree chat`: a conversation on the terminal."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Generator, Iterator
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from smartree.cli import options
from smartree.cli.loading import load_llm, remember
from smartree.cli.prompts import Message, encode_chat, has_chat_template
from smartree.cli.terminal import interactive, note
from smartree.config import EngineConfig
from smartree.errors import InputError
from smartree.sampling_params import SamplingParams

if TYPE_CHECKING:
    from smartree.engine.llm import LLM

_HELP = "/reset starts anew, /quit or Ctrl-D leaves, Ctrl-C stops an answer."


def chat(
    system: Annotated[str | None, typer.Option("--system", help="What the model is told before the talk.")] = None,
    model: options.Model = "demo",
    drafter: options.Drafter = "auto",
    policy: options.Policy = "smart",
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    profile: options.ProfileFile = None,
    max_model_len: options.MaxModelLen = None,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
) -> None:
    """Talk with a model; the text appears as it is decoded."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    llm = load_llm(EngineConfig(model, drafter, policy, dtype, device, 1, max_model_len, profile=profile))
    if not has_chat_template(llm):
        raise InputError(f"{model!r} has no chat template, so it cannot chat; `smartree generate` takes plain prompts.")
    note(_HELP)
    conversation = Conversation(llm, params, system)
    for line in _lines():
        if line == "/quit":
            break
        if line == "/reset":
            conversation.reset()
            note("The conversation starts anew.")
        elif line.startswith("/"):
            note(f"{line.split()[0]} is unknown. {_HELP}")
        else:
            _answer(conversation, line)
    remember(llm)


class Conversation:
    """What was said so far, kept short enough for the model's window."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self.llm, self._params = llm, params
        self._system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.turns: list[Message] = []

    def reset(self) -> None:
        """Forgets everything but what the model was told at the beginning."""
        self.turns = []

    def ask(self, text: str) -> list[int]:
        """Adds a message; returns the tokens of the conversation, oldest turns dropped until an answer fits too.

        Raises:
            InputError: the message alone is too long; it is forgotten again.
        """
        turns = [*self.turns, {"role": "user", "content": text}]
        room = min(self._params.max_tokens, self.llm.window // 2)
        tokens = self._encode(turns)
        dropped = 0
        while len(tokens) + room > self.llm.window and len(turns) > 1:
            del turns[:2]  # a question and its answer
            dropped += 1
            tokens = self._encode(turns)
        if len(tokens) >= self.llm.window:
            raise InputError(
                f"The message makes a prompt of {len(tokens)} tokens, but the window is {self.llm.window}; shorten it."
            )
        if dropped:
            note(f"The window is full: the oldest {'turn was' if dropped == 1 else f'{dropped} turns were'} dropped.")
        self.turns = turns
        return tokens

    def answer(self, tokens: list[int]) -> Generator[str]:
        """The pieces of an answer; whatever came of it becomes part of the conversation."""
        text = ""
        pieces = self.llm.stream(tokens, self._params)
        try:
            for piece in pieces:
                text += piece
                yield piece
        finally:
            pieces.close()  # type: ignore[attr-defined]  # a generator: ends the request in the engine
            self.turns.append({"role": "assistant", "content": text})

    def _encode(self, turns: list[Message]) -> list[int]:
        return encode_chat(self.llm, [*self._system, *turns])


def _answer(conversation: Conversation, line: str) -> None:
    """Prints an answer as it is decoded, and what it cost."""
    try:
        tokens = conversation.ask(line)
    except InputError as error:
        if not interactive():
            raise
        note(str(error))
        return
    stats = conversation.llm.engine.stats
    before, steps, begin = stats.tokens, stats.decode_steps, perf_counter()
    with _stop_on_interrupt() as stopped, contextlib.closing(conversation.answer(tokens)) as pieces:
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
            if stopped:
                break
    sys.stdout.write("\n")
    sys.stdout.flush()
    made, taken = stats.tokens - before, stats.decode_steps - steps
    speed = made / (perf_counter() - begin)
    end = ", stopped" if stopped else ""
    note(f"[{made} tokens, {speed:.1f} tokens/s, tau {(made - 1) / max(taken, 1):.2f}{end}]")


@contextlib.contextmanager
def _stop_on_interrupt() -> Iterator[list[bool]]:
    """Yields a list that the first Ctrl-C puts something into, so that a step is never cut in two; the second ends."""
    stopped: list[bool] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(True)

    old = signal.signal(signal.SIGINT, handle)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, old)


def _lines() -> Iterator[str]:
    """The messages: typed, or the lines of stdin; empty ones are left out."""
    if interactive():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # arrow keys and history for input()
    number = 0
    while True:
        number += 1
        try:
            line = input("> ") if interactive() else sys.stdin.readline()
            line.encode("utf-8")
        except EOFError:
            print()
            return
        except UnicodeError as error:
            raise InputError(f"stdin, line {number}: not UTF-8 text.") from error
        if not line and not interactive():
            return
        if line.strip():
            yield line.strip()
