"""Calibration: the drafter's word until something was seen, the truth once enough was."""

from __future__ import annotations

import json

import numpy as np
import pytest

from smartree.errors import InputError
from smartree.policies import Calibration
from smartree.tree import Candidates, Forest
from smartree.tree.forest import Floats
from tests.tree.forests import candidates_of, ints

GREEDY, SAMPLED = np.array([False]), np.array([True])
RAW = (0.6, 0.25)  # what the drafter says of its first and second choice


def truth(depth: int, rank: int) -> float:
    """A law far from the drafter's word: over-confident in side branches, worse with depth."""
    return (0.8, 0.05)[rank] * 0.9 ** (depth - 1)


def children_of(parent: int) -> Candidates:
    return candidates_of([parent, parent], RAW)


def learn_from_steps(calibration: Calibration, steps: int, levels: int, sampled: bool, seed: int = 0) -> None:
    """Two children at every node of the accepted path; only children of accepted nodes are observed."""
    random, flags = np.random.default_rng(seed), np.array([sampled])
    for _ in range(steps):
        forest, parent = Forest(np.zeros(1, np.int64)), 0
        observed, accepted = [], []
        for depth in range(1, levels + 1):
            first, second = forest.append(calibration(forest, children_of(parent), flags)).tolist()
            draw = random.random()
            hits = [draw < truth(depth, 0), truth(depth, 0) <= draw < truth(depth, 0) + truth(depth, 1)]
            observed += [first, second]
            accepted += hits
            if not any(hits):
                break  # what lies below was not accepted, so it would not be observed
            parent = first if hits[0] else second
        calibration.learn(forest, ints(observed), np.array(accepted), flags)


def calibrated(calibration: Calibration, depth: int, sampled: bool = False) -> Floats:
    """What calibration says of the two children of a node at depth - 1."""
    forest, parent = Forest(np.zeros(1, np.int64)), 0
    for _ in range(depth - 1):
        parent = int(forest.append(candidates_of([parent], [0.5]))[0])
    return calibration(forest, children_of(parent), np.array([sampled])).probabilities


def learn_outcomes(calibration: Calibration, raw: float, accepted: int, seen: int, rank: int = 0) -> None:
    """`seen` observations of one cell below the root, `accepted` of them accepted."""
    for index in range(seen):
        forest = Forest(np.zeros(1, np.int64))
        nodes = forest.append(calibration(forest, candidates_of([0], [raw], ranks=[rank]), GREEDY))
        calibration.learn(forest, nodes, np.array([index < accepted]), GREEDY)


def test_unseen_cells_pass_the_drafter_s_word() -> None:
    raw = np.array([1.0, 0.9, 0.5, 0.1, 1e-3, 1e-5])
    forest = Forest(np.zeros(2, np.int64))
    offered = candidates_of([0, 1, 0, 1, 0, 1], raw.tolist())
    result = Calibration()(forest, offered, np.array([False, True]))
    np.testing.assert_allclose(result.probabilities, raw, rtol=1e-12)


def test_a_probability_of_zero_stays_a_probability() -> None:
    result = Calibration()(Forest(np.zeros(1, np.int64)), candidates_of([0], [0.0]), GREEDY)
    assert 0 < result.probabilities[0] <= 1e-5


def test_everything_but_the_probability_passes_unchanged_and_the_raw_one_becomes_the_feature() -> None:
    offered = Candidates(ints([0, 0]), ints([7, 9]), np.array([0.6, 0.2]), ints([0, 1]), ints([3, 4]), np.zeros(2))
    calibration = Calibration()
    learn_outcomes(calibration, 0.6, accepted=0, seen=50)
    result = calibration(Forest(np.zeros(1, np.int64)), offered, GREEDY)
    assert result.probabilities[0] < 0.2
    assert result.features.tolist() == [0.6, 0.2]
    assert (result.parents.tolist(), result.tokens.tolist()) == ([0, 0], [7, 9])
    assert (result.ranks.tolist(), result.handles.tolist()) == ([0, 1], [3, 4])


def test_the_prior_is_worth_its_strength_in_observations() -> None:
    # 3 of 4 accepted at a prior of 0.6 worth 6: (3 + 6 * 0.6) / (4 + 6) = 0.66
    calibration = Calibration(strength=6.0, window=1e12)
    learn_outcomes(calibration, 0.6, accepted=3, seen=4)
    assert calibrated(calibration, 1)[0] == pytest.approx(0.66)


