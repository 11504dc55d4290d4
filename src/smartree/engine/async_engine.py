"""The engine for asyncio: many callers, one thread that runs the steps."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType

from smartree.engine.engine import Engine
from smartree.engine.llm import LLM, Prompt
from smartree.engine.output import RequestOutput
from smartree.engine.streaming import OutputStream, StreamPiece
from smartree.errors import EngineError
from smartree.sampling_params import SamplingParams


class AsyncEngine:
    """Answers any number of callers of one or several event loops; a server's way to an `LLM`.

    >>> async with AsyncEngine(llm) as engine:
    ...     async for piece in engine.stream("Once upon a time", SamplingParams(max_tokens=32)):
    ...         print(piece.text, end="")

    One background thread reads prompts, runs steps and writes text, so that neither the engine nor the tokenizer is
    ever used from two threads; the `LLM` belongs to it until `close`. A caller that goes away (its task is cancelled,
    its generator closed) ends its request after the running step. Pieces wait for slow callers without limit.
    """

    def __init__(self, llm: LLM, engine: Engine | None = None) -> None:
        """Args:
        llm: the model; nobody else may use it meanwhile.
        engine: one of `llm.make_engine`; None takes the model's own.
        """
        self._llm = llm
        self._engine = engine or llm.engine
        self._orders: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._streams: dict[int, _Stream] = {}
        self._closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="smartree-engine", daemon=True)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, timeout: float | None = None
    ) -> RequestOutput:
        """The whole output of one prompt; arguments and errors as `stream`'s."""
        async with aclosing(self.stream(prompt, params, timeout=timeout)) as pieces:
            async for piece in pieces:
                if piece.output is not None:
                    return piece.output
        raise AssertionError("the last piece carries the output")

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, timeout: float | None = None
    ) -> AsyncGenerator[StreamPiece, None]:
        """The output of one prompt, piece by piece; the last piece carries all of it.

        Args:
            prompt: text or token ids.
            params: how to sample and when to end; None takes the defaults.
            timeout: seconds after which it ends with "timeout" and what it has; None waits.

        Raises:
            InputError: the prompt or its parameters cannot be used.
            EngineError: the engine was closed, or a step failed; this request is lost then.
        """
        stream = _Stream(asyncio.get_running_loop())
        self._order(lambda: self._open(stream, prompt, params or SamplingParams(), timeout))
        try:
            while True:
                answer = await stream.answers.get()
                if isinstance(answer, Exception):
                    raise answer
                yield answer
                if answer.output is not None:
                    return
        finally:
            stream.wanted = False
            self._order(lambda: self._abandon(stream), late=True)

    async def close(self) -> None:
        """Ends the thread after the running step; whoever still waits gets an `EngineError`. Twice is harmless."""
        with self._wake:
            self._closing = True
            self._wake.notify()
            started = self._thread.ident is not None
        if started:
            await asyncio.to_thread(self._thread.join)

    def _order(self, order: Callable[[], None], late: bool = False) -> None:
        """Has the thread do something between two steps.

        Args:
            order: what to do.
            late: nothing is wrong if the thread is gone.
        """
        with self._wake:
            if self._failure is not None or self._closing:
                if late:
                    return
                raise self._over()
            self._orders.append(order)
            if self._thread.ident is None:
                self._thread.start()
            self._wake.notify()

    def _over(self) -> EngineError:
        if self._failure is None:
            return EngineError("The engine was closed; make another one for further requests.")
        error = EngineError(
            f"A step of the engine failed ({type(self._failure).__name__}: {self._failure}); restart the engine."
        )
        error.__cause__ = self._failure
        return error

    # What follows runs in the thread only.

    def _run(self) -> None:
        try:
            while self._obey():
                if self._engine.unfinished:
                    self._engine.step()
                    self._tell()
        except Exception as error:  # whatever it is, every caller has to hear of it
            with self._wake:
                self._failure = error
        for stream in list(self._streams.values()):
            stream.tell(self._over())
            self._abandon(stream)
        with self._wake:
            orders, self._orders = self._orders, deque()
        for order in orders:  # requests that came too late are opened, told and dropped
            order()

    def _obey(self) -> bool:
        """Does what was ordered, waiting for orders if there is nothing else to do; False if this is the end."""
        with self._wake:
            while not (self._orders or self._closing or self._engine.unfinished):
                self._wake.wait()
            if self._closing:
                return False
            orders, self._orders = self._orders, deque()
        for order in orders:
            order()
        return True

    def _open(self, stream: _Stream, prompt: Prompt, params: SamplingParams, timeout: float | None) -> None:
        if self._closing or self._failure is not None:
            stream.tell(self._over())
            return
        if not stream.wanted:
            return
        try:
            request = self._engine.add(self._llm.encode(prompt), params, timeout)
        except Exception as error:  # this caller's alone: the others go on
            stream.tell(error)
            return
        stream.prompt, stream.output = prompt, OutputStream(request, self._llm.target.tokenizer)
        self._streams[request.id] = stream

    def _abandon(self, stream: _Stream) -> None:
        if stream.output is not None:
            self._engine.abort(stream.output.request)
            self._streams.pop(stream.output.request.id, None)

    def _tell(self) -> None:
        """Hands out what the step brought."""
        for stream in list(self._streams.values()):
            assert stream.output is not None
            request = stream.output.request
            if request.finish_reason is None:
                piece = stream.output.more()
            else:
                piece = stream.output.last(self._llm.output_of(stream.prompt, request))
                del self._streams[request.id]
            if piece is not None and not stream.tell(piece):
                self._abandon(stream)


class _Stream:
    """One caller.

    Attributes:
        wanted: False once the caller is gone.
        output: what it waits for; None until the thread has opened it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.answers: asyncio.Queue[StreamPiece | Exception] = asyncio.Queue()
        self.wanted = True
        self.prompt: Prompt = ""
        self.output: OutputStream | None = None

    def tell(self, answer: StreamPiece | Exception) -> bool:
        """Hands something to the caller; False if its event loop is gone."""
        try:
            self.loop.call_soon_threadsafe(self.answers.put_nowait, answer)
        except RuntimeError:  # asyncio's word for a closed loop
            return False
        return True
