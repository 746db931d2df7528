"""The arms of the reliability benchmark: ways to get a call out of a model, each a backend round the real one.

free    no constraint behind the opening tag: what the model writes is searched for a call, as tolerantly as can be
schema  one fixed JSON Schema of all functions, as "JSON mode" and most runtimes have it
state   the grammar of the live memory state
tuned   the same with the model's own profile: frame, examples, calibration

They differ in nothing else. Arms that share a prompt go case by case, so that it is read once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from localmem.backend.base import Backend, Completion
from localmem.calls.frame import Frame
from localmem.calls.grammar import CallGrammar, FunctionChoice, Schema
from localmem.calls.prompt import Prompt
from localmem.errors import InvalidArguments

Arm = Literal["free", "schema", "state", "tuned"]
ARMS: tuple[Arm, ...] = ("free", "schema", "state", "tuned")

_FREE_TOKENS = 256  # a free text that holds no call by then holds none
_NAME = re.compile(r'"(?:name|function)"\s*:\s*"([^"]+)"')
_OPENING = re.compile(r'[\s`{}"]*(?:json)?[\s`]*[{<]')


class Delegate:
    """A backend that is another one in everything it does not say itself."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:  # Any: whatever the backend has
        return getattr(self._backend, name)


class ReadBackend(Delegate):
    """Reads the prompt before a call is asked for, so that no arm's seconds hold what it left read for the next."""

    def complete(self, prompt: Any, **more: Any) -> Completion:
        self._backend.read_ahead(prompt, owner=more.get("owner", ""))
        return self._backend.complete(prompt, **more)


class FreeBackend(Delegate):
    """Completes without a grammar; a call that can be made out is handed on in the frame, plain text as a reply.

    The tag a frame begins with is written for the model: some weights cannot (for Qwen2.5-Coder `<tool_call>` is about
    the 15,000th likeliest token, and it ends its turn instead).
    """

    def complete(self, prompt: Prompt, *, grammar: CallGrammar | None, max_tokens: int, **more: Any) -> Completion:
        more.pop("guidance", None)
        tokens = min(max_tokens, _FREE_TOKENS)
        if grammar is None:
            return self._backend.complete(prompt, grammar=None, max_tokens=tokens, **more)
        opening = grammar.frame.tag
        begun = replace(prompt, ids=(*prompt.ids, *self._backend.tokenizer.encode(opening, special=True)))
        free = self._backend.complete(begun, grammar=None, max_tokens=tokens, **more)
        call = call_in(opening + free.text, grammar.frame)
        if call is None:
            return free
        name, arguments = call
        return replace(
            free, text=grammar.frame.write(name, json.dumps(arguments, ensure_ascii=False)), finish_reason="stop"
        )


class SchemaBackend(Delegate):
    """Completes within one grammar of every function as declared, whatever the state."""

    def __init__(self, backend: Backend, functions: Mapping[str, Schema]) -> None:
        super().__init__(backend)
        self._choices = tuple(FunctionChoice(name, _closed(schema)) for name, schema in functions.items())

    def complete(self, prompt: Any, *, grammar: CallGrammar | None, **more: Any) -> Completion:
        more.pop("guidance", None)
        fixed = None if grammar is None else CallGrammar(grammar.frame, self._choices)
        return self._backend.complete(prompt, grammar=fixed, **more)


def call_in(text: str, frame: Frame) -> tuple[str, Mapping[str, object]] | None:
    """The call a free text holds: in its frame, fenced, or anywhere in it; text with no trace of one is a reply.

    >>> call_in('Sure! {"name": "f", "arguments": {"a": 1}}', Frame('{"name": "', '", "arguments": ', "}"))
    ('f', {'a': 1})
    """
    try:
        call = frame.parse(text)
        return call.name, dict(call.arguments)
    except InvalidArguments:
        pass
    decoder = json.JSONDecoder(strict=False)
    for found in re.finditer(r"\{", text):
        try:
            value, _ = decoder.raw_decode(text, found.start())
        except ValueError:
            continue
        if isinstance(value, dict) and (name := value.get("name", value.get("function"))):
            arguments = value.get("arguments", value.get("parameters", {}))
            if isinstance(name, str) and isinstance(arguments, dict):
                return name, arguments
    if _NAME.search(text) or _OPENING.match(text) or not text.strip():
        return None
    return "send_message", {"message": text.strip()}


def _closed(schema: Schema) -> Schema:
    """As a fixed schema is handed over: no argument but the declared ones, texts bounded so that they end."""
    properties = {
        name: {**value, "maxLength": 400} if value.get("type") == "string" and "format" not in value else value
        for name, value in schema["properties"].items()
    }
    return {**schema, "properties": properties, "additionalProperties": False}
