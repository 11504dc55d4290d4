"""What a bench can be told."""

from __future__ import annotations

from typing import Any

import pytest

from smartree.bench.config import BenchConfig, Group, tree_name, tree_named
from smartree.errors import InputError
from smartree.policies.fixed import TreeSize


def test_plain_decoding_is_always_measured_and_first() -> None:
    assert BenchConfig(policies=("smart", "eagle2", "smart")).policies == ("none", "smart", "eagle2")
    assert BenchConfig(policies=("oracle", "none")).policies == ("none", "oracle")


def test_groups_follow_the_lists_and_nothing_comes_twice() -> None:
    config = BenchConfig(suites=("a", "b", "a"), batches=(1, 2, 1), temperatures=(0.0, 0.0))
    assert list(config.groups()) == [Group("a", 0.0, 1), Group("a", 0.0, 2), Group("b", 0.0, 1), Group("b", 0.0, 2)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suites": ()}, "at least one of its suites"),
        ({"batches": ()}, "at least one of its batches"),
        ({"temperatures": ()}, "at least one of its temperatures"),
        ({"policies": ()}, "at least one of its policies"),
        ({"oracle_grid": ()}, "at least one of its oracle grid"),
        ({"batches": (1, 0)}, "batch is 0"),
        ({"temperatures": (-1.0,)}, "temperature is -1.0"),
        ({"temperatures": (float("nan"),)}, "temperature is nan"),
        ({"policies": ("smrt",)}, "Policy 'smrt' is unknown; choose one of none, smart"),
        ({"prompts_per_suite": 0}, "prompts_per_suite is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"repeats": 0}, "repeats is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**62}, "seed is"),
    ],
)
def test_bad_values(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BenchConfig(**settings)


def test_trees_in_writing() -> None:
    assert tree_named("5/4/16") == TreeSize(5, 4, 16)
    assert tree_name(TreeSize(5, 4, 16)) == "5/4/16"
    for text in ("5/4", "5/4/x", "a", "1/2/3/4"):
        with pytest.raises(InputError, match="is no triple"):
            tree_named(text)
    with pytest.raises(InputError, match="at least 1"):
        tree_named("0/4/16")
