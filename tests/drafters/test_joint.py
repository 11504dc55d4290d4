"""Lookup and levels in one tree: what is planted, what is drafted beside it, who learns from what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartree.drafters.factory import make_drafter
from smartree.drafters.joint import JointDrafter, Named, beside_planted
from smartree.drafters.model import ModelDrafter
from smartree.drafters.ngram import NgramDrafter
from smartree.errors import InputError
from smartree.models.load import prepare_model
from smartree.tree.forest import Candidates, Forest
from tests.drafters.grown import Text
from tests.tiny import tiny_model

QUOTED = [5, 6, 7, 8, 9, 10, 11, 1, 2, 5, 6, 7]
NEW = [20, 21, 22, 23, 24]


def joint(lookup: NgramDrafter | None = None) -> JointDrafter:
    target = prepare_model(tiny_model(), None, "target")
    return JointDrafter(ModelDrafter(target, target.vocab_size, 4, 100, top_k=4), lookup)


def planted(drafter: JointDrafter, *texts: list[int], limit: int = 50, least: float = 0.0) -> tuple[list[Text], Forest]:
    requests = [Text(index, list(text)) for index, text in enumerate(texts)]
    forest = Forest(np.array([text.tokens[-1] for text in requests]))
    drafter.plant(requests, forest, np.full(len(texts), limit), least)
    return requests, forest


def children(
    parents: list[int], tokens: list[int], probabilities: list[float], ranks: list[int] | None = None
) -> Candidates:
    count = len(parents)
    places = ranks if ranks is not None else list(range(count))
    return Candidates(
        np.array(parents, np.int64),
        np.array(tokens, np.int64),
        np.array(probabilities, np.float64),
        np.array(places, np.int64),
        np.full(count, -1),
        np.zeros(count),
    )


def shared(forest: Forest, drafted: Candidates) -> Candidates:
    """Beside what is planted below the parents."""
    below = forest.planted_below(drafted.parents)
    return beside_planted(forest, drafted, Named.of(forest, drafted, below)) if len(below) else drafted


def by_path(forest: Forest) -> dict[tuple[int, ...], tuple[float, float, int, int, float]]:
    """What is known of each planted node, by its request and the tokens that lead to it."""
    names: dict[int, tuple[int, ...]] = {root: (root,) for root in range(forest.batch)}
    for node in range(forest.batch, len(forest)):
        names[node] = (*names[int(forest.parent[node])], int(forest.token[node]))
    return {
        names[node]: (
            float(forest.path[node]),
            float(forest.probability[node]),
            int(forest.depth[node]),
            int(forest.request[node]),
            float(forest.feature[node]),
        )
        for node in range(forest.batch, len(forest))
    }


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_trees_planted_at_once_are_those_that_are_grown_level_by_level(limit: int) -> None:
    random = np.random.default_rng(3)
    texts = [[int(token) for token in random.integers(0, 3, size)] for size in (5, 30, 60, 90, 120, 150, 200, 250)]
    drafter = joint()
    requests, forest = planted(drafter, *texts, limit=limit)
    grown, lookup = Forest(np.array([text[-1] for text in texts])), drafter.lookup.fresh()
    lookup.begin(requests, grown)
    frontier = np.arange(len(texts))
    while len(frontier := frontier[grown.depth[frontier] < limit]):
        candidates = lookup.expand(grown, frontier)
        likely = grown.path[candidates.parents] * candidates.probabilities >= 0.02
        frontier = grown.append(candidates.take(likely))
    assert len(grown) >= len(texts) + 7 * min(limit, 3)
    assert by_path(forest) == by_path(grown)
    assert np.all(forest.parent[forest.batch :] < np.arange(forest.batch, len(forest)))


def test_deeper_nodes_are_planted_down_to_what_a_row_is_worth_and_root_children_always() -> None:
    random = np.random.default_rng(5)
    texts = [[int(token) for token in random.integers(0, 3, 80)] for _ in range(4)]
    (_, few), (_, all_of_them) = planted(joint(), *texts, least=0.3), planted(joint(), *texts)
    kept = {path: node for path, node in by_path(all_of_them).items() if node[0] >= 0.3 or node[2] == 1}
    assert by_path(few) == kept
    assert len(kept) < len(all_of_them) - 4


def test_what_followed_the_same_words_is_planted_and_nothing_else() -> None:
    _, forest = planted(joint(), NEW, QUOTED)
    assert forest.planted == len(forest) - 2 > 3
    below = slice(2, None)
    assert set(forest.request[below].tolist()) == {1}
    chain = forest.token[below][np.argsort(forest.depth[below])].tolist()
    assert chain == QUOTED[3 : 3 + len(chain)]
    assert forest.path.min() >= 0.02


def test_one_or_two_equal_words_plant_nothing() -> None:
    _, forest = planted(joint(), [1, 2, 3, 9, 1, 2])
    assert forest.planted == 0
    _, forest = planted(joint(NgramDrafter(shortest_match=2)), [1, 2, 3, 9, 1, 2])
    assert forest.planted > 0


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_nothing_is_planted_deeper_than_is_of_use(limit: int) -> None:
    _, forest = planted(joint(), QUOTED, limit=limit)
    assert int(forest.depth.max()) == limit


def test_levels_leave_out_what_is_planted() -> None:
    drafter = joint()
    requests, forest = planted(drafter, QUOTED, NEW)
    roots = np.array([0, 1])
    drafter.begin(requests, forest)
    other_drafter = joint()
    other_drafter.begin(requests, forest)
    plain = other_drafter.levels.expand(forest, roots)
    candidates = drafter.expand(forest, roots)
    known = set(forest.token[(forest.parent == 0)].tolist())
    assert known
    mine = candidates.tokens[candidates.parents == 0].tolist()
    assert mine == [token for token in plain.tokens[plain.parents == 0].tolist() if token not in known]
    other = candidates.parents == 1
    assert candidates.tokens[other].tolist() == plain.tokens[plain.parents == 1].tolist()
    assert np.array_equal(candidates.probabilities[other], plain.probabilities[plain.parents == 1])


def test_the_rest_shares_what_the_planted_ones_leave() -> None:
    forest = Forest(np.array([0, 0]))
    forest.plant(children([0, 0], [7, 8], [0.5, 0.1]))
    drafted = children([0, 0, 0, 1], [7, 3, 4, 7], [0.6, 0.2, 0.1, 0.6], [0, 1, 2, 0])
    left = shared(forest, drafted)
    assert left.tokens.tolist() == [3, 4, 7]
    assert left.ranks.tolist() == [1, 2, 0]  # what the drafter thought of them, for what is learned by rank
    assert left.probabilities.tolist() == pytest.approx([0.2 * 0.4 / 0.4, 0.1 * 0.4 / 0.4, 0.6])


@given(st.lists(st.floats(0, 1), min_size=0, max_size=4), st.lists(st.floats(0, 1), min_size=1, max_size=6), st.data())
def test_children_never_have_more_than_their_parent(
    looked_up: list[float], drafted: list[float], data: st.DataObject
) -> None:
    forest = Forest(np.array([0]))
    first = np.array(looked_up) / max(1.0, sum(looked_up))
    forest.plant(children([0] * len(first), list(range(len(first))), first.tolist()))
    second = np.array(drafted) / max(1.0, sum(drafted))
    tokens = data.draw(st.permutations(range(8)))[: len(second)]
    left = shared(forest, children([0] * len(second), list(tokens), second.tolist()))
    assert not set(left.tokens.tolist()) & set(range(len(first)))
    assert float(first.sum() + left.probabilities.sum()) <= 1 + 2e-3
    forest.append(left)
    assert forest.left(np.array([0]))[0] == pytest.approx(max(0.0, 1 - first.sum()))


def test_without_anything_planted_levels_are_as_ever() -> None:
    drafter, free = joint(), joint().levels
    requests, forest = planted(drafter, NEW)
    drafter.begin(requests, forest)
    free.begin(requests, forest)
    mine, theirs = drafter.expand(forest, np.array([0])), free.expand(forest, np.array([0]))
    assert mine.tokens.tolist() == theirs.tokens.tolist()
    assert np.array_equal(mine.probabilities, theirs.probabilities)


class Scripted:
    """In place of a model: children of every node as they are given."""

    def __init__(self, drafted: list[tuple[int, float]]) -> None:
        self._drafted = drafted

    def expand(self, forest: Forest, frontier: np.ndarray) -> Candidates:
        tokens, probabilities = zip(*self._drafted, strict=True)
        count = len(self._drafted)
        return children(
            np.repeat(frontier, count).tolist(),
            list(tokens) * len(frontier),
            list(probabilities) * len(frontier),
            list(range(count)) * len(frontier),
        )


def judged(*drafted: tuple[int, float]) -> tuple[JointDrafter, Forest, Forest]:
    """A pair whose model drafts these below the root; the forest as it was planted, and as it is then."""
    drafter = joint()
    _, before = planted(drafter, QUOTED)
    _, forest = planted(drafter, QUOTED)
    drafter.levels = Scripted(list(drafted))  # type: ignore[assignment]
    forest.append(drafter.expand(forest, np.array([0])))
    return drafter, before, forest


def test_a_planted_node_that_the_model_agrees_with_is_likelier_and_all_below_it() -> None:
    _, before, after = judged((8, 0.97), (30, 0.01))
    assert after.token[1] == 8
    assert after.probability[1] > max(0.95, before.probability[1])
    below = slice(1, 1 + after.planted)
    assert after.path[below] == pytest.approx(before.path[below] * after.probability[1] / before.probability[1])
    assert after.probability[2] == before.probability[2]  # nobody has said anything about that one
    assert after.token[1 + after.planted :].tolist() == [30]


@pytest.mark.parametrize("drafted", [[(30, 0.9)], [(30, 0.9), (8, 0.05)]])
def test_a_planted_node_that_the_model_would_not_have_chosen_is_less_likely(drafted: list[tuple[int, float]]) -> None:
    _, before, after = judged(*drafted)
    assert after.probability[1] < 0.8 * before.probability[1]
    own = after.path[1 + after.planted]
    assert own > 0.9 * (1 - before.probability[1])  # and the model's own first choice the likelier
    assert own + after.path[1] <= 1


def test_what_the_model_s_word_is_worth_is_learned() -> None:
    drafter, _, first = judged((8, 0.97))
    before = first.probability[1]
    for _ in range(60):
        drafter.learn(first, np.array([1]), np.array([False]))
    drafter.lookup.acceptance.__init__()  # type: ignore[misc]  # the lookup is to promise what it did
    drafter.lookup._trust.clear()
    _, forest = planted(drafter, QUOTED)
    forest.append(drafter.expand(forest, np.array([0])))
    assert forest.probability[1] < 0.5 * before


def test_a_planted_node_that_the_model_goes_on_from_has_its_planted_children_judged_too() -> None:
    drafter, before, forest = judged((8, 0.97))
    assert forest.parent[2] == 1
    drafter.levels = Scripted([(int(forest.token[2]), 0.97)])  # type: ignore[assignment]
    assert len(drafter.expand(forest, np.array([1]))) == 0
    assert forest.probability[2] > before.probability[2]
    assert forest.path[2] == pytest.approx(forest.probability[1] * forest.probability[2])
    assert forest.path[3] == pytest.approx(forest.path[2] * forest.probability[3])


def test_planting_comes_first() -> None:
    forest = Forest(np.array([0]))
    forest.append(children([0], [3], [0.6]))
    with pytest.raises(AssertionError):
        forest.plant(children([0], [4], [0.6]))


def test_the_lookup_learns_and_is_forgotten_with_its_request() -> None:
    drafter = joint()
    requests, forest = planted(drafter, QUOTED)
    before = forest.probability[1]
    for _ in range(30):
        drafter.learn(forest, np.array([1]), np.array([False]))
    _, again = planted(drafter, QUOTED)
    assert again.probability[1] < 0.5 * before
    drafter.release(requests[0].id)
    assert not drafter.lookup._texts


def test_a_fresh_pair_has_learned_nothing() -> None:
    drafter = joint(NgramDrafter(max_depth=3, shortest_match=2))
    _, forest = planted(drafter, QUOTED)
    for _ in range(30):
        drafter.learn(forest, np.array([1]), np.array([False]))
    fresh = drafter.fresh()
    assert (fresh.lookup.max_depth, fresh.lookup.shortest_match) == (3, 2)
    assert fresh.fingerprint == drafter.fingerprint == drafter.levels.fingerprint
    _, new = planted(fresh, QUOTED)
    assert new.probability[1] == forest.probability[1]
    assert int(new.depth.max()) == 3


def test_names_of_pairs() -> None:
    target = prepare_model(tiny_model(), None, "target")
    assert joint().name == "model+ngram"
    with pytest.raises(InputError, match="names no drafter"):
        make_drafter("none+ngram", target, 2, 100)
    with pytest.raises(InputError, match="looks up already"):
        make_drafter("ngram+ngram", target, 2, 100)
    with pytest.raises(InputError, match="looks up already"):
        JointDrafter(NgramDrafter())


@pytest.mark.parametrize("shortest", [0, 4])
def test_matches_have_one_to_three_tokens_at_least(shortest: int) -> None:
    with pytest.raises(InputError, match="1 to 3"):
        planted(joint(NgramDrafter(shortest_match=shortest)), QUOTED)
