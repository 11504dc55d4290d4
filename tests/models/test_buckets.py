"""Padding a pass to its bucket changes neither its logits nor what the cache holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from smartree.models.buckets import Bucket, StaticPass, bucket_of
from smartree.models.load import prepare_model
from smartree.models.packed_pass import RowGroup, causal_group
from smartree.models.runner import ModelRunner
from tests.tiny import VOCAB, tiny_model

WINDOW = 128


def trees(sizes: list[int], cached: list[int], draw: np.random.Generator) -> RowGroup:
    """Random trees behind `cached` rows: every row sees its ancestors."""
    width = max(sizes)
    mask, depths = np.zeros((len(sizes), width, width), bool), []
    for index, size in enumerate(sizes):
        own = np.zeros(size, np.int64)
        mask[index, 0, 0] = True
        for row in range(1, size):
            parent = int(draw.integers(0, row))
            mask[index, row] = mask[index, parent]
            mask[index, row, row] = True
            own[row] = own[parent] + 1
        depths.append(own)
    rows = np.array(cached)
    return RowGroup(list(range(len(sizes))), rows, rows, np.array(sizes), np.concatenate(depths), mask)


def filled(architecture: str, cached: list[int]) -> ModelRunner:
    """A runner whose first slots hold texts of these lengths."""
    runner = ModelRunner(prepare_model(tiny_model(architecture), None, "tiny"), 4, WINDOW)
    runner.cache.ensure_rows(WINDOW + 1, WINDOW + 1)
    for slot, length in enumerate(cached):
        runner.forward([causal_group(slot, 0, length)], np.arange(length) * (slot + 3) % VOCAB)
    return runner


@torch.inference_mode()
def padded_logits(runner: ModelRunner, static: StaticPass, group: RowGroup, tokens: NDArray[np.int64]) -> torch.Tensor:
    """What the runner would give, from the padded pass."""
    static.load(group, tokens)
    output = runner.model(
        input_ids=static.tokens[None], position_ids=static.positions[None], use_cache=False, smartree=static
    )
    logits: torch.Tensor = output.logits[0, : group.rows]
    return logits


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3"])
@pytest.mark.parametrize("cached", [[9], [4, 17, 30]])
def test_padding_changes_neither_logits_nor_cache(architecture: str, cached: list[int]) -> None:
    draw = np.random.default_rng(0)
    plain, padded = filled(architecture, cached), filled(architecture, cached)
    static: dict[Bucket, StaticPass] = {}
    for _ in range(6):
        sizes = draw.integers(1, 6, len(cached)).tolist()
        group, tokens = trees(sizes, cached, draw), draw.integers(0, VOCAB, sum(sizes))
        bucket = bucket_of([group], WINDOW)
        assert bucket is not None
        own = static.setdefault(bucket, StaticPass(bucket, padded.cache))  # the same tensors pass after pass
        found = padded_logits(padded, own, group, tokens)
        torch.testing.assert_close(found, plain.forward([group], tokens), rtol=0, atol=1e-10)
        for slot, (rows, size) in enumerate(zip(cached, sizes, strict=True)):
            for mine, theirs in ((padded.cache.keys, plain.cache.keys), (padded.cache.values, plain.cache.values)):
                ours, expected = mine[:, slot, :, : rows + size], theirs[:, slot, :, : rows + size]
                torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
    assert len(static) < 6  # else no bucket was used twice


def test_a_bucket_has_room_for_its_mask_and_for_the_row_of_padding() -> None:
    draw = np.random.default_rng(1)
    for cached in ([1], [250], [254, 3], [255, 255], [300, 2, 1]):
        for sizes in ([5], [2, 7], [1, 1, 13]):
            some = cached[: len(sizes)] + [1] * (len(sizes) - len(cached))
            group = trees(sizes, some, draw)
            bucket = bucket_of([group], 4096)
            assert bucket is not None
            assert bucket.batch == len(sizes)
            assert bucket.rows >= group.rows
            assert bucket.width >= group.width
            assert bucket.reach > max(some) + bucket.width


def test_what_has_no_bucket_runs_as_it_is() -> None:
    draw = np.random.default_rng(2)
    group = trees([2, 3], [5, 6], draw)
    assert bucket_of([group], WINDOW) is not None
    assert bucket_of([group, causal_group(2, 0, 4)], WINDOW) is None  # prompt chunks
    assert bucket_of([causal_group(1, 4, 2)], WINDOW) is None  # not in the first slots
    assert bucket_of([trees([600], [5], draw)], 4096) is None  # larger than any