@pytest.mark.parametrize("sampled", [False, True])
def test_it_converges_to_the_true_acceptance_from_observed_nodes_only(sampled: bool) -> None:
    calibration, steps, levels = Calibration(), 6000, 4
    learn_from_steps(calibration, steps, levels, sampled)
    reached = 1.0  # share of the steps that observe this depth
    for depth in range(1, levels + 1):
        for rank, probability in enumerate(calibrated(calibration, depth, sampled)):
            wanted = truth(depth, rank)
            # Four standard errors of the counts that the window keeps, and the prior's weight.
            seen = min(reached * steps, 4000.0)
            margin = 4 * np.sqrt(wanted * (1 - wanted) / seen) + 6 / seen
            assert probability == pytest.approx(wanted, abs=margin), (depth, rank)
        reached *= truth(depth, 0) + truth(depth, 1)


def test_temperature_classes_are_separate() -> None:
    calibration = Calibration()
    learn_from_steps(calibration, 500, 2, sampled=True)
    np.testing.assert_allclose(calibrated(calibration, 1, sampled=False), RAW, rtol=1e-12)
    assert abs(calibrated(calibration, 1, sampled=True)[0] - RAW[0]) > 0.1


def test_requests_of_one_batch_keep_their_own_temperature_class() -> None:
    calibration, classes = Calibration(window=1e12), np.array([False, True])
    for _ in range(1000):
        forest = Forest(np.zeros(2, np.int64))
        nodes = forest.append(calibration(forest, candidates_of([0, 1], [0.5, 0.5]), classes))
        calibration.learn(forest, nodes, np.array([False, True]), classes)  # greedy: never; sampled: always
    greedy, sampled = calibration(
        Forest(np.zeros(2, np.int64)), candidates_of([0, 1], [0.5, 0.5]), classes
    ).probabilities
    assert greedy < 0.01
    assert sampled > 0.99


def test_depth_rank_and_draft_probability_are_separate() -> None:
    calibration = Calibration()
    learn_outcomes(calibration, 0.6, accepted=0, seen=200, rank=0)
    root = Forest(np.zeros(1, np.int64))
    assert calibrated(calibration, 1)[0] < 0.05
    assert calibrated(calibration, 2)[0] == pytest.approx(0.6)
    others = calibration(root, candidates_of([0, 0], [0.6, 0.99], ranks=[1, 0]), GREEDY).probabilities
    np.testing.assert_allclose(others, [0.6, 0.99])


def test_it_follows_a_change_of_text() -> None:
    calibration = Calibration(window=200.0)
    learn_outcomes(calibration, 0.6, accepted=1000, seen=1000)
    assert calibrated(calibration, 1)[0] > 0.97
    learn_outcomes(calibration, 0.6, accepted=0, seen=1000)
    assert calibrated(calibration, 1)[0] < 0.05


def test_calibrated_probabilities_are_probabilities_at_any_depth_and_rank() -> None:
    calibration = Calibration()
    forest, parent = Forest(np.zeros(1, np.int64)), 0
    for _ in range(20):  # deeper than the table
        offered = candidates_of([parent] * 3, [1.0, 0.5, 0.0], ranks=[0, 5, 40])
        nodes = forest.append(calibration(forest, offered, SAMPLED))
        calibration.learn(forest, nodes, np.array([True, False, False]), SAMPLED)
        parent = int(nodes[0])
    assert np.all((forest.probability > 0) & (forest.probability <= 1))


def test_learning_nothing_changes_nothing() -> None:
    calibration = Calibration()
    calibration.learn(Forest(np.zeros(1, np.int64)), ints([]), np.empty(0, bool), GREEDY)
    np.testing.assert_allclose(calibrated(calibration, 1), RAW)


def test_a_better_liked_token_is_never_trusted_less() -> None:
    # The law falls where the drafter's word rises: the curve may flatten, but it must not turn.
    calibration = Calibration()
    for raw, accepted in ((0.2, 80), (0.5, 50), (0.8, 20)):
        learn_outcomes(calibration, raw, accepted=accepted, seen=100)
    likings = np.linspace(0.01, 0.99, 99)
    offered = candidates_of([0] * 99, likings.tolist(), ranks=[0] * 99)
    probabilities = calibration(Forest(np.zeros(1, np.int64)), offered, GREEDY).probabilities
    assert np.all(np.diff(probabilities) >= -1e-12)
    assert probabilities[50] == pytest.approx(0.5, abs=0.1)


