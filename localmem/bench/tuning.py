"""Tuning a model: its outlook on every development case, and the calibration fitted to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from localmem.backend.base import Backend
from localmem.backend.llama import LlamaBackend
from localmem.bench.cases import Case
from localmem.bench.journal import Journal
from localmem.bench.looks import LookingBackend, Looks
from localmem.bench.reliability import declared_functions, judge, open_journal, ordered
from localmem.bench.scoring import Outcome, share
from localmem.bench.situation import decide, situation
from localmem.calls.calibration import NO_CALIBRATION, Calibration, Choice, Evidence, Outlook, Vector
from localmem.config import Settings
from localmem.models import Profile

_FOLDS = 7
_PENALTIES = (0.001, 0.0003, 0.0001, 0.00003)  # falling: each regression starts from the one before
_TRUSTS = (0.0, 0.5, 1.0)
_ITERATIONS = 300
_LEAST_DEVIATION = 0.15

Array = np.ndarray[Any, np.dtype[np.float64]]
Weights = tuple[Array, Array]
"""Of the choices, shape (choices, features), and the bias of each."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a model held in front of a case's choice, and which of what was offered is right."""

    case: Case
    outlook: Outlook
    signs: Vector
    right: frozenset[Choice]

    @property
    def offered(self) -> frozenset[Choice]:
        return frozenset(self.outlook.towards)


def look_at(
    backend: LlamaBackend,
    cases: Sequence[Case],
    settings: Settings,
    profile: Profile,
    *,
    looks: Looks | None = None,
    weights: str = "",
    on_case: Callable[[Case], object] | None = None,
) -> tuple[list[Decision], str]:
    """The decisions of `cases`, and the fingerprint of the prompt they were looked at with. What `looks` knows of these
    `weights` (any name that is theirs alone) is not looked at again."""
    looking = LookingBackend(backend, looks or Looks(None), weights)
    uncalibrated = replace(profile, calibration=NO_CALIBRATION)
    decisions: list[Decision] = []
    prompt = ""
    for case in ordered(cases):
        with situation(case, cast("Backend", looking), settings, uncalibrated) as agent:
            prompt = agent.prompt_fingerprint()
            decide(agent, case)
        outlook, signs = looking.seen[-1]
        decisions.append(Decision(case, outlook, signs, frozenset(filter(_is_right(case), outlook.towards))))
        if on_case is not None:
            on_case(case)
    return decisions, prompt


def _is_right(case: Case) -> Callable[[Choice], bool]:
    label = case.args.label
    return lambda choice: choice.function in case.expect and (not choice.label or label in (None, choice.label))


# -- choosing a profile -------------------------------------------------------------------------------------------

PROFILES: tuple[Profile, ...] = (
    Profile(),
    Profile(examples=False),
    Profile(frame="bare"),
    Profile(frame="hermes"),
    Profile(thought="first"),
    Profile(thought="last"),
    Profile(reply="plain"),
    Profile(functions="plain"),
)
"""What is tried, the usual first, each beside it other in one thing. `native` is the family's own frame, or bare JSON
where it has none."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How one profile did on the cases it was tried on, without calibration."""

    profile: Profile
    outcomes: tuple[Outcome, ...]

    @property
    def right(self) -> float:
        return share(self.outcomes, "right_call").value


def try_profiles(
    backend: Backend,
    cases: Sequence[Case],
    settings: Settings,
    profiles: Sequence[Profile] = PROFILES,
    *,
    journal: Journal[Outcome] | None = None,
    on_case: Callable[[Case], object] | None = None,
) -> list[Trial]:
    """Each profile on the same cases, the best first; of two alike, the one that comes first in `profiles`. What
    `journal` knows of is not tried again."""
    journal = journal or open_journal(None)
    functions = declared_functions()
    trials: list[Trial] = []
    for profile in profiles:
        outcomes: list[Outcome] = []
        for case in ordered(cases):
            key = f"{profile.fingerprint} {case.id}"
            outcome = journal.known(key) or journal.add(key, judge(backend, case, settings, profile, functions))
            outcomes.append(outcome)
            if on_case is not None:
                on_case(case)
        trials.append(Trial(profile, tuple(outcomes)))
    return sorted(trials, key=lambda trial: -trial.right)


# -- fitting ------------------------------------------------------------------------------------------------------


