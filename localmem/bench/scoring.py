"""What a decision was worth, and what many were worth together: shares with their 95 % intervals. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """One decision of one arm. `call` is what was called, as people read it; "" when nothing could be made out."""

    case: str
    category: str
    call: str
    function: str
    valid: bool
    executable: bool
    right_function: bool
    right_call: bool
    only_reply: bool
    """The case wants an answer and nothing else."""
    tokens: int
    seconds: float
    """From the prompt read to the call written."""
    result: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """How many of how many, and the 95 % interval of the rate behind it (Wilson, 1927)."""

    hits: int
    n: int

    @property
    def value(self) -> float:
        return self.hits / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """
        >>> tuple(round(end, 3) for end in Share(8, 10).interval)
        (0.49, 0.943)
        """
        if not self.n:
            return 0.0, 1.0
        z, n, p = 1.959964, self.n, self.value
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)


SHARES = ("valid", "executable", "right_function", "right_call")


def share(outcomes: Iterable[Outcome], name: str) -> Share:
    values = [bool(getattr(outcome, name)) for outcome in outcomes]
    return Share(sum(values), len(values))


def restraint(outcomes: Iterable[Outcome]) -> Share:
    """Of the decisions that want an answer and nothing else, how many were one."""
    return share((outcome for outcome in outcomes if outcome.only_reply), "right_function")


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:  # Any: JSON
    """Shares from 0 to 1, tokens and seconds a call, and the shares of each category."""
    categories = sorted({outcome.category for outcome in outcomes})
    return {
        "n": len(outcomes),
        **_shares(outcomes),
        "restraint": round(restraint(outcomes).value, 4),
        "intervals": {
            **{name: _rounded(share(outcomes, name).interval) for name in SHARES},
            "restraint": _rounded(restraint(outcomes).interval),
        },
        "tokens_per_call": round(mean(outcome.tokens for outcome in outcomes), 1) if outcomes else 0.0,
        "seconds_per_call": round(mean(outcome.seconds for outcome in outcomes), 3) if outcomes else 0.0,
        "by_category": {
            category: {"n": len(chosen), **_shares(chosen)}
            for category in categories
            if (chosen := [outcome for outcome in outcomes if outcome.category == category])
        },
    }


def _shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {name: round(share(outcomes, name).value, 4) for name in SHARES}


def _rounded(interval: tuple[float, float]) -> list[float]:
    return [round(end, 4) for end in interval]
