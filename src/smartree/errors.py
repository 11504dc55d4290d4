"""Errors a user can cause, each with one sentence that names the input and the way out."""

from __future__ import annotations


class InputError(ValueError):
    """The caller's input cannot be used. The command line prints it and exits with code 2; Python sees a ValueError."""


class ProfileMismatchError(InputError):
    """A cost profile was measured on another setup than the one it is to be used on."""


class EngineError(RuntimeError):
    """The engine cannot go on: it was closed, or a step failed. Not the caller's fault, unlike `InputError`."""
