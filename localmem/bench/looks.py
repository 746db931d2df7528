"""What a model holds in front of each choice, kept on disk: reading a thousand cases takes a laptop an hour, and a run
that was stopped goes on where it was.

A look is known by all that goes into it, the weights, the ids of the prompt and the calls that are offered, so that
one that was made with another prompt is never taken for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from localmem.backend.base import Backend, Completion
from localmem.backend.llama import LlamaBackend
from localmem.bench.arms import Delegate
from localmem.bench.journal import JsonLines
from localmem.calls.calibration import Choice, Guidance, Outlook, Vector, beginnings
from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt
from localmem.kernel.messages import Usage


class Looks:
    """Outlooks by key, a JSON line each; hidden states as 16-bit floats. `path` None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._lines = JsonLines(path)
        self._known: dict[str, Outlook] = dict(self._lines.read(_look))

    def known(self, key: str) -> Outlook | None:
        return self._known.get(key)

    def add(self, key: str, outlook: Outlook) -> Outlook:
        """Keep an outlook; gives it as it will be read back, so that a run that goes on comes to the same end."""
        hidden = _packed(outlook.hidden)
        towards = {choice: round(value, 4) for choice, value in outlook.towards.items()}
        self._known[key] = Outlook(_unpacked(hidden), towards)
        self._lines.append([key, hidden, {str(choice): value for choice, value in towards.items()}])
        return self._known[key]


class LookingBackend(Delegate):
    """Looks at each choice instead of making it."""

    def __init__(self, backend: LlamaBackend, looks: Looks, weights: str) -> None:
        """`weights` names the model's weights among the looks."""
        super().__init__(cast("Backend", backend))
        self._looks = looks
        self._weights = weights
        self.seen: list[tuple[Outlook, Vector]] = []

    def complete(
        self, prompt: Prompt, *, grammar: CallGrammar, guidance: Guidance, owner: str = "", **_: object
    ) -> Completion:
        key = _key(self._weights, prompt, grammar)
        outlook = self._looks.known(key)
        if outlook is None:
            looked = cast("LlamaBackend", self._backend).look(prompt, grammar, owner=owner)
            outlook = self._looks.add(key, looked)
        self.seen.append((outlook, guidance.signs))
        return Completion("", (), "stop", Usage(prompt_tokens=prompt.tokens))


def _key(weights: str, prompt: Prompt, grammar: CallGrammar) -> str:
    offered = sorted(beginnings(grammar).values())
    text = json.dumps([weights, prompt.ids, offered, grammar.frame.plain], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _look(record: Any) -> tuple[str, Outlook]:  # Any: JSON
    key, hidden, towards = record
    return key, Outlook(_unpacked(hidden), {Choice.of(name): value for name, value in towards.items()})


def _packed(values: Vector) -> str:
    return base64.b64encode(values.astype("<f2").tobytes()).decode()


def _unpacked(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(base64.b64decode(text), "<f2").astype(np.float32)