def test_between_the_bins_the_shift_of_the_logit_is_linear_and_flat_beyond() -> None:
    # Two bins were seen, rank 0 of depth 1: what lies between their means is interpolated, the other ranks are not.
    calibration = Calibration(strength=1e-6, window=1e12)
    names, counts = ("seen", "accepted", "raw"), ((100, 100), (60, 90), (52, 70))
    tables = {name: [[0] * 6 + list(pair) + [0] * 4] for name, pair in zip(names, counts, strict=True)}
    calibration.load_json({"shape": [2, 8, 6, 12], "rows": [0], **tables})
    middle = logistic((logit(0.52) + logit(0.7)) / 2)
    offered = candidates_of([0] * 4, [0.52, middle, 0.7, middle], ranks=[0, 0, 0, 1])
    low, between, high, other = calibration(Forest(np.zeros(1, np.int64)), offered, GREEDY).probabilities
    assert low == pytest.approx(0.6, abs=1e-6)
    assert high == pytest.approx(0.9, abs=1e-6)
    assert logit(between) == pytest.approx((logit(0.6) + logit(0.9)) / 2, abs=1e-5)
    assert other == pytest.approx(middle)


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def logistic(value: float) -> float:
    return float(1 / (1 + np.exp(-value)))


def test_every_depth_rank_and_class_has_the_knots_of_its_own_row() -> None:
    # One cell of each row is taught another rate; asked for together, each answers with its own.
    calibration, classes = Calibration(window=1e12), np.array([False, True])
    rates = {(request, rank): 0.1 + 0.06 * (6 * request + rank) for request in (0, 1) for rank in range(6)}
    forest = Forest(np.zeros(2, np.int64))
    nodes = forest.append(candidates_of([0] * 6 + [1] * 6, [0.5] * 12, ranks=[*range(6)] * 2))
    forest.feature[nodes] = 0.5
    for count in range(1000):
        accepted = np.array([count < 1000 * rate for rate in rates.values()])
        calibration.learn(forest, nodes, accepted, classes)
    offered = candidates_of([1] * 6 + [0] * 6, [0.5] * 12, ranks=[*range(6)] * 2)
    found = calibration(Forest(np.zeros(2, np.int64)), offered, classes).probabilities
    wanted = [rates[request, rank] for request in (1, 0) for rank in range(6)]
    np.testing.assert_allclose(found, wanted, atol=0.025)


def test_saved_counts_that_rounding_has_put_on_one_place_still_make_a_curve() -> None:
    # 0.01526 and 0.01527 lie on two sides of a border between bins; both are saved as 0.0153.
    seen = [[1.0, 1.0] + [0.0] * 10]
    data = {
        "shape": [2, 8, 6, 12],
        "rows": [0],
        "seen": seen,
        "accepted": [[0.0] * 12],
        "raw": [[0.0153] * 2 + [0.0] * 10],
    }
    calibration = Calibration()
    calibration.load_json(data)
    offered = candidates_of([0] * 50, np.linspace(0.0, 1.0, 50).tolist(), ranks=[0] * 50)
    found = calibration(Forest(np.zeros(1, np.int64)), offered, GREEDY).probabilities
    assert np.all((found > 0) & (found <= 1))
    assert np.all(np.diff(found) >= -1e-12)


def test_counts_survive_a_save_and_a_load() -> None:
    calibration, other = Calibration(), Calibration()
    learn_from_steps(calibration, 300, 3, sampled=True)
    other.load_json(json.loads(json.dumps(calibration.to_json())))
    for depth in (1, 2, 3):
        np.testing.assert_allclose(calibrated(other, depth, True), calibrated(calibration, depth, True), atol=0.02)


@pytest.mark.parametrize("data", [None, {}, {"shape": [1]}, {"shape": [2, 8, 6, 12], "rows": [0], "seen": [[1.0]]}])
def test_malformed_counts_are_refused(data: object) -> None:
    with pytest.raises(InputError, match="calibration"):
        Calibration().load_json(data)


def test_rates_are_the_shares_of_greedy_drafts_that_were_accepted() -> None:
    calibration = Calibration()
    assert Calibration.rates_of(calibration.to_json()) == []
    learn_from_steps(calibration, 3000, 2, sampled=False)
    learn_from_steps(calibration, 500, 3, sampled=True)  # says nothing about greedy ones
    rates = Calibration.rates_of(calibration.to_json())
    assert len(rates) == 2
    for depth, row in enumerate(rates, 1):
        assert row[:2] == pytest.approx([truth(depth, 0), truth(depth, 1)], abs=0.03)


def test_what_was_saved_is_a_belief_that_other_text_changes() -> None:
    first, second = Calibration(), Calibration()
    learn_outcomes(first, 0.6, accepted=900, seen=1000)
    second.load_json(first.to_json())
    assert calibrated(second, 1)[0] == pytest.approx(calibrated(first, 1)[0], abs=0.08)
    learn_outcomes(first, 0.6, accepted=0, seen=100)
    learn_outcomes(second, 0.6, accepted=0, seen=100)
    assert calibrated(first, 1)[0] > 0.75
    assert calibrated(second, 1)[0] < 0.45
