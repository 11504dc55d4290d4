"""Each sampling setting that is out of range is refused by name; the rest is put in one shape."""

from __future__ import annotations

from typing import Any

import pytest

from smartree.errors import InputError
from smartree.guide import Guide
from smartree.sampling_params import SamplingParams

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("temperature", -0.1),
        ("temperature", NAN),
        ("temperature", INFINITY),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", -0.5),
        ("top_p", 1.01),
        ("top_p", NAN),
        ("seed", -1),
        ("seed", 2**63),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("min_p", NAN),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("frequency_penalty", NAN),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", INFINITY),
        ("min_tokens", -1),
        ("min_tokens", 129),
        ("logprobs", -1),
        ("logprobs", 1.5),
        ("n", 0),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_sentence_that_names_it(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(InputError) as caught:
        SamplingParams(**options)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith(f"{name} is {value}; ")
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stop", ["", ("",), ["end", ""]])
def test_an_empty_stop_string_is_refused(stop: Any) -> None:
    with pytest.raises(InputError, match=r"^stop holds an empty string; .*\.$"):
        SamplingParams(stop=stop)


def test_the_limits_of_each_range_are_accepted() -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0, top_k=0, top_p=1.0, seed=0)
    assert params == SamplingParams(max_tokens=1, seed=0)
    assert SamplingParams(seed=2**63 - 1).seed == 2**63 - 1
    assert SamplingParams(top_p=1e-9).top_p == 1e-9


def test_a_plain_stop_string_becomes_a_tuple() -> None:
    as_string: Any = "end"
    as_list: Any = ["end", "stop"]
    assert SamplingParams(stop=as_string).stop == ("end",)
    assert SamplingParams(stop=as_list).stop == ("end", "stop")
    assert SamplingParams().stop == ()


def test_stop_token_ids_become_a_tuple_of_plain_ints() -> None:
    import numpy as np

    given: Any = np.array([1, 2])
    ids = SamplingParams(stop_token_ids=given).stop_token_ids
    assert ids == (1, 2)
    assert {type(token) for token in ids} == {int}


def test_settings_can_be_compared_and_hashed() -> None:
    as_list: Any = ["end"]
    assert hash(SamplingParams(stop=("end",))) == hash(SamplingParams(stop=as_list))


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (1e-6, False), (1.0, False)])
def test_only_temperature_zero_is_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_a_bias_is_kept_as_pairs_by_token() -> None:
    params = SamplingParams(logit_bias={7: 1, 3: -2.5})
    assert params.logit_bias == ((3, -2.5), (7, 1.0))
    assert SamplingParams(logit_bias=params.logit_bias) == params
    assert params.biases == {3: -2.5, 7: 1.0}
    texts: Any = {"7": 1}  # as JSON has them
    assert SamplingParams(logit_bias=texts).biases == {7: 1.0}
    assert len({params, SamplingParams(logit_bias={3: -2.5, 7: 1.0})}) == 1


@pytest.mark.parametrize(
    ("bias", "why"),
    [
        ({"a": 1}, "must be a dictionary of token ids and numbers"),
        ({1: "x"}, "must be a dictionary of token ids and numbers"),
        (5, "must be a dictionary of token ids and numbers"),
        ({1: INFINITY}, "of token 1 is inf; it must be finite"),
        ({1: NAN}, "of token 1 is nan; it must be finite"),
    ],
)
def test_a_bias_that_is_none_is_refused(bias: Any, why: str) -> None:
    with pytest.raises(InputError, match=f"^logit_bias .*{why}"):
        SamplingParams(logit_bias=bias)


def test_a_guided_output_ends() -> None:
    with pytest.raises(InputError, match="ignore_eos and guide contradict each other"):
        SamplingParams(guide=Guide(regex="a"), ignore_eos=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {1: 1.0}},
        {"min_tokens": 1},
        {"guide": Guide(regex="a")},
    ],
)
def test_what_changes_logits_is_known(settings: dict[str, Any]) -> None:
    assert SamplingParams(**settings).shapes_logits
    assert not SamplingParams(temperature=1.0, top_p=0.9, top_k=3, min_p=0.1, logprobs=2, n=3).shapes_logits
