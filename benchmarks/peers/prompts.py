"""The prompts of the comparison: those of `smartree bench`, its suites in turn."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from smartree import LLM
from smartree.bench.suites import encode, load_suite

SUITES = ("mt_bench", "humaneval", "gsm8k")
_FEWEST, _FULL_BATCHES = 6, 2
_FINGERPRINTED = 36


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids for each batch size.

    Attributes:
        by_batch: prompts of a batch size.
        fingerprint: of data, chat template and tokenizer, the same whichever batch sizes are asked for.
    """

    by_batch: dict[int, list[list[int]]]
    fingerprint: str


def load_prompts(data: Path, batches: list[int], count: int | None) -> Prompts:
    """Reads and encodes them.

    Args:
        data: folder of the suites' files.
        batches: batch sizes.
        count: of prompts for each batch size; None takes two full batches, and at least 6.

    Raises:
        InputError: a suite is not there.
    """
    llm = LLM("demo", drafter="none", policy="none", max_batch=1)
    by_batch = {
        batch: _spread(llm, data, count or batch * max(_FULL_BATCHES, -(-_FEWEST // batch))) for batch in batches
    }
    known = json.dumps(_spread(llm, data, _FINGERPRINTED))
    return Prompts(by_batch, hashlib.sha256(known.encode()).hexdigest()[:12])


def _spread(llm: LLM, data: Path, count: int) -> list[list[int]]:
    """As many prompts, spread over each suite, the suites in turn."""
    each = -(-count // len(SUITES))
    suites = [encode(llm, load_suite(name, data, each, False), False).measured for name in SUITES]
    return [prompt for together in zip(*suites, strict=True) for prompt in together][:count]
