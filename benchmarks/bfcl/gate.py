"""The gate: whether a call is due, read off what a model holds in front of its answer.

A small model that may decline seldom does, once a grammar holds it to calls. What it would rather do is in its hidden
state and in the probability with which it begins a call of itself. A regularised logistic regression over both is
fitted to our own cases (`benchmarks/cases/gate.jsonl`), cross-validated over groups of functions that no fold shares,
and the threshold set so that few wanted calls are lost. No case of BFCL has a part in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from benchmarks.bfcl.asking import INSTRUCTIONS, Asked, ask
from benchmarks.bfcl.data import Document
from benchmarks.journal import Journal
from localmem.backend.base import Backend
from localmem.backend.llama import LlamaBackend
from localmem.calls.calibration import Choice
from localmem.calls.grammar import CallGrammar, FunctionChoice
from localmem.errors import LocalmemError

KEPT = 0.95
"""Of the wanted calls, how many the gate must let through in cross-validation."""

_FOLDS = 10
_PENALTIES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003)
_ITERATIONS = 500
_LEAST_LOG = -20.0  # a probability below e^-20 says no more than this
_OPENINGS = ("{", '{"', "{\n", "[", "[{", '[{"', "```", "```json\n", "<tool_call>", "<function", " {", "\n{", "\n```")
"""How models begin a call, whichever frame their family has."""
_REPLY = FunctionChoice(
    "send_message",
    {
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
        "additionalProperties": False,
    },
)

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class GateCase:
    """What a user asks while there are some functions, and whether one of them should be called."""

    id: str
    functions: tuple[Document, ...]
    user: str
    call: bool

    @property
    def group(self) -> str:
        """Cases of one group are about the same functions."""
        return self.id.rpartition("-")[0]


def read_gate_cases(path: Path) -> list[GateCase]:
    """The cases of a JSONL file, in order. Raises LocalmemError that names the line at fault."""
    cases: list[GateCase] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            cases.append(GateCase(row["id"], tuple(row["functions"]), row["user"], bool(row["call"])))
        except (ValueError, KeyError, TypeError) as error:
            raise LocalmemError(f"{path}, line {number}: {error!r}", "A line is id, functions, user, call.") from error
    return cases


# -- looking ------------------------------------------------------------------------------------------------------


class Looker:
    """What a model holds in front of its answer, as features: the hidden state behind the prompt, the hidden state
    where a function's name would be chosen, and four log-probabilities."""

    def __init__(self, backend: LlamaBackend) -> None:
        self._backend = backend
        encode = backend.tokenizer.encode
        self._openings = sorted({ids[0] for ids in (encode(text, special=True) for text in _OPENINGS) if ids})

    def look(self, asked: Asked) -> tuple[Array, Array]:
        """Hidden states, shape (2 * hidden size,), and log-probabilities, shape (4,)."""
        at_beginning = self._backend.look(asked.prompt, asked.open_grammar)
        begins = _log_shares(self._backend.logits())
        named = CallGrammar(asked.frame, (*(one for one in asked.choices if one.name != _REPLY.name), _REPLY))
        at_name = self._backend.look(asked.prompt, named)
        reply = at_name.towards.get(Choice(_REPLY.name), _LEAST_LOG)
        others = [value for choice, value in at_name.towards.items() if choice.function != _REPLY.name]
        signs = [
            np.logaddexp.reduce(begins[self._openings]),
            begins[sorted(self._backend.end_tokens)].max(),
            reply,
            max(others, default=_LEAST_LOG),
        ]
        hidden = np.concatenate([at_beginning.hidden, at_name.hidden]).astype(np.float64)
        return hidden, np.maximum(np.array(signs, np.float64), _LEAST_LOG)


def _log_shares(logits: Any) -> Array:
    values = np.asarray(logits, np.float64)
    return values - np.logaddexp.reduce(values[np.isfinite(values)])


def look_at(
    backend: LlamaBackend,
    cases: Iterable[GateCase],
    journal: Journal,
    *,
    on_case: Callable[[], object] | None = None,
) -> list[tuple[Array, Array]]:
    """The features of each case. What the journal knows is not looked at again."""
    looker = Looker(backend)
    found: list[tuple[Array, Array]] = []
    for case in cases:
        record = journal.known(case.id)
        if record is None:
            hidden, signs = looker.look(ask(backend, [("user", case.user)], case.functions))
            record = journal.add(case.id, {"hidden": _packed(hidden), "signs": _packed(signs)})
        found.append((_unpacked(record["hidden"]), _unpacked(record["signs"])))
        if on_case is not None:
            on_case()
    return found


def _packed(values: Array) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _unpacked(text: str) -> Array:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float64)


