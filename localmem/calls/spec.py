"""Functions a model may call: name, description, JSON Schema and the Python that runs.

The built-in set is data (`grammars/memgpt.json`); a user's own function is read off its signature and docstring, its
types turned into JSON Schema by outlines. The only file that imports outlines and pydantic for this.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localmem.calls.frame import HEARTBEAT, THOUGHT
from localmem.calls.grammar import Schema
from localmem.errors import LocalmemError

_DEFAULT_TEXT_CHARACTERS = 400
"""A string with no length of its own could fill the window: user functions get this unless they say otherwise."""

# What the constraint engine knows; it refuses a grammar with any other. pydantic checks the rest when it converts.
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
_DROPPED = frozenset({"title", "default", "uniqueItems", "writeOnly"})


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """One callable function. `run` takes the arguments by name and returns what the model is to read."""

    name: str
    description: str
    parameters: Schema
    run: Callable[..., object]
    takes_heartbeat: bool = True
    """The model may ask to be run again at once (request_heartbeat)."""

    def tool(self) -> dict[str, Any]:
        """The function as chat templates expect it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def compact_tool(self) -> dict[str, Any]:
        """The function in a quarter of the tokens, for templates that print it as it is: plain types by their name."""
        parameters = {
            name: schema.get("type", schema) if _is_plain(schema) else schema
            for name, schema in self.parameters.get("properties", {}).items()
        }
        return {"name": self.name, "description": self.description, "parameters": parameters}

    def signature(self) -> str:
        """The function in one line, for models whose template knows no functions."""
        return f"{self.name}({', '.join(self.parameters.get('properties', {}))}): {self.description}"


def _is_plain(schema: Schema) -> bool:
    return set(schema) <= {"type", "minLength", "maxLength", "minimum", "maximum", "format"}


def load_declarations(path: Path) -> dict[str, tuple[str, Schema]]:
    """Name -> (description, parameters) of a function set."""
    declared = json.loads(path.read_text(encoding="utf-8"))
    return {item["name"]: (item["description"], item["parameters"]) for item in declared}


def from_python(function: Callable[..., object]) -> FunctionSpec:
    """A spec of a typed Python function; its docstring's first paragraph tells the model what it is for.

    Raises LocalmemError, when the function is registered and not when it is called, for what no grammar can enforce.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise LocalmemError("a function for the model needs a name", "Define it with `def`, not as a lambda.")
    description = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    if not description:
        raise LocalmemError(f"function {name!r} has no docstring", "Its first line tells the model what it does.")
    signature = _signature(function, name)
    return FunctionSpec(name, description, _schema(function, signature, name), _checked(function))


def _signature(function: Callable[..., object], name: str) -> inspect.Signature:
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise LocalmemError(
            f"function {name!r}: {error}", "Its types must be importable where it is defined."
        ) from error
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise LocalmemError(
                f"function {name!r}: {parameter} cannot be filled by a model", "Name each parameter and give it a type."
            )
        if parameter.annotation is parameter.empty:
            raise LocalmemError(
                f"function {name!r}: parameter {parameter.name!r} has no type",
                f"Write {parameter.name}: str, int, float, bool, Literal[...], list[...] or a pydantic model.",
            )
        if parameter.name in (HEARTBEAT, THOUGHT):
            raise LocalmemError(f"function {name!r}: {parameter.name!r} is localmem's own", "Rename the parameter.")
    return signature


def _schema(function: Callable[..., object], signature: inspect.Signature, name: str) -> Schema:
    from outlines.types.utils import get_schema_from_signature
    from pydantic.errors import PydanticUserError

    def stand_in(**_arguments: object) -> None: ...

    stand_in.__name__ = function.__name__
    stand_in.__signature__ = signature  # type: ignore[attr-defined]  # outlines reads it with its types resolved
    try:
        schema = get_schema_from_signature(stand_in)
    except PydanticUserError as error:
        raise LocalmemError(
            f"function {name!r}: a parameter's type has no JSON Schema ({error.message.splitlines()[0]})",
            "Use str, int, float, bool, Literal, Enum, list, dict or a pydantic model.",
        ) from error
    schema = _tidy(schema)
    schema.setdefault("properties", {})
    schema["required"] = list(schema["properties"])  # small models do better with every argument, in order
    schema["additionalProperties"] = False
    return schema


def _tidy(schema: Any) -> Any:  # Any: JSON
    """Titles, defaults and what no grammar can hold dropped, strings bounded."""
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    tidy = {
        key: {name: _tidy(item) for name, item in value.items()} if key in ("properties", "$defs") else _tidy(value)
        for key, value in schema.items()
        if key not in _DROPPED and not (key == "format" and value not in _FORMATS)
    }
    if tidy.get("type") == "string" and not {"enum", "const", "pattern", "format", "maxLength"} & set(tidy):
        tidy["maxLength"] = _DEFAULT_TEXT_CHARACTERS
    return tidy


def _checked(function: Callable[..., object]) -> Callable[..., object]:
    """The function with its arguments converted to their types by pydantic."""
    from pydantic import ConfigDict, validate_call

    return validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)
