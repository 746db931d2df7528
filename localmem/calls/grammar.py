"""The grammar of one step: which functions may be called now, with which arguments.

Pure. Made from schemas that the live memory state has already narrowed (`memory/functions.py`), and written out in
two forms: Lark for llguidance, JSON Schema for outlines and for readers. `calls/gbnf.py` writes a third, for llama.cpp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localmem.calls.frame import MESSAGE, Frame

Schema = Mapping[str, Any]
"""JSON Schema, as outlines and llguidance read it. Any: JSON."""

# A JSON string without \u escapes: what can be written as it is has one spelling.
_CHARACTER_STRING = r'"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt]){{{low},{high}}}"'

_BEGUN_STRING = r'/"[^\s"](?s:.)*/'  # its first character is no blank

# One canonical layout: free whitespace is where small models get lost (oMLX #2990).
_LAYOUT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}

ROOM = "x-maxTokens"
"""Of a string in a schema: how many of the model's tokens it may have. The decode loop sees to it, no grammar can."""
NOT_BLANK = r"^\S"
"""The pattern of a text that begins with something to read."""
_PLAIN_PATTERN = re.compile(r"\^[-0-9()?:|\[\]]+\$")
_LABEL = "[a-z0-9]{1,20}(-[a-z0-9]{1,20})?"
_STEP = "[A-Za-z0-9._~-]{1,40}"
URI = (
    f"^https?://({_LABEL}\\.){{0,3}}[a-z]{{2,20}}(:[1-9][0-9]{{0,3}})?(/{_STEP}){{0,3}}/?"
    "([?][A-Za-z0-9._~=&+-]{1,80})?(#[A-Za-z0-9._~-]{1,20})?$"
)
"""What is written where a schema asks for a URI: an address on the web, which every reader of URIs takes."""
URI_CHARACTERS = 390
"""More than any such address has."""
_REPLY_CHARACTERS = 1_500
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs")
LARGEST = 999_999_999_999_999
"""Of an integer or a number without a bound of its own, either way."""
DECIMAL = 0.000001
"""What a number is a multiple of that has bounds, or stands inside a list or an object."""
WHOLE_DIGITS, DECIMALS, EXPONENT_DIGITS = 15, 12, 2
"""The digits of an argument that is any number, at most: before the point, behind it, in the exponent."""
_ANY_NUMBER = (
    f"-?(0|[1-9][0-9]{{0,{WHOLE_DIGITS - 1}}})(\\.[0-9]{{1,{DECIMALS}}})?([eE][-+]?[0-9]{{1,{EXPONENT_DIGITS}}})?"
)
_NARROWING = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const"})


def is_plain(pattern: str) -> bool:
    """Whether a pattern is of whole texts of digits and hyphens, which JSON and any regular expression write alike."""
    return _PLAIN_PATTERN.fullmatch(pattern) is not None


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
            if choice.name == self.frame.plain:
                rules += [f"call_{index}: REPLY_{index}", f"REPLY_{index}: {self._reply(choice)}"]
                continue
            head = self.frame.head(choice.name).rstrip(" ")
            gap = '" " ' if self.frame.between.endswith(" ") else ""
            spelled = _tokens(encode(head)) if by_ids else json.dumps(head, ensure_ascii=False)
            rules.append(f"call_{index}: {spelled} {gap}arguments_{index} tail")
            rules += _arguments(f"arguments_{index}", closed_parameters(choice.parameters))
        after = self.frame.after
        rules.append("tail: " + (_tail(after, encode) if by_ids else json.dumps(after, ensure_ascii=False)))
        return "\n".join(rules) + "\n"

    def _reply(self, choice: FunctionChoice) -> str:
        """A plain reply as a Lark terminal: any text that neither begins like a call nor holds one."""
        opening = self.frame.before.strip()
        most = choice.parameters["properties"][MESSAGE].get("maxLength", _REPLY_CHARACTERS)
        first = re.escape(opening[0])
        return f"/[^\\x00-\\x20{first}](?s:.){{0,{most - 1}}}/ & ~/(?s:.*){_escaped(opening.splitlines()[0])}(?s:.*)/"

    def json_schema(self) -> dict[str, Any]:  # Any: JSON
        """The union of the calls as one schema, without the frame."""
        definitions: dict[str, Any] = {}
        calls: list[dict[str, Any]] = []
        for choice in self.choices:
            parameters = _referring(closed_parameters(choice.parameters), choice.name)
            for label, definition in parameters.pop("$defs", {}).items():
                definitions[f"{choice.name}.{label}"] = definition
            calls.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": self.frame.names.of(choice.name)}, "arguments": parameters},
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
            )
        union = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return {"$defs": definitions, **union} if definitions else union


def closed_parameters(parameters: Schema) -> dict[str, Any]:  # Any: JSON
    """A function's parameters with an end to each number (`closed`), but for an argument that is any number: each form
    of the grammar writes that itself, with a bounded exponent, so that a model's 8.85e-12 does not end as 8.85."""
    found: dict[str, Any] = closed(parameters)
    if "anyOf" in parameters:
        found["anyOf"] = [closed_parameters(one) for one in parameters["anyOf"]]
    if "properties" in parameters and parameters.get("additionalProperties") is False:
        arguments = parameters["properties"].items()
        found["properties"] |= {name: dict(one) for name, one in arguments if is_any_number(one)}
    return found


