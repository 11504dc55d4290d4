"""What is new of a request: every token once, text when it is certain."""

from __future__ import annotations

from smartree import LLM, SamplingParams
from smartree.engine.streaming import OutputStream
from tests.engine import load
from tests.tiny import character_tokenizer, flat_profile, tiny_model

TEXT = "hello world, hello"
PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)


def test_pieces_are_the_output_with_its_counts() -> None:
    model = tiny_model("llama", window=load.WINDOW)
    llm = LLM(model, tokenizer=character_tokenizer(), drafter="ngram", profile=flat_profile())
    (whole,) = llm.generate(TEXT, PARAMS)
    pieces = list(llm.stream_pieces(TEXT, PARAMS))
    assert [token for piece in pieces for token in piece.token_ids] == whole.token_ids
    assert "".join(piece.text for piece in pieces) == whole.text
    assert all(piece.token_ids for piece in pieces)
    assert pieces[-1].output is not None
    assert pieces[-1].output.token_ids == whole.token_ids
    assert pieces[-1].stats is pieces[-1].output.stats
    assert pieces[-1].stats.tokens == 39
    stop = whole.text[20:24]
    cut = list(llm.stream_pieces(TEXT, SamplingParams(max_tokens=40, ignore_eos=True, stop=(stop,))))
    # What may still become a stop string is held back until that is known.
    assert "".join(piece.text for piece in cut) == whole.text[: whole.text.index(stop)]
    assert cut[-1].output is not None
    assert cut[-1].output.finish_reason == "stop"
    load.assert_nothing_is_held(llm.engine)


def test_a_model_without_tokenizer_streams_tokens() -> None:
    llm = LLM(tiny_model("llama", window=load.WINDOW), drafter="none", policy="none")
    pieces = list(llm.stream_pieces([1, 2, 3], PARAMS))
    assert [token for piece in pieces for token in piece.token_ids] == load.solo((1, 2, 3), PARAMS)
    assert {piece.text for piece in pieces} == {""}


def test_nothing_new_is_no_piece() -> None:
    llm = LLM(tiny_model("llama", window=load.WINDOW), drafter="none", policy="none", prefill_tokens=2)
    request = llm.engine.add([1, 2, 3, 4], PARAMS)
    stream = OutputStream(request, None)
    llm.engine.step()
    assert stream.more() is None
    llm.engine.step()
    piece = stream.more()
    assert piece is not None
    assert piece.token_ids == request.output
    assert stream.more() is None
