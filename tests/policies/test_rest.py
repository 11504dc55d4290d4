"""Rests in quiet times."""

from __future__ import annotations

from smartree.policies.rest import Rest


def passed(rest: Rest, steps: int, idle: bool = True, may_rest: bool = True) -> list[bool]:
    """Steps like each other; which of them were passed."""
    found = []
    for _ in range(steps):
        found.append(rest.begin(same=True))
        if rest.now:
            rest.add(2)
        else:
            rest.note(idle, may_rest)
    return found


def test_three_of_four_quiet_steps_are_passed_after_nine() -> None:
    rest = Rest()
    assert passed(rest, 21) == [False] * 9 + [True, True, True, False] * 3
    assert rest.quiet
    assert rest.end() == [2] * 9
    assert rest.end() == []


def test_steps_with_drafts_and_those_that_may_not_rest_are_never_passed() -> None:
    assert not any(passed(Rest(), 40, idle=False))
    assert not any(passed(Rest(), 40, may_rest=False))


def test_a_step_of_another_kind_ends_a_rest() -> None:
    rest = Rest()
    passed(rest, 9)
    assert rest.is_due(same=True)
    assert not rest.begin(same=False)
    assert not rest.is_due(same=True)
    rest.note(idle=False, may_rest=True)
    assert not rest.quiet
    assert not any(passed(rest, 8))
