"""A tokenizer of bytes and a few merges with three special tokens, for tests of guided decoding."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END, TURN_END = 1, 2  # both end an output
_MERGES = [
    ("t", "r"),
    ("u", "e"),
    ("tr", "ue"),
    ("{", '"'),
    ("1", "2"),
    ('"', ":"),
    ("e", "s"),
    ("y", "es"),
    ("}", "}"),
]
BYTES_VOCAB = 3 + 256 + len(_MERGES)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """<bos>, <eos>, <turn>, the 256 bytes, and tokens of several bytes: merges that cross the parts of a JSON text."""
    tokens = ["<bos>", "<eos>", "<turn>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocab = {token: index for index, token in enumerate([*tokens, *("".join(pair) for pair in _MERGES)])}
    tokenizer = Tokenizer(models.BPE(vocab, _MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", additional_special_tokens=["<turn>"]
    )
