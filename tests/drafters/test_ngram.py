"""Lookup drafting: what is proposed, how likely it is said to be, and what is learned."""

from __future__ import annotations

import numpy as np
import pytest

from smartree.drafters.ngram import NgramDrafter
from smartree.tree.forest import Proposal
from tests.drafters.grown import Text, branches, grow_all


def test_the_continuation_of_a_repeated_text_is_a_chain() -> None:
    text = Text(0, [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3])
    found = branches(grow_all(NgramDrafter(), [text], levels=20))
    assert list(found) == [(4, 5, 6, 7, 8, 1, 2, 3)[:depth] for depth in range(1, 9)]


def test_no_match_no_draft() -> None:
    drafter = NgramDrafter()
    forest = grow_all(drafter, [Text(0, [1, 2, 3, 4]), Text(1, [9])])
    assert len(forest) == 2
    drafter.learn(forest, np.empty(0, np.int64), np.empty(0, bool))


def test_continuations_stop_at_the_depth_limit() -> None:
    text = Text(0, [*range(40), 0, 1, 2])
    found = branches(grow_all(NgramDrafter(max_depth=5), [text], levels=20))
    assert max(len(path) for path in found) == 5


def test_a_longer_match_is_more_likely() -> None:
    chances = []
    for length in range(1, 12):
        part = list(range(length))
        text = Text(0, [50, *part, 70, 71, 51, *part])
        found = branches(grow_all(NgramDrafter(), [text], levels=1))
        chances.append(found[(70,)])
    assert chances == sorted(chances)
    assert chances[-1] > chances[0]


def test_several_matches_make_a_tree_with_the_best_match_first() -> None:
    # "2 3" was followed by 7 after a match of one more token, by 8, and by 9 more recently.
    text = Text(0, [1, 2, 3, 7, 10, 5, 2, 3, 8, 11, 6, 2, 3, 9, 12, 1, 2, 3])
    forest = grow_all(NgramDrafter(), [text], levels=2)
    found = branches(forest)
    assert [path for path in found if len(path) == 1] == [(7,), (9,), (8,)]
    assert {(7, 10), (9, 12), (8, 11)} <= set(found)
    assert forest.rank[1:4].tolist() == [0, 1, 2]
    assert found[(7,)] > found[(9,)]


def test_matches_that_agree_share_their_nodes() -> None:
    text = Text(0, [2, 3, 7, 8, 4, 2, 3, 7, 9, 5, 2, 3])
    found = branches(grow_all(NgramDrafter(), [text], levels=2))
    assert set(found) == {(7,), (7, 9), (7, 8)}


def test_only_so_many_matches_are_merged() -> None:
    text = Text(0, [token for follow in range(10, 30) for token in (1, follow)] + [1])
    for most in (1, 3):
        assert len(branches(grow_all(NgramDrafter(max_matches=most), [text], levels=1))) == most


def test_siblings_are_different_tokens_and_probabilities_are_probabilities() -> None:
    draw = np.random.default_rng(0)
    drafter = NgramDrafter()
    texts = [Text(index, draw.integers(0, 4, 60).tolist()) for index in range(4)]
    forest = grow_all(drafter, texts, levels=6)
    assert len(forest) > 20
    below = np.arange(4, len(forest))
    pairs = list(zip(forest.parent[below].tolist(), forest.token[below].tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert np.all((forest.probability > 0) & (forest.probability <= 1))
    assert forest.proposal is Proposal.POINT_MASS


def test_every_path_occurs_in_the_text_after_its_last_token() -> None:
    draw = np.random.default_rng(1)
    text = Text(0, draw.integers(0, 5, 80).tolist())
    joined = "".join(map(str, text.tokens[:-1])) + str(text.tokens[-1])
    for path in branches(grow_all(NgramDrafter(), [text], levels=8)):
        assert str(text.tokens[-1]) + "".join(map(str, path)) in joined


def test_requests_do_not_see_each_others_texts() -> None:
    one, two = [1, 2, 3, 4, 1, 2], [1, 2, 30, 40, 50, 1, 2]
    together = grow_all(NgramDrafter(), [Text(0, one), Text(1, two)])
    assert branches(together, 0) == branches(grow_all(NgramDrafter(), [Text(0, one)]))
    assert branches(together, 1) == branches(grow_all(NgramDrafter(), [Text(1, two)]))


def test_committed_tokens_are_read_with_the_next_step() -> None:
    drafter = NgramDrafter()
    text = Text(0, [1, 2, 3])
    assert branches(grow_all(drafter, [text])) == {}
    text.tokens += [9, 2, 3]  # several at a time, as after an accepted path
    assert (9, 2, 3) in branches(grow_all(drafter, [text]))


def test_a_released_request_is_forgotten() -> None:
    drafter = NgramDrafter()
    grow_all(drafter, [Text(0, [1, 2, 3, 1])])
    drafter.release(0)
    drafter.release(0)
    assert set(branches(grow_all(drafter, [Text(0, [7, 8, 7])]))) == {(8,), (8, 7)}


@pytest.mark.parametrize("accepted", [True, False])
def test_outcomes_move_the_probabilities(accepted: bool) -> None:
    drafter = NgramDrafter()
    text = Text(0, [1, 2, 3, 4, 5, 1, 2, 3])
    before = branches(grow_all(drafter, [text]))
    for _ in range(20):
        forest = grow_all(drafter, [text])
        drafter.learn(forest, np.array([1]), np.array([accepted]))
    after = branches(grow_all(drafter, [text]))
    assert (after[(4,)] > before[(4,)]) == accepted
    assert 0 < after[(4,)] < 1
    # Another request profits from the same lesson.
    other = branches(grow_all(drafter, [Text(1, [6, 7, 8, 9, 6, 7, 8])]))
    assert (other[(9,)] > before[(4,)]) == accepted


def test_probabilities_are_the_observed_rates_in_the_long_run() -> None:
    # Texts whose repetitions go on as before in 3 of 4 cases.
    draw = np.random.default_rng(2)
    drafter = NgramDrafter()
    for index in range(400):
        text = Text(index, [1, 2, 3, 4, 9, 1, 2, 3])
        forest = grow_all(drafter, [text], levels=1)
        drafter.learn(forest, np.array([1]), draw.random(1) < 0.75)
        drafter.release(index)
    fresh = branches(grow_all(drafter, [Text(999, [1, 2, 3, 4, 9, 1, 2, 3])], levels=1))
    assert fresh[(4,)] == pytest.approx(0.75, abs=0.06)
