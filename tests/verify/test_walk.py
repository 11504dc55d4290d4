"""Walking down trees: which nodes are accepted, and the joint law of what comes out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from smartree.sampling_params import SamplingParams
from smartree.tree import DraftTree, forest_of, pack
from smartree.tree.packed import PackedTrees
from smartree.verify.sampler import Draw, Sampler
from smartree.verify.walk import Walk, walk
from tests.verify.laws import agrees, law


def packed_trees(trees: Sequence[DraftTree]) -> PackedTrees:
    forest = forest_of(trees)
    return pack(forest, np.arange(forest.batch, len(forest)))


def truth(packed: PackedTrees, tokens: Sequence[Sequence[int]]) -> list[Walk]:
    """Walks where the target says tokens[request][depth] at every depth; records what it was asked."""

    def choose(requests: Sequence[int], rows: Sequence[int]) -> list[int]:
        asked.append((list(requests), list(rows)))
        return [tokens[request][packed.depths[row]] for request, row in zip(requests, rows, strict=True)]

    asked.clear()
    return walk(packed, choose)


asked: list[tuple[list[int], list[int]]] = []
#      root - 5 - 7 - 2
#           |   `- 8
#           `- 6 - 7
TREE = DraftTree.of([-1, 0, 1, 0, -1, 4], [0.5] * 6, [5, 7, 2, 8, 6, 7])


def accepted(packed: PackedTrees, one: Walk) -> list[int]:
    return packed.tokens[one.rows].tolist()


@pytest.mark.parametrize(
    ("says", "path", "tokens"),
    [
        ([1, 1, 1, 1], [], [1]),  # nothing fits: the target's own token, the bonus
        ([5, 7, 2, 9], [5, 7, 2], [5, 7, 2, 9]),
        ([5, 7, 3, 9], [5, 7], [5, 7, 3]),
        ([5, 8, 1, 9], [5, 8], [5, 8, 1]),
        ([6, 7, 2, 9], [6, 7], [6, 7, 2]),  # 2 lies below the other 7
        ([6, 8, 1, 1], [6], [6, 8]),
        ([7, 5, 1, 1], [], [7]),  # 7 is in the tree, not below the root
    ],
)
def test_the_path_that_the_target_says_is_taken(says: list[int], path: list[int], tokens: list[int]) -> None:
    packed = packed_trees([TREE])
    (one,) = truth(packed, [says])
    assert accepted(packed, one) == path
    assert one.tokens == tokens
    above = [packed.parents[row] for row in one.rows]
    assert above == [0, *one.rows][: len(one.rows)]


def test_trees_of_a_batch_are_walked_side_by_side() -> None:
    packed = packed_trees([TREE, DraftTree.of([], []), DraftTree.of([-1], [0.5], [3]), TREE])
    walks = truth(packed, [[5, 8, 1, 1], [4], [3, 0], [1, 1, 1, 1]])
    assert [one.tokens for one in walks] == [[5, 8, 1], [4], [3, 0], [1]]
    assert [accepted(packed, one) for one in walks] == [[5, 8], [], [3], []]
    # Asked once a level, for those that still walk, and only for rows that were reached.
    assert [requests for requests, _ in asked] == [[0, 1, 2, 3], [0, 2], [0]]
    assert asked[0][1] == packed.starts[:-1].tolist()


def test_an_empty_batch() -> None:
    def never(requests: Sequence[int], rows: Sequence[int]) -> list[int]:
        raise AssertionError

    assert walk(packed_trees([]), never) == []


FIRST = [1.0, 0.2, -0.5, 0.7]
SECOND = [[0.1, 0.9, -0.3, 0.4], [1.2, -0.2, 0.3, 0.0], [0.0, 0.0, 1.0, 0.5], [-0.4, 0.8, 0.2, 1.1]]
# Children of the root: tokens 0 and 2; below 0 the tokens 1 and 3, below 2 the token 2. Paths outside happen as often.
SPARSE = DraftTree.of([-1, 0, 0, -1, 3], [0.5] * 5, [0, 1, 3, 2, 2])
FULL = DraftTree.of([-1] * 4 + [parent for parent in range(4) for _ in range(4)], [0.5] * 20, list(range(4)) * 5)


WARM = SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    ("tree", "params"),
    [
        (DraftTree.of([], []), WARM),
        (FULL, WARM),
        (SPARSE, WARM),
        (SPARSE, SamplingParams(temperature=0.8, top_k=3)),
        (SPARSE, SamplingParams(temperature=1.0, top_p=0.75)),
        (SPARSE, SamplingParams(temperature=1.2, top_k=3, top_p=0.9)),
        (SPARSE, SamplingParams(temperature=1.2, min_p=0.45)),
    ],
    ids=["no tree", "full tree", "plain", "top_k", "top_p", "both", "min_p"],
)
def test_pairs_of_tokens_follow_the_joint_law_whatever_the_tree(tree: DraftTree, params: SamplingParams) -> None:
    """p(t1) * p(t2 | t1), over 200,000 draws, although rejected paths end a step early."""
    sampler = Sampler(4, torch.device("cpu"))
    logits = torch.tensor([FIRST, *SECOND])  # row 0 after the prompt, row 1 + t after token t
    batch, position = 20_000, 9
    packed = packed_trees([tree] * batch)
    after = np.where(packed.depths == 1, 1 + packed.tokens, 0)  # row of the logits, for depths 0 and 1
    counts = np.zeros((4, 4))
    for first_seed in range(0, 100_000, batch):

        def choose(requests: Sequence[int], rows: Sequence[int], first_seed: int = first_seed) -> list[int]:
            draws = [
                Draw(int(after[row]), position + int(packed.depths[row]), params, first_seed + request)
                for request, row in zip(requests, rows, strict=True)
                if packed.depths[row] < 2
            ]
            drawn = iter(sampler.draw(logits, draws) if draws else [])
            return [next(drawn) if packed.depths[row] < 2 else -1 for row in rows]

        walks = walk(packed, choose)
        # Whoever stopped after one token goes on with the next step, whose root that token is.
        short = [request for request, one in enumerate(walks) if len(one.tokens) == 1]
        draws = [Draw(1 + walks[request].tokens[0], position + 1, params, first_seed + request) for request in short]
        later = dict(zip(short, sampler.draw(logits, draws) if draws else [], strict=True))
        for request, one in enumerate(walks):
            counts[one.tokens[0], later[request] if request in later else one.tokens[1]] += 1
    expected = law(FIRST, params)[:, None] * np.array([law(row, params) for row in SECOND])
    assert counts.sum() == 100_000
    assert agrees(counts.ravel(), expected.ravel())
