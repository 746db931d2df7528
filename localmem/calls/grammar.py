"""The grammar of one step: which functions may be called now, with which arguments.

Pure. Made from schemas that the live memory state has already narrowed (`memory/functions.py`), and written out in
three forms: Lark for llguidance, JSON Schema for outlines and for readers, GBNF for llama.cpp's own sampler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from localmem.calls.frame import Frame

Schema = Mapping[str, Any]
"""JSON Schema, as outlines and llguidance read it. Any: JSON."""

# One canonical layout: free whitespace is where small models get lost (oMLX #2990).
# A JSON string without \u escapes: what can be written as it is has one spelling.
_CHARACTER_STRING = r'"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt]){{{low},{high}}}"'

_LAYOUT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}


@dataclass(frozen=True, slots=True)
class FunctionChoice:
    """One function a step may call; `parameters` is an object schema, already narrowed."""

    name: str
    parameters: Schema


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Exactly one call out of `choices`, in `frame`."""

    frame: Frame
    choices: tuple[FunctionChoice, ...]

    def lark(self, encode: Callable[[str], list[int]], *, by_ids: bool = True) -> str:
        """Lark for llguidance. `encode` gives the ids of template text, control tokens included.

        The frame and the function's name are spelled as token ids, not as bytes: so a name is chosen over whole
        canonical token sequences, and its forced part costs no sampling. Not `by_ids`, it is spelled as text: in a
        SentencePiece vocabulary a byte token and an ordinary one may read the same, and llguidance takes one for the
        other.
        """
        rules = ["start: " + " | ".join(f"call_{i}" for i in range(len(self.choices)))]
        for index, choice in enumerate(self.choices):
            head = self.frame.before + choice.name + self.frame.between.rstrip(" ")
            gap = '" " ' if self.frame.between.endswith(" ") else ""
            spelled = _tokens(encode(head)) if by_ids else json.dumps(head, ensure_ascii=False)
            rules.append(f"call_{index}: {spelled} {gap}arguments_{index} tail")
            rules += _arguments(f"arguments_{index}", choice.parameters)
        after = self.frame.after
        rules.append("tail: " + (_tail(after, encode) if by_ids else json.dumps(after, ensure_ascii=False)))
        return "\n".join(rules) + "\n"

    def json_schema(self) -> dict[str, Any]:  # Any: JSON
        """The union of the calls as one schema, without the frame."""
        definitions: dict[str, Any] = {}
        calls: list[dict[str, Any]] = []
        for choice in self.choices:
            parameters = _referring(dict(choice.parameters), choice.name)
            for label, definition in parameters.pop("$defs", {}).items():
                definitions[f"{choice.name}.{label}"] = definition
            calls.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": choice.name}, "arguments": parameters},
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
            )
        union = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return {"$defs": definitions, **union} if definitions else union


def _arguments(rule: str, schema: Schema) -> list[str]:
    """Lark for an object schema. llguidance's JSON knows no `not`: an object with one is written out, property by
    property, and a string that must not be some others is a difference of regular expressions."""
    if not _has_not(schema):
        return [f"{rule}: %json {json.dumps({**schema, **_LAYOUT})}"]
    # All alternatives alike: the longest lexeme wins, so one in `%json` beside one written out would never be entered.
    alternatives = [_written_out(f"{rule}_{i}", one) for i, one in enumerate(schema.get("anyOf", [schema]))]
    union = " | ".join(f"{rule}_{i}" for i in range(len(alternatives)))
    return [f"{rule}: {union}", *(line for lines in alternatives for line in lines)]


def _written_out(rule: str, schema: Schema) -> list[str]:
    parts: list[str] = []
    below: list[str] = []
    for number, (name, value) in enumerate(schema["properties"].items()):
        part = f"{rule}_{number}"
        if "not" in value:
            part = part.upper()
            below.append(f"{part}: {_string_but(value)}")
        else:
            below.append(f"{part}: %json {json.dumps({**value, **_LAYOUT})}")
        key = f"{', ' if number else '{'}{json.dumps(name, ensure_ascii=False)}: "
        parts += [json.dumps(key, ensure_ascii=False), part]
    return [f"{rule}: {' '.join(parts)} {json.dumps('}')}", *below]


def _has_not(schema: Schema) -> bool:
    values = [value for one in schema.get("anyOf", [schema]) for value in one.get("properties", {}).values()]
    return any("not" in value for value in values)


def _string_but(schema: Schema) -> str:
    """A JSON string as a Lark terminal: any but those in its `not`, each spelled the one way the terminal knows."""
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    spelled = "|".join(map(_literal, schema["not"]["enum"]))
    return f"/{_CHARACTER_STRING.format(low=low, high=high)}/ & ~/({spelled})/"


def _literal(text: str) -> str:
    """A JSON string as a regular expression between slashes that matches it alone."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/])", r"\\\1", json.dumps(text, ensure_ascii=False))


def _referring(schema: Any, owner: str) -> Any:  # Any: JSON
    """References to a function's own definitions, pointed at where they stand in the union."""
    if isinstance(schema, list):
        return [_referring(item, owner) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value.replace("#/$defs/", f"#/$defs/{owner}.", 1)
        if key == "$ref" and isinstance(value, str)
        else _referring(value, owner)
        for key, value in schema.items()
    }


def _tokens(ids: list[int]) -> str:
    return " ".join(f"<[{token}]>" for token in ids)


def _tail(after: str, encode: Callable[[str], list[int]]) -> str:
    """The end of the frame: plain text as bytes, so that a closing quote may merge into it; a tag by its id."""
    plain, _, tag = after.partition("<")
    parts = [json.dumps(plain, ensure_ascii=False)] if plain else []
    if tag:
        parts.append(_tokens(encode("<" + tag)))
    return " ".join(parts) or '""'
