"""Rests in quiet times."""

from __future__ import annotations

from smartree.policies.rest import Rest


def passed(rest: Rest, steps: int, idle: bool = True, may_rest: bool = True) -> list[bool]:
    """Steps like each other; which of them were passed."""
    found = []
    for _ in range(steps):
        found.append(rest.begin(same=True, beside=False))
        if rest.now:
            rest.add(1, 2, False)
        else:
            rest.note(idle, beside=False, may_rest=may_rest)
    return found


def test_three_of_four_quiet_steps_are_passed_after_nine() -> None:
    rest = Rest()
    assert passed(rest, 21) == [False] * 9 + [True, True, True, False] * 3
    assert rest.quiet
    assert rest.end() == [(1, 2, False)] * 9
    assert rest.end() == []


def test_steps_with_drafts_and_those_that_may_not_rest_are_never_passed() -> None:
    assert not any(passed(Rest(), 40, idle=False))
    assert not any(passed(Rest(), 40, may_rest=False))


def test_a_step_of_another_kind_ends_a_rest() -> None:
    rest = Rest()
    passed(rest, 9)
    assert rest.is_due(same=True, beside=False)
    assert not rest.begin(same=False, beside=False)
    assert not rest.is_due(same=True, beside=False)
    rest.note(idle=False, beside=False, may_rest=True)
    assert not rest.quiet
    assert not any(passed(rest, 8))


def test_in_quiet_times_steps_that_read_prompts_are_passed_and_end_no_rest() -> None:
    rest = Rest()
    assert not rest.begin(same=False, beside=True)
    passed(rest, 9)
    for _ in range(5):
        assert rest.begin(same=False, beside=True)
        rest.add(1, 3, True)
    assert passed(rest, 4) == [True, True, True, False]
    assert rest.end() == [(1, 3, True)] * 5 + [(1, 2, False)] * 3


def test_a_load_without_any_other_steps_is_asked_about_now_and_then() -> None:
    rest = Rest()
    for _ in range(9):
        assert not rest.begin(same=False, beside=True)
        rest.note(idle=True, beside=True, may_rest=True)
    found = []
    for _ in range(48):
        found.append(rest.begin(same=False, beside=True))
        if not rest.now:
            rest.note(idle=True, beside=True, may_rest=True)
    assert found == ([True] * 15 + [False]) * 3
    assert not rest.wants_plain()
    rest.note(idle=False, beside=True, may_rest=True)
    assert not rest.begin(same=False, beside=True)


def test_only_plain_steps_say_what_one_takes() -> None:
    rest = Rest()
    for _ in range(60):
        rest.note(idle=True, beside=True, may_rest=True)
    assert rest.wants_plain()
    rest.note(idle=True, beside=False, may_rest=True)
    assert not rest.wants_plain()


def test_where_steps_may_not_rest_those_that_read_prompts_are_asked_about_too() -> None:
    rest = Rest()
    passed(rest, 40, may_rest=False)
    assert not rest.begin(same=False, beside=True)


def test_a_plain_step_is_wanted_after_fifty_others() -> None:
    rest = Rest()
    passed(rest, 49, idle=False)
    assert not rest.wants_plain()
    passed(rest, 1, idle=False)
    assert rest.wants_plain()
    passed(rest, 1)
    assert not rest.wants_plain()
