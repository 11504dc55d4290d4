"""Guides over tokens: what may follow, ends, refusals."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch

from smartree.errors import InputError
from smartree.guide import Guide
from smartree.verify.grammar import Grammar, GrammarCompiler
from tests.byte_tokenizer import BYTES_VOCAB, END, TURN_END, byte_tokenizer
from tests.tiny import character_tokenizer

CPU = torch.device("cpu")
VOCAB = BYTES_VOCAB + 7  # rows of logits beyond the tokenizer's own, as padded checkpoints have them
TOKENIZER = byte_tokenizer()


def allowed(grammar: Grammar) -> set[str]:
    """What may follow, as texts; ends by their names."""
    mask = grammar.allowed(CPU)
    assert mask.shape == (VOCAB,)
    return {str(TOKENIZER.decode([token])) for token in torch.nonzero(mask)[:, 0].tolist()}


def grammar(**guide: object) -> Grammar:
    pytest.importorskip("llguidance")
    return GrammarCompiler(TOKENIZER, VOCAB, {END, TURN_END}).compile(Guide(**guide))  # type: ignore[arg-type]


def push(grammar: Grammar, text: str) -> None:
    for token in TOKENIZER(text)["input_ids"]:
        assert grammar.allowed(CPU)[token], (text, token)
        grammar.push(token)


DIGITS = set("0123456789")


def test_an_expression_says_what_may_follow_and_where_the_end_may_be() -> None:
    state = grammar(regex="[0-9]{2,3}")
    assert allowed(state) == DIGITS | {"12"}
    push(state, "5")
    assert allowed(state) == DIGITS | {"12"}
    push(state, "7")
    assert allowed(state) == DIGITS | {"<eos>", "<turn>"}
    push(state, "7")
    assert allowed(state) == {"<eos>", "<turn>"}


def test_one_text_of_several_also_where_one_begins_another() -> None:
    state = grammar(choice=["yes", "ye", 'say "no"'])
    assert allowed(state) == {"y", "yes", "s"}
    state.push(TOKENIZER("y")["input_ids"][0])
    assert allowed(state) == {"e", "es"}
    push(state, "e")
    assert allowed(state) == {"s", "<eos>", "<turn>"}
    quoted = grammar(choice=['say "no"'])
    push(quoted, 'say "no"')
    assert allowed(quoted) == {"<eos>", "<turn>"}


def test_a_schema_with_bounded_whitespace() -> None:
    state = grammar(json_schema={"type": "object", "properties": {"a": {"enum": [True, "x"]}}, "required": ["a"]})
    push(state, '{"a":')
    assert allowed(state) >= {"t", "tr", "true", '"', " ", "\n"}
    push(state, " " * 20)
    assert allowed(state) == {"t", "tr", "true", '"'}


def test_what_comes_behind_the_end_is_nobodys_business() -> None:
    # A walk goes on along an accepted path although the request has ended there.
    state = grammar(choice=["y"])
    push(state, "y")
    state.push(END)
    state.push(TOKENIZER("z")["input_ids"][0])
    state.push(END)
    assert state.allowed(CPU).any()


def test_a_restart_forgets_the_output_and_its_end() -> None:
    state = grammar(choice=["yes", "true"])
    for text in ("yes", "true"):
        push(state, text)
        state.push(END)
        state.push(END)
        state.restart()
        assert allowed(state) == {"y", "yes", "t", "tr", "true"}


def test_every_output_has_a_state_of_its_own() -> None:
    pytest.importorskip("llguidance")
    compiler = GrammarCompiler(TOKENIZER, VOCAB, {END})
    guides = [Guide(regex=f"a{{{count}}}") for count in range(1, 40)]  # more than are kept
    for guide, count in [*zip(guides, range(1, 40), strict=True), *zip(guides, range(1, 40), strict=True)]:
        state = compiler.compile(guide)
        push(state, "a" * count)
        assert allowed(state) == {"<eos>"}
        assert allowed(compiler.compile(guide)) == {"a"}
    assert len(compiler._compiled) == 16


@pytest.mark.parametrize(
    ("guide", "word"),
    [
        (Guide(regex="[0-9"), "regex '[0-9'"),
        (Guide(regex="(?=a)b"), "regex"),
        (Guide(json_schema={"type": "objekt"}), "JSON schema"),
        (Guide(json_schema={"not": {}}), "JSON schema"),
    ],
)
def test_what_the_library_does_not_know_is_refused_in_one_sentence(guide: Guide, word: str) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(InputError, match=rf"^The guide's {re.escape(word)}.* cannot be used: [^\n]+$"):
        GrammarCompiler(TOKENIZER, VOCAB, {END}).compile(guide)


def test_models_that_cannot_be_guided() -> None:
    pytest.importorskip("llguidance")
    guide = Guide(regex="a")
    for tokenizer, ends, why in (
        (None, {END}, "a model with a tokenizer"),
        (TOKENIZER, set(), "a model with a end-of-sequence token"),
        (TOKENIZER, {VOCAB}, "a model with a end-of-sequence token"),
        (character_tokenizer(), {1}, "cannot use this model's tokenizer: can't determine decoder"),
    ):
        with pytest.raises(InputError, match=why):
            GrammarCompiler(tokenizer, VOCAB, ends).compile(guide)
    with pytest.raises(InputError, match="cannot use this model's tokenizer: vocab size too small"):
        GrammarCompiler(TOKENIZER, 100, {END}).compile(guide)


def test_without_the_library_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smartree.verify.grammar.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "llguidance", raising=False)
    with pytest.raises(InputError, match=r'needs llguidance; `pip install "smartree\[guided\]"` brings it\.$'):
        GrammarCompiler(TOKENIZER, VOCAB, {END}).compile(Guide(regex="a"))


def test_a_grammar_that_becomes_too_complex_says_so_and_allows_what_nobody_keeps() -> None:
    class Broken:
        def deep_copy(self) -> Broken:
            return Broken()

        def try_consume_tokens(self, tokens: list[int]) -> int:
            return 0

        def compute_bitmask(self) -> bytes:
            return b"\xff" * VOCAB

        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "too complex\nat item 3"

    for use in (lambda one: one.push(3), lambda one: one.allowed(CPU)):
        broken = Grammar(Broken(), VOCAB)  # type: ignore[arg-type]
        use(broken)
        assert broken.failure == "too complex"
        assert bool(broken.allowed(CPU).all())


def test_a_grammar_that_has_failed_begins_again_like_a_new_one() -> None:
    """By the library itself: an ambiguous grammar has more and more parses."""
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer

    tokenizer = from_tokenizer(TOKENIZER, n_vocab=VOCAB, eos_token=[END])
    one = Grammar(LLMatcher(tokenizer, LLMatcher.grammar_from_lark('start: x\nx: "a" x "b" | x x | "a"')), VOCAB)
    first = one.allowed(CPU)
    for _ in range(3000):
        one.push(TOKENIZER.encode("a")[0])
        one.allowed(CPU)
        if one.failure is not None:
            break
    assert one.failure
    assert bool(one.allowed(CPU).all())
    one.restart()
    assert one.failure is None
    assert torch.equal(one.allowed(CPU), first)
    assert not bool(first.all())


def test_schemas_are_followed_token_by_token() -> None:
    """Whatever allowed tokens a text is made of, it fits the schema once it may end."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 4}, "size": {"type": "integer", "maximum": 20}},
        "required": ["name", "size"],
        "additionalProperties": False,
    }
    draw = torch.Generator().manual_seed(0)
    ended = 0
    for _ in range(20):
        state, tokens = grammar(json_schema=schema), list[int]()
        for _ in range(120):
            choices = torch.nonzero(state.allowed(CPU))[:, 0]
            token = int(choices[torch.randint(len(choices), (), generator=draw)])
            if token in (END, TURN_END):
                ended += 1
                value = json.loads(str(TOKENIZER.decode(tokens)))
                assert set(value) == {"name", "size"}
                assert len(value["name"]) <= 4
                assert isinstance(value["size"], int)
                assert value["size"] <= 20
                break
            tokens.append(token)
            state.push(token)
    assert ended > 5
