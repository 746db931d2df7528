"""BFCL's function documents as JSON Schema: whole for the prompt, and as the grammar can hold them.

Names stand as they are, dots included, for the checker compares them. An optional parameter can be left out, in the
grammar too: the checker counts an invented one as wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.bfcl.data import Document
from localmem.calls.grammar import FunctionChoice
from localmem.calls.spec import FunctionSpec

_KINDS = {
    "dict": "object",
    "object": "object",
    "float": "number",
    "number": "number",
    "integer": "integer",
    "boolean": "boolean",
    "string": "string",
    "array": "array",
    "tuple": "array",
}
"""Their types in JSON Schema's names; any other, `any` among them, is any value."""

_TEXT_CHARACTERS = 400  # as a user's own function has it: every text has an end
_MOST_ITEMS = 32


def spec_of(document: Document) -> FunctionSpec:
    """The function as the model is shown it: descriptions, defaults and all."""
    parameters = _shown(document["parameters"])
    return FunctionSpec(document["name"], document.get("description", ""), parameters, _never_run)


def choice_of(document: Document) -> FunctionChoice:
    """The function as the grammar holds it."""
    return FunctionChoice(document["name"], _held(document["parameters"]))


def as_taken(value: Any, schema: Document) -> Any:  # Any: JSON
    """A value as the function gets it: a whole number as a float where it takes floats. JSON writes 12 for either, and
    pydantic makes 12.0 of it before localmem runs a function; the checker does so for a single number, but in no list.

    >>> as_taken([12, 1.5], {"type": "array", "items": {"type": "float"}})
    [12.0, 1.5]
    """
    if schema.get("type") == "float" and type(value) is int:
        return float(value)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [as_taken(item, schema["items"]) for item in value]
    if isinstance(value, dict) and isinstance(schema.get("properties"), dict):
        known = schema["properties"]
        return {name: as_taken(inner, known[name]) if name in known else inner for name, inner in value.items()}
    return value


def written_out(spec: FunctionSpec) -> str:
    """The function for a model whose template knows none."""
    return json.dumps(spec.tool()["function"], ensure_ascii=False)


def _shown(schema: Any) -> Any:
    """With every type's name translated, and nothing else changed."""
    if isinstance(schema, list):
        return [_shown(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shown: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            shown |= {"type": _KINDS[value]} if value in _KINDS else {}
        elif key == "properties" and isinstance(value, dict):  # a parameter may itself be called "type"
            shown[key] = {name: _shown(parameter) for name, parameter in value.items()}
        else:
            shown[key] = value if key in ("default", "enum") else _shown(value)
    return shown


def _held(schema: Document) -> dict[str, Any]:
    """Types, enumerations and what is required; texts and lists bounded, so that they end."""
    kind = _KINDS.get(str(schema.get("type")))
    if kind == "array":
        return _list(schema)
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return {"enum": _each_once(schema["enum"])}
    if kind == "object":
        return _object(schema)
    if kind == "string":
        return {"type": "string", "maxLength": _TEXT_CHARACTERS}
    return {"type": kind} if kind else {}


def _list(schema: Document) -> dict[str, Any]:
    items = _held(schema["items"]) if isinstance(schema.get("items"), dict) else {}
    if isinstance(schema.get("enum"), list) and schema["enum"]:  # they mean each item
        values = [value for value in schema["enum"] if not isinstance(value, list)]
        items = {"enum": _each_once(values)} if values else items
    return {"type": "array", "items": items, "maxItems": _MOST_ITEMS}


def _object(schema: Document) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        # Without any the function takes none; a parameter that is an object of unknown keys says nothing of them.
        return {"type": "object", "additionalProperties": False} if "properties" in schema else {"type": "object"}
    return {
        "type": "object",
        "properties": {name: _parameter(value) for name, value in properties.items()},
        "required": [name for name in schema.get("required") or () if name in properties],
        "additionalProperties": False,
    }


def _parameter(schema: Document) -> dict[str, Any]:
    """A document may give null as the default of a text: then it can be written too."""
    held = _held(schema)
    return {"anyOf": [held, {"type": "null"}]} if held and "default" in schema and schema["default"] is None else held


def _each_once(values: Sequence[Any]) -> list[Any]:
    return list({json.dumps(value): value for value in values}.values())


def _never_run(**_arguments: object) -> None:
    """BFCL looks at calls; nothing is carried out."""