def is_any_number(schema: Any) -> bool:  # Any: JSON
    """Whether a schema is of numbers, and says no more of them."""
    return isinstance(schema, Mapping) and schema.get("type") == "number" and not _NARROWING & schema.keys()


def closed(schema: Any) -> Any:  # Any: JSON
    """A schema whose numbers end: a model may write digits for ever.

    An integer without a bound has at most 15 digits, which any JSON reader keeps exactly; a number beside that at most
    six decimals and no exponent. Here and not in the function's own schema: there, multiples of a millionth would be
    checked in floating point.

    >>> closed({"type": "integer", "minimum": 1})
    {'type': 'integer', 'minimum': 1, 'maximum': 999999999999999}
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {
        key: {name: closed(inner) for name, inner in value.items()}
        if key in _SCHEMAS_BY_NAME
        else value
        if key in ("enum", "const")
        else closed(value)
        for key, value in schema.items()
        if key != ROOM
    }
    if found.get("format") == "uri" and found.get("maxLength", URI_CHARACTERS) >= URI_CHARACTERS:
        # The format as llguidance has it knows places where a model may go on for ever and hosts that are none.
        found = {key: value for key, value in found.items() if key not in ("format", "minLength", "maxLength")}
        found["pattern"] = URI
    kinds = [found["type"]] if isinstance(found.get("type"), str) else found.get("type", [])
    if {"enum", "const"} & found.keys() or not {"integer", "number"} & set(kinds):
        return found
    if "number" in kinds:
        found.setdefault("multipleOf", DECIMAL)
    if not {"minimum", "exclusiveMinimum"} & found.keys():
        found["minimum"] = -max(LARGEST, -10 * found.get("maximum", found.get("exclusiveMaximum", 0)))
    if not {"maximum", "exclusiveMaximum"} & found.keys():
        found["maximum"] = max(LARGEST, 10 * found.get("minimum", found.get("exclusiveMinimum", 0)))
    return found


def _arguments(rule: str, schema: Schema) -> list[str]:
    """Lark for an object schema. llguidance's JSON knows no `not`, and no exponent with an end: an object with either
    is written out, property by property. A string that must not be some others is a difference of regular expressions,
    any number is one."""
    every = schema.get("anyOf", [schema])
    if not any(map(_is_written_out, (value for one in every for value in one.get("properties", {}).values()))):
        return [f"{rule}: %json {json.dumps({**schema, **_LAYOUT})}"]
    # All alternatives alike: the longest lexeme wins, so one in `%json` beside one written out would never be entered.
    alternatives = [_written_out(f"{rule}_{i}", one) for i, one in enumerate(every)]
    union = " | ".join(f"{rule}_{i}" for i in range(len(alternatives)))
    return [f"{rule}: {union}", *(line for lines in alternatives for line in lines)]


def _is_written_out(value: Schema) -> bool:
    return "not" in value or is_any_number(value)


def _written_out(rule: str, schema: Schema) -> list[str]:
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    fields: list[tuple[str, str, bool]] = []
    below: list[str] = []
    for number, (name, value) in enumerate(schema["properties"].items()):
        part = f"{rule}_{number}"
        if _is_written_out(value):
            part = part.upper()
            below.append(f"{part}: {_string_but(value) if 'not' in value else f'/{_ANY_NUMBER}/'}")
        else:
            below.append(f"{part}: %json {json.dumps({**definitions, **value, **_LAYOUT})}")
        fields.append((f"{json.dumps(name, ensure_ascii=False)}: ", part, name in schema.get("required", ())))
    return [f"{rule}: {_fields(fields)}", *below]


def _fields(fields: Sequence[tuple[str, str, bool]]) -> str:
    """An object of these (key, rule of its value, required?) in their order: it begins with one of the optional ones
    that stand first, or with the first required."""
    begun: list[str] = []
    for place, (key, part, required) in enumerate(fields):
        following = [_next(*field) for field in fields[place + 1 :]]
        begun.append(" ".join([json.dumps("{" + key, ensure_ascii=False), part, *following, '"}"']))
        if required:
            return " | ".join(begun)
    return " | ".join([*begun, '"{}"'])


def _next(key: str, part: str, required: bool) -> str:
    field = f"{json.dumps(f', {key}', ensure_ascii=False)} {part}"
    return field if required else f"({field})?"


def _string_but(schema: Schema) -> str:
    """A JSON string as a Lark terminal: any but those in its `not`, each spelled the one way the terminal knows."""
    spelled = "|".join(map(_literal, schema["not"]["enum"]))
    if is_plain(schema.get("pattern", "")):
        return f'/"({schema["pattern"].strip("^$")})"/ & ~/({spelled})/'
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    begun = " & " + _BEGUN_STRING if schema.get("pattern") == NOT_BLANK else ""
    return f"/{_CHARACTER_STRING.format(low=low, high=high)}/{begun} & ~/({spelled})/"


def _literal(text: str) -> str:
    """A JSON string as a regular expression between slashes that matches it alone."""
    return _escaped(json.dumps(text, ensure_ascii=False))


def _escaped(text: str) -> str:
    """A text as a regular expression between slashes; Rust's, which knows no escape of most other signs."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/])", r"\\\1", text).replace("\n", r"\n")


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
