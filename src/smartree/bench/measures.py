"""What was counted and timed while one policy decoded the measured prompts once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from smartree.errors import InputError


@dataclass(frozen=True, slots=True)
class Measures:
    """Counts and seconds of one window, in which the batch was full from the first step to the last.

    Attributes:
        tokens: generated in the window, by all requests that ran in it.
        seconds: of the window, the other policies' turns left out.
        decoding_tokens: those of steps that read no prompt.
        decoding_seconds: of these steps.
        first_tokens: tokens that came from a prompt's own pass.
        steps: steps with at least one decoding request.
        requests: sum over these of the requests decoding.
        rows: N, verified tokens, summed over these.
        levels: draft levels, summed over these.
        path_levels: draft levels, summed over the requests of these.
        draft_seconds: in the drafter.
        policy_seconds: in the policy.
        bookkeeping_seconds: outside target and drafter, the policy's included.
        compared_steps: steps whose target pass the cost model predicted.
        compared_seconds: of these passes, by the clock.
        predicted_seconds: of these passes, by the cost model.
        prediction_error: median over these passes of |predicted / measured - 1|; nan if there are none.
        differing: places of the measured prompts whose tokens are not those of plain decoding.
    """

    tokens: int
    seconds: float
    decoding_tokens: int
    decoding_seconds: float
    first_tokens: int
    steps: int
    requests: int
    rows: int
    levels: int
    path_levels: int
    draft_seconds: float
    policy_seconds: float
    bookkeeping_seconds: float
    compared_steps: int
    compared_seconds: float
    predicted_seconds: float
    prediction_error: float
    differing: tuple[int, ...] = ()

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def decoding_rate(self) -> float:
        """Tokens per second of the steps that read no prompt; nan if there were none."""
        return ratio(self.decoding_tokens, self.decoding_seconds)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; nan stays, which Python reads and writes."""
        return asdict(self) | {"differing": list(self.differing)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Measures:
        """Raises:
        InputError: a field is missing or unknown.
        """
        if not isinstance(data, dict) or data.keys() != {field.name for field in fields(Measures)}:
            raise InputError("The measures are not those of this version.")
        return Measures(**(data | {"differing": tuple(data["differing"])}))


def ratio(part: float, whole: float) -> float:
    """The quotient; nan if there is nothing to divide by."""
    return part / whole if whole else float("nan")


def total(measures: Sequence[Measures], name: str) -> float:
    """The sum of a field."""
    return float(sum(getattr(one, name) for one in measures))
