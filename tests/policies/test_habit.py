"""Habits: one question, asked less often while its answer stays the same."""

from __future__ import annotations

import pytest

from smartree.policies.habit import Habit


@pytest.mark.parametrize("usual", [True, False])
def test_three_of_four_answers_are_not_asked_for_after_eight_alike(usual: bool) -> None:
    habit, asked = Habit(usual), []
    for _ in range(20):
        asked.append(not habit.holds())
        if asked[-1]:
            habit.note(usual)
    assert asked == [True] * 9 + [False, False, False, True] * 2 + [False, False, False]


def test_another_answer_ends_a_habit() -> None:
    habit = Habit(True)
    for _ in range(9):
        habit.note(True)
    assert habit.holds()
    habit.note(False)
    assert not habit.holds()
    for _ in range(7):
        habit.note(True)
    assert not habit.holds()


def test_the_other_answer_never_becomes_one() -> None:
    habit = Habit(True)
    for _ in range(30):
        assert not habit.holds()
        habit.note(False)
