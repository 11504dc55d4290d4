"""Prompts from arguments, stdin and JSONL files, and how each becomes the tokens that a model is given."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartree.errors import InputError

if TYPE_CHECKING:
    from smartree.engine.llm import LLM

Message = dict[str, str]
_HUMANEVAL_INSTRUCTION = "Complete this Python function:\n\n"
_FIELDS = "prompt, messages, turns, question or instruction"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        text: what the user gave; of a conversation, its last message.
        messages: the same as a conversation.
        where: file and line, or "prompt N", for errors.
        id: the row's own name; None if it has none.
        plain: False if only a chat template can make one text of it.
    """

    text: str
    messages: tuple[Message, ...]
    where: str
    id: str | None = None
    plain: bool = True

    def encode(self, llm: LLM, raw: bool = False) -> list[int]:
        """The tokens to give to the model.

        Args:
            llm: the model; its chat template is used if it has one.
            raw: send the text as it is.

        Raises:
            InputError: a conversation without a template, or a prompt that does not fit the window.
        """
        if self.plain and (raw or not has_chat_template(llm)):
            tokens = llm.encode(self.text)
        elif raw:
            raise InputError(f"{self.where}: a conversation needs the chat template; leave --raw out.")
        else:
            tokens = encode_chat(llm, self.messages)
        if len(tokens) >= llm.window:
            raise InputError(
                f"{self.where}: the prompt has {len(tokens)} tokens, but the window is {llm.window}; "
                f"shorten it to {llm.window - 1} or fewer."
            )
        return tokens


def has_chat_template(llm: LLM) -> bool:
    """True if the model was trained on conversations and its tokenizer knows how they look."""
    return bool(getattr(llm.target.tokenizer, "chat_template", None))


def encode_chat(llm: LLM, messages: Sequence[Message]) -> list[int]:
    """The tokens of a conversation; the template writes the special tokens, so none are added.

    Raises:
        InputError: there is no template, or it refuses the conversation.
    """
    try:
        text = llm.apply_chat_template(messages)
    except InputError:
        raise
    except Exception as error:  # a template is a program of the model's, and raises what it likes
        raise InputError(f"The model's chat template refuses the conversation: {error}") from error
    assert llm.target.tokenizer is not None  # apply_chat_template has used it
    return list(llm.target.tokenizer(text, add_special_tokens=False)["input_ids"])


def gather_prompts(arguments: Sequence[str], file: str | None, limit: int | None = None) -> list[Prompt]:
    """The prompts of a command line: its arguments, or a file's, or the whole of stdin as one.

    Args:
        arguments: prompts given as arguments.
        file: name of a JSONL file, "-" for stdin.
        limit: take only that many.

    Raises:
        InputError: there is no prompt, or one cannot be read.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; it must be at least 1.")
    if arguments and file is not None:
        raise InputError("Prompts came as arguments and with --prompts; give one or the other.")
    if file is not None:
        prompts = read_prompts(file)
    elif arguments:
        prompts = [of_text(_checked(text, f"prompt {n}"), f"prompt {n}") for n, text in enumerate(arguments, 1)]
    else:
        prompts = [] if sys.stdin.isatty() else _from_stdin()
    if not prompts:
        raise InputError(
            "There is no prompt: give one as an argument or on stdin (generate also takes a file with --prompts)."
        )
    return prompts[:limit]


def of_text(text: str, where: str, name: str | None = None, instruction: str = "") -> Prompt:
    """A prompt that is one text; `instruction` goes before it when it is sent as a message."""
    return Prompt(text, ({"role": "user", "content": instruction + text},), where, name)


def read_prompts(file: str) -> list[Prompt]:
    """The prompts of a JSONL file; "-" reads stdin.

    Raises:
        InputError: the file or a line of it cannot be used; the sentence names both.
    """
    name = "stdin" if file == "-" else file
    lines = _decode(_read_bytes(file, name), name).split("\n")  # not splitlines: texts may hold other line ends
    prompts = [parse_row(line, f"{name}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InputError(f"{name} holds no prompts; write one JSON object a line, with {_FIELDS}.")
    return prompts


def parse_row(line: str, where: str) -> Prompt:
    """One line of a JSONL file.

    Raises:
        InputError: it is no JSON object, or none of the known fields is in it and of the right type.
    """
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON ({error.msg} at column {error.colno}).") from error
    except RecursionError as error:
        raise InputError(f"{where}: nested too deeply.") from error
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a JSON object but {_kind(row)}.")
    for field, parse in _PARSERS.items():
        if field in row:
            return parse(row, where)
    raise InputError(f"{where}: none of the fields {_FIELDS} is there.")


def _parse_messages(row: dict[str, Any], where: str) -> Prompt:
    messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{where}: messages must be a list with at least one message.")
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise InputError(f"{where}: every message needs role and content, both strings.")
    kept = tuple({key: _checked(message[key], where) for key in ("role", "content")} for message in messages)
    return Prompt(kept[-1]["content"], kept, where, _name(row), plain=False)


def _parse_turns(row: dict[str, Any], where: str) -> Prompt:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise InputError(f"{where}: turns must be a list of strings with at least one.")
    return of_text(_checked(turns[0], where), where, _name(row))


def _parse_text(field: str) -> Callable[[dict[str, Any], str], Prompt]:
    def parse(row: dict[str, Any], where: str) -> Prompt:
        text = row[field]
        if not isinstance(text, str):
            raise InputError(f"{where}: {field} must be a string, not {_kind(text)}.")
        is_humaneval = field == "prompt" and "task_id" in row
        return of_text(_checked(text, where), where, _name(row), _HUMANEVAL_INSTRUCTION if is_humaneval else "")

    return parse


def _parse_instruction(row: dict[str, Any], where: str) -> Prompt:
    """Instruction data; the first instance's input, where there is one, follows the instruction."""
    text = row["instruction"]
    instances = row.get("instances")
    first = instances[0] if isinstance(instances, list) and instances else {}
    given = first.get("input") if isinstance(first, dict) else None
    if not isinstance(text, str) or not isinstance(given, str | None):
        raise InputError(f"{where}: instruction and input must be strings.")
    return of_text(_checked(f"{text}\n\n{given}" if given else text, where), where, _name(row))


_PARSERS: dict[str, Callable[[dict[str, Any], str], Prompt]] = {
    "messages": _parse_messages,
    "turns": _parse_turns,
    "prompt": _parse_text("prompt"),
    "question": _parse_text("question"),
    "instruction": _parse_instruction,
}


def _name(row: dict[str, Any]) -> str | None:
    name = next((row[key] for key in ("id", "task_id", "question_id") if row.get(key) is not None), None)
    return None if name is None else str(name)


def _from_stdin() -> list[Prompt]:
    text = _decode(_read_bytes("-", "stdin"), "stdin").removesuffix("\n").removesuffix("\r")
    return [of_text(text, "stdin")] if text.strip() else []


def _read_bytes(file: str, name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # a name with a null character
        raise InputError(f"{name!r} cannot be read: {error}.") from error


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}, line {line}: not UTF-8 text.") from error


def _checked(text: str, where: str) -> str:
    """The text, if it is one: a shell argument or a JSON escape may hold half a character.

    Raises:
        InputError: it cannot be written as UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: not UTF-8 text.") from error
    return text


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
