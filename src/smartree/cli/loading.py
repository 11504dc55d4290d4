"""Loads a model for a verb, with progress on stderr."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rich.progress import Progress

from smartree.cli.terminal import note, progress_bar
from smartree.config import EngineConfig

if TYPE_CHECKING:
    from smartree.cost.profile import Profile
    from smartree.engine.llm import LLM


def load_llm(settings: EngineConfig) -> LLM:
    """Loads the model, and measures the machine if its profile is needed and there is none yet.

    Raises:
        InputError: something does not exist or does not fit.
    """
    with progress_bar() as bar:
        task = bar.add_task(f"Loading {settings.model}", total=None)
        # The hub writes a line for every try to reach it; the error that comes of it is said once, by us.
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
        from smartree.engine.llm import LLM  # imports torch, which takes seconds

        measuring = MeasuringProgress(bar)
        return LLM(
            settings.model,
            drafter=settings.drafter,
            policy=settings.policy,
            dtype=settings.dtype,
            device=settings.device,
            max_batch=settings.max_batch,
            max_model_len=settings.max_model_len,
            prefill_tokens=settings.prefill_tokens,
            cache_tokens=settings.cache_tokens,
            prefix_reuse=settings.prefix_reuse,
            profile=settings.profile,
            progress=lambda done, expected: measuring(done, expected, replaces=task),
        )


def measure_profile(llm: LLM) -> Profile:
    """Measures the machine anew, with progress, and saves the profile."""
    with progress_bar() as bar:
        return llm.measure(MeasuringProgress(bar))


def remember(llm: LLM) -> None:
    """Saves what the engine has learned for the next start; failing to is no reason to fail."""
    try:
        llm.save_learned()
    except OSError as error:
        note(f"What was learned could not be saved: {error.strerror}.")


class MeasuringProgress:
    """Shows how far a measurement is; says first that there is one, and about how long it takes."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: Any = None

    def __call__(self, done: int, expected: int, *, replaces: Any = None) -> None:
        """Takes passes done and passes expected; `replaces` is the task of loading, which is over now."""
        if self._task is None:
            if replaces is not None:
                self._bar.remove_task(replaces)
            once = "" if replaces is None else " once"
            text = f"Measuring this machine{once} (about 12 s) ..."
            self._bar.console.print(text, style="dim", soft_wrap=True)
            self._task = self._bar.add_task("Measuring", total=expected)
        self._bar.update(self._task, completed=done, total=expected)