class _Data:
    """Decisions as arrays: features (n, features), the model's own log-probability towards each choice (n, choices),
    what was offered and what is right (n, choices)."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        self.choices = tuple(sorted({choice for one in decisions for choice in one.offered}, key=str))
        hidden = np.stack([one.outlook.hidden for one in decisions]).astype(np.float64)
        signs = np.stack([one.signs for one in decisions]).astype(np.float64)
        self.hidden = hidden.shape[1]
        # Each kind of feature weighs as much as the other, however many there are of it.
        weights = np.concatenate([_scale(hidden), _scale(signs)])
        self.middle = np.concatenate([hidden.mean(0), signs.mean(0)])
        self.scale = weights
        self.features = (np.hstack([hidden, signs]) - self.middle) * self.scale
        self.offered = np.array([[choice in one.offered for choice in self.choices] for one in decisions])
        self.right = np.array([[choice in one.right for choice in self.choices] for one in decisions])
        self.model = np.array([[one.outlook.towards.get(choice, 0.0) for choice in self.choices] for one in decisions])
        profiles = list(dict.fromkeys(one.case.profile for one in decisions))
        self.fold = np.array([profiles.index(one.case.profile) % _FOLDS for one in decisions])


def _scale(values: Array) -> Array:
    # A sign that hardly varies must not weigh the more for it.
    return 1 / np.maximum(values.std(0), _LEAST_DEVIATION) / np.sqrt(values.shape[1])


REGRESSIONS = len(_TRUSTS) * len(_PENALTIES) * _FOLDS
"""How many of them a fit makes before the last."""


def fit(
    decisions: Sequence[Decision], prompt: str, *, on_regression: Callable[[], object] | None = None
) -> Calibration:
    """The calibration that chooses best on people it has not seen: penalty and trust are those with which most choices
    are right when each fold of the cases' profiles is left out of the fitting in turn.

    Multinomial logistic regression among what was offered, the model's own log-probability as an offset; a case may
    have several right choices. Raises LocalmemError when no decision has a right choice among those offered.
    """
    data = _Data([one for one in decisions if one.right])
    everything = np.arange(len(data.fold))
    scored: list[tuple[float, float, float]] = []
    for trust in _TRUSTS:
        starts: list[Weights | None] = [None] * _FOLDS
        for penalty in _PENALTIES:
            right = 0.0
            for fold in range(_FOLDS):
                inside, outside = everything[data.fold != fold], everything[data.fold == fold]
                weights, bias = starts[fold] = _regress(data, inside, penalty, trust, starts[fold])
                right += _hits(data, outside, weights, bias, trust)
                if on_regression is not None:
                    on_regression()
            scored.append((right / len(everything), penalty, trust))
    best, penalty, trust = max(scored)
    weights, bias = _regress(data, everything, penalty, trust)
    unscaled = weights * data.scale
    none = np.zeros_like(weights), np.zeros_like(bias)
    without = _hits(data, everything, *none, 1.0) / len(everything)
    return Calibration(
        data.choices,
        unscaled.astype(np.float32),
        (bias - unscaled @ data.middle).astype(np.float32),
        trust,
        prompt,
        Evidence(len(everything), best, without),
    )


def _regress(data: _Data, rows: Any, penalty: float, trust: float, start: Weights | None = None) -> Weights:
    from scipy.optimize import minimize

    features, right = data.features[rows], data.right[rows]
    offset = np.where(data.offered[rows], trust * data.model[rows], -np.inf)
    choices, width = len(data.choices), features.shape[1]

    def loss(flat: Array) -> tuple[float, Array]:
        weights, bias = flat[: choices * width].reshape(choices, width), flat[choices * width :]
        scores = features @ weights.T + bias + offset
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        hit = (chances * right).sum(axis=1) + 1e-12
        slope = (chances - chances * right / hit[:, None]) / len(features)
        value = float(-np.log(hit).mean() + penalty * (weights**2).sum() / 2)
        return value, np.concatenate([(slope.T @ features + penalty * weights).ravel(), slope.sum(axis=0)])

    begin = np.zeros(choices * (width + 1)) if start is None else np.concatenate([start[0].ravel(), start[1]])
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS})
    flat = np.asarray(found.x, np.float64)
    return flat[: choices * width].reshape(choices, width), flat[choices * width :]


def _hits(data: _Data, rows: Any, weights: Array, bias: Array, trust: float) -> float:
    scores = data.features[rows] @ weights.T + bias + trust * data.model[rows]
    chosen = np.where(data.offered[rows], scores, -np.inf).argmax(axis=1)
    return float(data.right[rows][np.arange(len(chosen)), chosen].sum())
