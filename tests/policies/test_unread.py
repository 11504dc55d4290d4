"""What a drafter has still to read: little after steps with drafts, more and more without, least for the scouts."""

from __future__ import annotations

from math import inf

import pytest

from smartree.policies.unread import Unread


def quiet(unread: Unread, batch: int, steps: int) -> None:
    """Steps of plain decoding."""
    for _ in range(steps):
        unread.update(batch, batch, drafted=False, scouting=False)


def test_at_first_there_is_nothing_to_read() -> None:
    unread = Unread()
    assert (unread.rows, unread.scout_rows) == (0, 0.0)
    assert not unread.is_long(1)


@pytest.mark.parametrize("tokens", [16, 40, 16 * 9])
def test_a_step_with_drafts_for_all_leaves_only_its_own_tokens(tokens: int) -> None:
    unread = Unread()
    quiet(unread, 16, 100)
    assert unread.is_long(16)
    unread.update(16, tokens, drafted=True, scouting=False)
    assert unread.rows == tokens
    assert unread.scout_rows == tokens / 16
    assert not unread.is_long(16)  # however well it went: nobody has missed a step


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_the_backlog_grows_by_the_batch_in_every_step_without_drafts(batch: int) -> None:
    unread = Unread()
    unread.update(batch, 2 * batch, drafted=True, scouting=False)
    quiet(unread, batch, 1)
    assert not unread.is_long(batch)  # three tokens a request are what a good step leaves
    quiet(unread, batch, 1)
    assert unread.is_long(batch)
    quiet(unread, batch, 8)
    assert unread.rows == 12 * batch
    assert unread.scout_rows == 12


def test_a_look_leaves_the_backlog_of_the_others() -> None:
    unread = Unread()
    quiet(unread, 8, 30)
    unread.update(8, 11, drafted=True, scouting=True)
    assert unread.rows == 8 * 30 + 11
    assert unread.scout_rows == 11 / 8
    assert unread.is_long(8)


def test_a_look_that_was_not_made_leaves_everything() -> None:
    unread = Unread()
    quiet(unread, 8, 30)
    unread.update(8, 8, drafted=False, scouting=True)
    assert (unread.rows, unread.scout_rows) == (8 * 31, 31)


@pytest.mark.parametrize(("batch", "scouts"), [(1, 1), (2, 1), (8, 1), (9, 2), (16, 2), (17, 3), (64, 8)])
def test_one_request_of_eight_is_a_scout(batch: int, scouts: int) -> None:
    assert Unread.scouts(batch) == scouts


def test_a_look_reads_the_backlog_of_the_scouts_and_is_charged_for_so_much_at_most() -> None:
    unread = Unread()
    assert unread.of_scouts(16) == 2
    quiet(unread, 16, 10)
    assert unread.of_scouts(16) == 2 * 11
    quiet(unread, 16, 10_000)
    assert unread.of_scouts(16) == 2 * 65
    unread.update(16, 16, drafted=True, scouting=True)
    assert unread.of_scouts(16) == 2 * 2


def run(unread: Unread, steps: int) -> None:
    """A run of speculation, and the pause that ends it."""
    for _ in range(steps):
        unread.update(4, 8, drafted=True, scouting=False)
    assert unread.running
    quiet(unread, 4, 3)
    assert not unread.running


def test_runs_that_turn_out_short_have_to_repay_what_they_read() -> None:
    unread = Unread()
    assert unread.run == inf  # nobody knows better
    run(unread, 10)
    assert unread.run == 10
    run(unread, 1)
    assert unread.run == pytest.approx(0.3 * 10 + 0.7 * 1)
    run(unread, 100)
    assert unread.run > 70


def test_a_short_run_is_forgotten_in_a_long_quiet_time() -> None:
    unread = Unread()
    run(unread, 1)
    quiet(unread, 4, 1000)
    assert unread.run > 100


def test_prompts_that_are_read_in_between_end_no_run() -> None:
    unread = Unread()
    for _ in range(5):
        unread.update(4, 8, drafted=True, scouting=False)
    for _ in range(20):
        unread.update(4, 4, drafted=False, scouting=False, alone=False)
    assert unread.running
    assert unread.is_long(4)
    assert unread.run == inf


def test_a_look_is_no_run() -> None:
    unread = Unread()
    unread.update(8, 11, drafted=True, scouting=True)
    assert not unread.running
