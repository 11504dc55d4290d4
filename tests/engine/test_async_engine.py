"""Many callers at once: their own outputs, their own errors, and nothing left when they go away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from smartree import LLM, InputError, SamplingParams
from smartree.engine.async_engine import AsyncEngine
from smartree.engine.streaming import StreamPiece
from smartree.errors import EngineError
from tests.engine import load
from tests.tiny import character_tokenizer, flat_profile, random_prompts, tiny_model

pytestmark = pytest.mark.usefixtures("still_clock")
TEXTS = ["hello world, hello", "abcabcabc", "what is it?", "hello world, and more"]


def to_end(**settings: Any) -> SamplingParams:
    """Parameters of an output that only its length ends."""
    return SamplingParams(ignore_eos=True, **settings)


@pytest.fixture(scope="module")
def llm() -> LLM:
    model = tiny_model("llama", window=load.WINDOW)
    tokenizer = character_tokenizer()
    return LLM(model, tokenizer=tokenizer, drafter="ngram", profile=flat_profile(), max_batch=8, cache_tokens=20 * 16)


@pytest.fixture(autouse=True)
def nothing_is_left(llm: LLM) -> Iterator[None]:
    threads = threading.active_count()
    yield
    load.assert_nothing_is_held(llm.engine)
    assert not [thread for thread in threading.enumerate() if thread.name == "smartree-engine"]
    assert threading.active_count() <= threads + 1  # asyncio's own helper may stay for a moment


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_two_hundred_at_once_get_their_own_outputs(llm: LLM) -> None:
    prompts = [load.PROMPTS[number % len(load.PROMPTS)] for number in range(200)]
    params = [
        to_end(max_tokens=1 + number % 7, temperature=float(number % 2), seed=number % 5) for number in range(200)
    ]

    async def work() -> None:
        async with AsyncEngine(llm) as engine:
            answers = [engine.generate(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
            outputs = await asyncio.gather(*answers)
        for prompt, one, output in zip(prompts, params, outputs, strict=True):
            assert output.token_ids == load.solo(tuple(prompt), one)
            assert output.finish_reason == "length"
            assert output.prompt_token_ids == prompt

    before = llm.engine.stats.steps
    run(work())
    assert llm.engine.stats.steps - before < 200  # they were decoded together


def test_pieces_make_up_the_output(llm: LLM) -> None:
    params = to_end(max_tokens=30, stop=("zzz",))
    whole = [llm.generate(text, params)[0] for text in TEXTS]

    async def read(engine: AsyncEngine, text: str) -> list[StreamPiece]:
        return [piece async for piece in engine.stream(text, params)]

    async def work() -> None:
        async with AsyncEngine(llm) as engine:
            streams = await asyncio.gather(*[read(engine, text) for text in TEXTS])
        for pieces, output in zip(streams, whole, strict=True):
            assert len(pieces) > 3
            assert "".join(piece.text for piece in pieces) == output.text
            assert [token for piece in pieces for token in piece.token_ids] == output.token_ids
            assert [piece.output is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]
            last = pieces[-1].output
            assert last is not None
            assert (last.text, last.prompt, last.finish_reason) == (output.text, output.prompt, output.finish_reason)
            assert pieces[-1].stats is last.stats

    run(work())


@pytest.mark.parametrize("how", ["close", "cancel", "break"])
def test_a_caller_that_goes_away_ends_its_request_and_no_other(llm: LLM, how: str) -> None:
    long = to_end(max_tokens=70)

    async def leave(engine: AsyncEngine) -> None:
        stream = engine.stream(TEXTS[0], long)
        await anext(stream)
        if how == "close":
            await stream.aclose()
        elif how == "break":
            async for _ in stream:
                break
            await stream.aclose()
        else:
            reading = asyncio.create_task(engine.generate(TEXTS[1], long))
            await anext(stream)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await stream.aclose()

    async def work() -> None:
        async with AsyncEngine(llm) as engine:
            other = asyncio.create_task(engine.generate(TEXTS[2], to_end(max_tokens=20)))
            await leave(engine)
            assert (await other).token_ids == llm_output
            # The thread waits now; a new request finds the batch empty.
            assert (await engine.generate(TEXTS[2], to_end(max_tokens=20))).token_ids == llm_output
            assert llm.engine.unfinished == 0

    llm_output = llm.generate(TEXTS[2], to_end(max_tokens=20))[0].token_ids
    run(work())


@pytest.mark.parametrize(
    ("prompt", "error", "reason"),
    [([1] * 500, InputError, "window"), ([], InputError, "empty"), (["x"], ValueError, "invalid literal")],
)
def test_a_wrong_request_is_its_callers_affair(llm: LLM, prompt: Any, error: type[Exception], reason: str) -> None:
    async def work() -> None:
        async with AsyncEngine(llm) as engine:
            good = asyncio.create_task(engine.generate(TEXTS[0], to_end(max_tokens=12)))
            with pytest.raises(error, match=reason):
                await engine.generate(prompt)
            with pytest.raises(InputError, match="timeout is"):
                await engine.generate(TEXTS[0], timeout=-1)
            assert len((await good).token_ids) == 12

    run(work())


def test_a_step_that_fails_reaches_everybody_and_whoever_comes_later(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = 0

    def broken(*arguments: Any) -> Any:
        nonlocal walks
        walks += 1
        if walks == 4:
            raise MemoryError("no more of it")
        return good(*arguments)

    good = llm.engine._walk
    monkeypatch.setattr(llm.engine, "_walk", broken)

    async def work() -> None:
        async with AsyncEngine(llm) as engine:
            waiting = [engine.generate(prompt, to_end(max_tokens=50)) for prompt in random_prompts([3] * 12)]
            for answer in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(answer, EngineError)
                assert "MemoryError: no more of it" in str(answer)
                assert isinstance(answer.__cause__, MemoryError)
            with pytest.raises(EngineError, match="restart"):
                await engine.generate(TEXTS[0])

    run(work())


def test_closing_answers_those_who_wait(llm: LLM) -> None:
    async def work() -> None:
        engine = AsyncEngine(llm)
        waiting = [asyncio.create_task(engine.generate(text, to_end(max_tokens=70))) for text in TEXTS]
        stream = engine.stream(TEXTS[0], to_end(max_tokens=70))
        await anext(stream)
        await engine.close()
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(answer, EngineError)
        with pytest.raises(EngineError, match="was closed"):
            async for _ in stream:
                pass
        await engine.close()
        with pytest.raises(EngineError, match="was closed"):
            await engine.generate(TEXTS[0])

    run(work())


def test_an_engine_that_nobody_asked_anything_closes(llm: LLM) -> None:
    async def work() -> None:
        async with AsyncEngine(llm) as engine:
            pass
        with pytest.raises(EngineError, match="was closed"):
            await engine.generate(TEXTS[0])

    run(work())


def test_time_runs_out_for_one_of_them(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(llm.engine, "_clock", lambda: now)

    async def work() -> None:
        nonlocal now
        async with AsyncEngine(llm) as engine:
            other = asyncio.create_task(engine.generate(TEXTS[1], to_end(max_tokens=40)))
            stream = engine.stream(TEXTS[0], to_end(max_tokens=75), timeout=5.0)
            pieces = [await anext(stream)]
            now = 6.0
            pieces += [piece async for piece in stream]
            output = pieces[-1].output
            assert output is not None
            assert output.finish_reason == "timeout"
            assert [token for piece in pieces for token in piece.token_ids] == output.token_ids
            assert len(output.token_ids) < 75
            assert (await other).finish_reason == "length"

    run(work())


def test_callers_of_several_loops_share_the_engine(llm: LLM) -> None:
    engine = AsyncEngine(llm)
    found: dict[str, list[int]] = {}

    def caller(text: str) -> None:
        found[text] = asyncio.run(engine.generate(text, to_end(max_tokens=20))).token_ids

    threads = [threading.Thread(target=caller, args=(text,)) for text in TEXTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    run(engine.close())
    expected = llm.generate(TEXTS, to_end(max_tokens=20))
    assert found == {text: output.token_ids for text, output in zip(TEXTS, expected, strict=True)}
