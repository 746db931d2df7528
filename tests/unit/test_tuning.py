"""Fitting a calibration: what it learns, and that it is switched off where it does not help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from localmem.bench.cases import Case
from localmem.bench.tuning import Decision, fit
from localmem.calls.calibration import Choice, Outlook

CHOICES = (Choice("send_message"), Choice("core_memory_append", "human"), Choice("archival_memory_search"))


def decisions(n: int, *, informative: bool, liked: int = 0) -> Iterator[Decision]:
    """Decisions of ten people, whose hidden state tells the right choice or nothing; the model likes one always."""
    random = np.random.default_rng(3)
    for number in range(n):
        right = int(random.integers(3))
        hidden = random.normal(size=12).astype(np.float32)
        if informative:
            hidden[right] += 4
        case = Case.model_validate(
            {"id": str(number), "user": "x", "human": str(number % 10), "expect": [CHOICES[right].function]}
        )
        towards = {choice: float(np.log(0.8 if place == liked else 0.1)) for place, choice in enumerate(CHOICES)}
        yield Decision(case, Outlook(hidden, towards), random.random(4).astype(np.float32), frozenset({CHOICES[right]}))


def test_it_learns_what_the_hidden_state_tells_and_the_model_does_not():
    found = fit(list(decisions(150, informative=True)), "p")
    assert found.evidence.decisions == 150
    assert found.evidence.right_without < 0.5
    assert found.evidence.right > 0.9
    assert found.evidence.helps
    right = 0
    for one in decisions(60, informative=True, liked=2):
        scores = found.scores(one.outlook.hidden, one.signs)
        right += max(scores, key=lambda choice: scores[choice]) in one.right
    assert right > 50


def test_it_does_not_help_where_there_is_nothing_to_learn():
    sure = []
    for one in decisions(100, informative=False):
        (right,) = one.right
        towards = {choice: float(np.log(0.98 if choice == right else 0.01)) for choice in CHOICES}
        sure.append(replace(one, outlook=Outlook(one.outlook.hidden, towards)))
    found = fit(sure, "p")
    assert found.evidence.right_without == 1.0
    assert not found.evidence.helps
