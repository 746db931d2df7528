"""Calibration: what a model's hidden state says about which call is due, learned from labelled decisions.

A small model knows better what is asked than which function's name to write: it prefers some names whatever the
question. So each call of the built-in set gets an output row of its own over the model's last hidden state, as though
it were a word of the vocabulary (tool embeddings on a frozen model: ToolkenGPT, arXiv 2305.11554), and over what the
runtime sees for itself (`memory/signs.py`). The rows are fitted once a model (`localmem models tune`) and cost one
product of a small matrix and a vector a call, no token.

Pure: arrays and names. The decode loop asks `backend/guide.py`, which asks this.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from localmem.calls.grammar import CallGrammar, Schema
from localmem.errors import LocalmemError

Vector = np.ndarray[Any, np.dtype[np.float32]]
"""Hidden states, shape (features,), or scores, shape (choices,)."""

LABEL = "label"
OLD_CONTENT = "old_content"


@dataclass(frozen=True, slots=True)
class Choice:
    """What can be chosen: a function, and where it edits a block, which one."""

    function: str
    label: str = ""

    def __str__(self) -> str:
        return f"{self.function} {self.label}".strip()

    @staticmethod
    def of(text: str) -> Choice:
        """The inverse of `str`."""
        return Choice(*text.split(" ", 1))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a calibration was fitted on, and what cross-validation over people left out says of it: shares of right
    choices, from 0 to 1, with it and without."""

    decisions: int = 0
    right: float = 0.0
    right_without: float = 0.0

    @property
    def helps(self) -> bool:
        return self.right > self.right_without

    def __str__(self) -> str:
        return (
            f"{self.right:.1%} right choices of people left out of the fitting, {self.right_without:.1%} without, "
            f"in {self.decisions:,} decisions"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Scores of choices: `weights` (choices, features), `bias` (choices,). Features are the hidden state, then signs.

    `trust` is the weight of the model's own log-probability beside them. `prompt` is the fingerprint of the prompt it
    was fitted on: another prompt makes other hidden states.
    """

    choices: tuple[Choice, ...]
    weights: np.ndarray[Any, np.dtype[np.float32]]
    bias: Vector
    trust: float
    prompt: str
    evidence: Evidence = Evidence()

    @property
    def features(self) -> int:
        return int(self.weights.shape[1])

    def scores(self, hidden: Vector, signs: Vector) -> dict[Choice, float]:
        """The score of each choice, the model's own opinion not counted."""
        values = self.weights @ np.concatenate((hidden, signs)) + self.bias
        return {choice: float(value) for choice, value in zip(self.choices, values, strict=True)}

    @property
    def fingerprint(self) -> str:
        """Tells one calibration from another, of the same prompt too."""
        parts = (self.prompt.encode(), str(self.trust).encode(), self.weights.tobytes(), self.bias.tobytes())
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def write(self, path: Path) -> None:
        """As JSON; the weights as 16-bit floats in base64."""
        table = {
            "prompt": self.prompt,
            "trust": self.trust,
            "evidence": {name: round(value, 4) for name, value in asdict(self.evidence).items()},
            "choices": [str(choice) for choice in self.choices],
            "bias": [round(float(value), 4) for value in self.bias],
            "features": self.features,
            "weights": [base64.b64encode(row.astype("<f2").tobytes()).decode() for row in self.weights],
        }
        path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True, eq=False)
class Guidance:
    """A calibration, and the signs (`memory/signs.py`) of the one decision it is to help with."""

    calibration: Calibration
    signs: Vector
    lines: Mapping[str, float] = field(default_factory=dict[str, float])
    """What each line that can be replaced weighs beside the model's log-probability."""

    def fits(self, hidden_size: int) -> bool:
        """Whether the calibration is one of a model with hidden states of that size."""
        return self.calibration.features == hidden_size + len(self.signs)

    def scores(self, hidden: Vector) -> dict[Choice, float]:
        return self.calibration.scores(hidden, self.signs)


NO_CALIBRATION = Calibration((), np.zeros((0, 0), np.float32), np.zeros(0, np.float32), 1.0, "")
"""Knows no choice, leaves every one to the model, and goes with any prompt."""


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """What a model holds in front of a choice: its hidden state, and its own log-probability towards each choice."""

    hidden: Vector
    towards: Mapping[Choice, float]


def read_calibration(path: Path) -> Calibration:
    """Raises LocalmemError for what is no calibration."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        weights = [np.frombuffer(base64.b64decode(row), "<f2").astype(np.float32) for row in table["weights"]]
        told = table["evidence"]
        calibration = Calibration(
            choices=tuple(map(Choice.of, table["choices"])),
            weights=np.stack(weights),
            bias=np.array(table["bias"], np.float32),
            trust=float(table["trust"]),
            prompt=str(table["prompt"]),
            evidence=Evidence(int(told["decisions"]), float(told["right"]), float(told["right_without"])),
        )
        if calibration.weights.shape != (len(calibration.choices), int(table["features"])) or (
            calibration.bias.shape != (len(calibration.choices),)
        ):
            raise ValueError("its rows do not fit its choices")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise LocalmemError(
            f"{path} is no calibration: {error}", "Take it away, or fit it again with: localmem models tune NAME"
        ) from error
    return calibration


def beginnings(grammar: CallGrammar) -> dict[Choice, str]:
    """The text a completion begins with, for each call the grammar offers; a plain reply begins as it likes."""
    found: dict[Choice, str] = {}
    for offered in grammar.choices:
        if offered.name == grammar.frame.plain:
            continue
        head = grammar.frame.head(offered.name)
        labels = _labels(offered.parameters)
        for label in labels:
            found[Choice(offered.name, label)] = f"{head}{{{json.dumps(LABEL)}: {json.dumps(label, ensure_ascii=False)}"
        if not labels:
            found[Choice(offered.name)] = head.rstrip(" ")
    return found


def replaceable(grammar: CallGrammar) -> dict[str, list[str]]:
    """The lines a call may replace, each with the texts a completion that replaces it begins with."""
    found: dict[str, list[str]] = {}
    for offered in grammar.choices:
        head = grammar.frame.head(offered.name)
        for alternative in offered.parameters.get("anyOf", [offered.parameters]):
            properties = alternative.get("properties", {})
            if list(properties)[:2] != [LABEL, OLD_CONTENT]:
                continue
            for label in _labels(alternative):
                for line in properties[OLD_CONTENT].get("enum", []):
                    place = json.dumps({LABEL: label, OLD_CONTENT: line}, ensure_ascii=False).removesuffix("}")
                    found.setdefault(line, []).append(head + place)
    return found


def _labels(schema: Schema) -> list[str]:
    """The blocks a call may name first, if it names one first."""
    labels: list[str] = []
    for alternative in schema.get("anyOf", [schema]):
        first, _ = next(iter(alternative.get("properties", {}).items()), ("", None))
        if first == LABEL:
            label = alternative["properties"][LABEL]
            labels += [label["const"]] if "const" in label else label.get("enum", [])
    return labels


def fingerprint(parts: Sequence[str], declarations: Mapping[str, object]) -> str:
    """What a prompt is made of, in 16 characters."""
    text = json.dumps([*parts, dict(declarations)], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