# -- fitting ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """Scores of what is seen: `weights` (features,) and `bias`; a call is due from `threshold` on.

    `kept` and `refused` are the shares of wanted calls let through and of unwanted ones held back, `area` that under
    the ROC curve, all in cross-validation.
    """

    weights: Array
    bias: float
    threshold: float
    kept: float
    refused: float
    area: float
    penalty: float

    def opens(self, hidden: Array, signs: Array) -> bool:
        """Whether a call is due."""
        return float(np.concatenate([hidden, signs]) @ self.weights + self.bias) >= self.threshold

    def figures(self) -> dict[str, float]:
        """What cross-validation says of it."""
        names = ("kept", "refused", "area", "penalty", "threshold")
        return {name: float(f"{getattr(self, name):.4g}") for name in names}

    def write(self, path: Path) -> None:
        """As JSON; the weights as 32-bit floats in base64."""
        table = {"weights": _packed(self.weights), "bias": self.bias, "threshold": self.threshold}
        told = {name: getattr(self, name) for name in ("kept", "refused", "area", "penalty")}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**table, **told}) + "\n", encoding="utf-8")


def read_gate(path: Path) -> Gate:
    """Raises LocalmemError for what is no gate."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return Gate(**{**table, "weights": _unpacked(table["weights"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalmemError(f"{path} is no gate: {error}", "Fit it again: python -m benchmarks.bfcl --fit") from error


def fit_gate(cases: Sequence[GateCase], features: Sequence[tuple[Array, Array]], *, kept: float = KEPT) -> Gate:
    """The gate whose penalty separates groups it has not seen best, and whose threshold lets `kept` of their wanted
    calls through."""
    hidden, signs = (np.stack([pair[part] for pair in features]) for part in (0, 1))
    raw = np.hstack([hidden, signs])
    # Each kind of feature weighs as much as the others, however many there are of it.
    half = hidden.shape[1] // 2
    kinds = [hidden[:, :half], hidden[:, half:], signs]
    scale = np.concatenate([1 / (kind.std(0) + 1e-3) / np.sqrt(max(1, kind.shape[1])) for kind in kinds])
    middle = raw.mean(0)
    values, wanted = (raw - middle) * scale, np.array([case.call for case in cases])
    folds = _folds(cases)
    held_out = {penalty: _held_out(values, wanted, folds, penalty) for penalty in _PENALTIES}
    penalty = max(held_out, key=lambda penalty: _area(held_out[penalty], wanted))
    scores = held_out[penalty]
    threshold = _threshold(scores[wanted], kept)
    weights, bias = _regress(values, wanted, penalty)
    unscaled = weights * scale
    return Gate(
        weights=unscaled,
        bias=float(bias - unscaled @ middle),
        threshold=threshold,
        kept=float((scores[wanted] >= threshold).mean()),
        refused=float((scores[~wanted] < threshold).mean()),
        area=_area(scores, wanted),
        penalty=penalty,
    )


def _folds(cases: Sequence[GateCase]) -> Array:
    """A fold for each case, the same for all of a group."""
    groups = list(dict.fromkeys(case.group for case in cases))
    return np.array([groups.index(case.group) % _FOLDS for case in cases])


def _held_out(values: Array, wanted: Array, folds: Array, penalty: float) -> Array:
    """Each case's score by a regression that has not seen its fold."""
    scores = np.zeros(len(values))
    for fold in np.unique(folds):
        inside, outside = folds != fold, folds == fold
        weights, bias = _regress(values[inside], wanted[inside], penalty)
        scores[outside] = values[outside] @ weights + bias
    return scores


def _threshold(wanted_scores: Array, kept: float) -> float:
    """The highest threshold that lets that share of the wanted calls through."""
    ordered = np.sort(wanted_scores)
    return float(ordered[int((1 - kept) * len(ordered) + 1e-9)])


def _area(scores: Array, wanted: Array) -> float:
    """The chance that a wanted call scores higher than an unwanted one."""
    above = scores[wanted][:, None] - scores[~wanted][None, :]
    return float((above > 0).mean() + (above == 0).mean() / 2)


def _regress(values: Array, wanted: Array, penalty: float) -> tuple[Array, float]:
    """Logistic regression with a penalty on the weights' squares."""
    sides = np.where(wanted, 1.0, -1.0)

    def loss(flat: Array) -> tuple[float, Array]:
        margins = sides * (values @ flat[:-1] + flat[-1])
        pull = -sides / (1 + np.exp(np.clip(margins, -500, 500))) / len(values)
        value = np.logaddexp(0, -margins).mean() + penalty * (flat[:-1] ** 2).sum() / 2
        return float(value), np.append(pull @ values + penalty * flat[:-1], pull.sum())

    start = np.zeros(values.shape[1] + 1)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS})
    return np.asarray(found.x[:-1], np.float64), float(found.x[-1])


# -- for a run ----------------------------------------------------------------------------------------------------


def gate_name(backend: Backend, model: str, sha256: str, cases: Path) -> str:
    """A name that changes with the model, its template, the prompt and the cases."""
    parts = [sha256 or model, backend.chat_template or "", INSTRUCTIONS, cases.read_text(encoding="utf-8")]
    return f"gate-{model}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"


def fitted_name(name: str) -> str:
    """A name that changes with how the gate called `name` is fitted, too: what was looked at serves any fit."""
    fit = json.dumps([KEPT, _PENALTIES, _FOLDS, _ITERATIONS])
    return f"{name}-{hashlib.sha256(fit.encode()).hexdigest()[:8]}.json"


class GateKeeper:
    """Asks a gate about one question after another."""

    def __init__(self, backend: LlamaBackend, gate: Gate) -> None:
        self._looker = Looker(backend)
        self._gate = gate

    def __call__(self, asked: Asked) -> tuple[bool, float]:
        """Whether a call is due, and the seconds it took to see."""
        started = time.perf_counter()
        hidden, signs = self._looker.look(asked)
        return self._gate.opens(hidden, signs), time.perf_counter() - started
