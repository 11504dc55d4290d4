"""Lets the target write a corpus: it answers prompts from files and prompts that it writes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from zlib import crc32

from smartree.engine.engine import Engine
from smartree.engine.llm import LLM
from smartree.engine.request import Request
from smartree.errors import InputError
from smartree.policies.none import NonePolicy
from smartree.sampling_params import SamplingParams
from smartree.train.corpus import Corpus, Text
from smartree.train.features import FeatureStore
from smartree.train.recorder import FeatureRecorder

Progress = Callable[[int, int], None]
_OWN_PROMPT = "own"
_MARK = "\x00here the user speaks\x00"
_LONGEST_OWN_PROMPT = 160
_MOST_FRUITLESS = 200  # own prompts that came to nothing before the first did not: then writing is given up
_PATIENCE = 10  # times as many, in a row, once one was finished: a corpus of before notes no failures
_OWN_TOP_K = 100  # keeps the prompts sensible; cheaper than top_p, which would have to sort most of the vocabulary


@dataclass(frozen=True, slots=True)
class WritingConfig:
    """How much text of which kind.

    Attributes:
        tokens: answer tokens wanted in all.
        max_tokens: longest answer.
        temperatures: of the answers, in turn; a file's prompt is answered once at each.
        openers: how the user turns begin that the target writes itself, in turn; "" leaves all to the target.
        own_prompts: whether the target writes prompts at all (they are half of the texts then).

    Raises:
        InputError: a value is out of range.
    """

    tokens: int
    max_tokens: int = 256
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    openers: tuple[str, ...] = ("", "Write a Python function", "", "How", "", "```python\ndef ", "", "Explain", "What")
    own_prompts: bool = True

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.max_tokens < 1:
            raise InputError(f"tokens is {self.tokens} and max_tokens {self.max_tokens}; both must be at least 1.")
        if not self.temperatures or not self.openers:
            raise InputError("temperatures and openers each need at least one entry.")


@dataclass(frozen=True, slots=True)
class Job:
    """One text to write: `prompt` is answered, or finished by the target first if it is the start of a user turn."""

    key: str
    prompt: tuple[int, ...]
    temperature: float
    own: bool = False

    @property
    def seed(self) -> int:
        """Of its noise: the same job always writes the same text."""
        return crc32(self.key.encode())


class Writer:
    """Fills a corpus; jobs that it already holds are skipped."""

    def __init__(
        self,
        llm: LLM,
        corpus: Corpus,
        config: WritingConfig,
        store: FeatureStore | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        """Args:
        llm: the target; `max_batch` texts are written at a time.
        corpus: where they go.
        config: how much of what.
        store: also takes the hidden states of the texts, which the engine computes anyway.
        limit_bytes: largest size of the store; None sets no limit.
        """
        self.llm, self.corpus, self.config, self.store = llm, corpus, config, store
        self._limit_bytes = limit_bytes
        self._recorder = FeatureRecorder(store.layers) if store is not None else None
        self.engine = Engine(
            llm.target, self._recorder, NonePolicy(), max_batch=llm.config.max_batch, window=llm.window
        )
        self._before, self._after = user_turn(llm) if config.own_prompts else ([], [])
        self._running: dict[int, tuple[Request, Job, tuple[int, ...] | None]] = {}
        self._fruitless = 0
        self._finishes = any(key.startswith(f"{_OWN_PROMPT}:") for key in corpus.keys - corpus.given_up)

    def write(self, sources: Mapping[str, Sequence[Sequence[int]]], progress: Progress | None = None) -> None:
        """Writes until the corpus holds the wanted tokens or every job is done.

        Args:
            sources: prompts as token ids, by the name of where they come from.
            progress: called with (answer tokens, wanted) after every text.

        Raises:
            InputError: the target finishes none of the prompts that it writes itself, or the disk is full.
        """
        jobs = (job for job in self.jobs(sources) if job.key not in self.corpus.keys)
        more = True
        try:
            while self.corpus.answer_tokens < self.config.tokens:
                while more and len(self._running) < self.llm.config.max_batch:
                    job = next(jobs, None)
                    more = job is not None and self._start(job)
                if not self._running:
                    return
                for request in self.engine.step():
                    if request.finish_reason is not None:
                        self._ended(request)
                        if progress is not None:
                            progress(self.corpus.answer_tokens, self.config.tokens)
        finally:
            for request, _, _ in self._running.values():
                if request.finish_reason is None:  # others ended in the very step that was interrupted
                    self.engine.abort(request)
            self._running.clear()

    def jobs(self, sources: Mapping[str, Sequence[Sequence[int]]]) -> Iterator[Job]:
        """All texts to write, sources in turn so that any beginning is a fair mixture; endless with own prompts."""
        files = {name: self._file_jobs(name, prompts) for name, prompts in sources.items() if prompts}
        own = self._own_jobs() if self.config.own_prompts else iter(())
        while files or self.config.own_prompts:
            for name in list(files):
                job = next(files[name], None)
                if job is None:
                    del files[name]
                    continue
                yield job
                if self.config.own_prompts:
                    yield next(own)
            if not files and self.config.own_prompts:
                yield from own

    def _file_jobs(self, name: str, prompts: Sequence[Sequence[int]]) -> Iterator[Job]:
        kinds = self.config.temperatures
        for turn in range(len(kinds)):
            for index, prompt in enumerate(prompts):
                yield Job(f"{name}:{index}:{turn}", tuple(prompt), kinds[(index + turn) % len(kinds)])

    def _own_jobs(self) -> Iterator[Job]:
        kinds = self.config.temperatures
        openers = [tuple(self.llm.encode(opener)) if opener else () for opener in self.config.openers]
        for index in count():
            prompt = (*self._before, *openers[index % len(openers)])
            # The answer's temperature turns once all openers have had their turn.
            yield Job(f"{_OWN_PROMPT}:{index}", prompt, kinds[(index // len(openers)) % len(kinds)], own=True)

    def _start(self, job: Job) -> bool:
        room = self.llm.window - len(job.prompt) - 1
        if room < 1:  # a prompt as long as the window cannot be answered
            if job.own:
                self._note_fruitless(job)
            return True
        if job.own:
            limit = min(_LONGEST_OWN_PROMPT, room)
            params = SamplingParams(max_tokens=limit, temperature=1.0, top_k=_OWN_TOP_K, seed=job.seed)
            self._add(job.prompt, params, job, None)
        else:
            self._answer(job, job.prompt)
        return True

    def _answer(self, job: Job, prompt: tuple[int, ...]) -> None:
        limit = min(self.config.max_tokens, self.llm.window - len(prompt) - 1)
        params = SamplingParams(max_tokens=limit, temperature=job.temperature, seed=job.seed)
        self._add(prompt, params, job, prompt)

    def _add(self, tokens: Sequence[int], params: SamplingParams, job: Job, prompt: tuple[int, ...] | None) -> None:
        request = self.engine.add(tokens, params)
        self._running[request.id] = (request, job, prompt)

    def _ended(self, request: Request) -> None:
        _, job, prompt = self._running.pop(request.id)
        states = self._recorder.pop(request.id) if self._recorder is not None else None
        if prompt is not None:
            if self.store is not None and states is not None and self._has_room(self.store):
                self.store.append(job.key, states)
            self.corpus.append(Text(job.key, prompt, tuple(request.output)))
            if job.own:
                self._finishes, self._fruitless = True, 0
            return
        written = (*request.tokens[:-1], *self._after)
        # An endless prompt is nobody's question.
        if request.finish_reason == "stop" and len(request.output) > 1 and len(written) + 1 < self.llm.window:
            self._answer(job, written)
        else:
            self._note_fruitless(job)

    def _has_room(self, store: FeatureStore) -> bool:
        return self._limit_bytes is None or store.total_bytes < self._limit_bytes

    def _note_fruitless(self, job: Job) -> None:
        self.corpus.give_up(job.key)
        self._fruitless += 1
        if self._fruitless >= _MOST_FRUITLESS * (_PATIENCE if self._finishes else 1):
            raise InputError(
                f"{self.llm.target.name!r} finished none of {self._fruitless} prompts that it began; give it prompts "
                "instead."
            )


def user_turn(llm: LLM) -> tuple[list[int], list[int]]:
    """Tokens before and after what the user says in a conversation of one message.

    Raises:
        InputError: the model has no chat template.
    """
    text = llm.apply_chat_template([{"role": "user", "content": _MARK}])
    before, _, after = text.partition(_MARK)
    assert llm.target.tokenizer is not None  # apply_chat_template has used it
    ids = [llm.target.tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, after)]
    return list(ids[0]), list(ids[1])
