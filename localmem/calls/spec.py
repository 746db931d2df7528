"""Functions a model may call: name, description, JSON Schema and the Python that runs.

The built-in set is data (`grammars/memgpt.json`); a user's own function is read off its signature and docstring, its
types turned into JSON Schema by outlines. The only file that imports outlines and pydantic for this.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from localmem.calls.frame import HEARTBEAT, THOUGHT
from localmem.calls.grammar import Schema
from localmem.calls.names import Names
from localmem.calls.schema import hold, label_of
from localmem.errors import LocalmemError

# What pydantic raises for a type it cannot describe; anything else is from the user's own code, and theirs to see.
_UNREADABLE = (PydanticUserError, SchemaError, NameError, TypeError, ValueError, AssertionError, RuntimeError)

# Core types of pydantic whose JSON Schema says less than pydantic asks for, and what to write instead.
_BLIND = {
    "decimal": "Take a float, an int of the smallest unit, or a str with a pattern, and convert it in the function.",
    "complex": "Take two floats.",
}


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
        definitions = self.parameters.get("$defs", {})
        properties: Mapping[str, Schema] = self.parameters.get("properties", {})
        parameters = {name: _shown(schema, definitions, above=()) for name, schema in properties.items()}
        return {"name": self.name, "description": self.description, "parameters": parameters}

    def signature(self) -> str:
        """The function in one line, for models whose template knows no functions."""
        return f"{self.name}({', '.join(self.parameters.get('properties', {}))}): {self.description}"


def _is_plain(schema: Schema) -> bool:
    return set(schema) <= {"type", "minLength", "maxLength", "minimum", "maximum", "format"}


def _shown(schema: Schema, definitions: Mapping[str, Schema], *, above: tuple[str, ...]) -> object:
    """A schema for reading: a plain type by its name, an object by its fields, a list by what it holds.

    A definition that holds itself is named where it comes again; `above` are those it stands in.
    """
    if "$ref" in schema:
        label = label_of(schema["$ref"])
        return label if label in above else _shown(definitions[label], definitions, above=(*above, label))
    if _is_plain(schema):
        return schema.get("type", schema)
    if "properties" in schema:
        return {name: _shown(inner, definitions, above=above) for name, inner in schema["properties"].items()}
    if "patternProperties" in schema:
        [values] = schema["patternProperties"].values()
        return {"any key": _shown(values, definitions, above=above)}
    if "prefixItems" in schema:
        return [_shown(inner, definitions, above=above) for inner in schema["prefixItems"]]
    if "items" in schema:
        return [_shown(schema["items"], definitions, above=above)]
    if "anyOf" in schema:
        return {"anyOf": [_shown(inner, definitions, above=above) for inner in schema["anyOf"]]}
    return schema


def load_declarations(path: Path) -> dict[str, tuple[str, Schema]]:
    """Name -> (description, parameters) of a function set."""
    declared = json.loads(path.read_text(encoding="utf-8"))
    return {item["name"]: (item["description"], item["parameters"]) for item in declared}


def read_names(toml: str) -> tuple[Names, dict[str, str]]:
    """A function set that tells of some functions by other names: the names, and each told function's description."""
    told: dict[str, dict[str, str]] = tomllib.loads(toml)
    names = Names({function: table["name"] for function, table in told.items()})
    return names, {function: table["description"] for function, table in told.items()}


def from_python(function: Callable[..., object]) -> FunctionSpec:
    """A spec of a typed Python function; its docstring's first paragraph tells the model what it is for.

    Raises LocalmemError, when the function is registered and not when it is called, for what no grammar can enforce.
    `backend.constraint.check_enforceable` then compiles what is left. A type's own validators run when it is called:
    what they refuse is told to the model.
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
                f"function {name!r}, parameter {parameter.name!r}: it has no type",
                f"Write {parameter.name}: str, int, float, bool, Literal[...], list[...] or a pydantic model.",
            )
        if type(parameter.default).__name__ == "FieldInfo":
            raise LocalmemError(
                f"function {name!r}, parameter {parameter.name!r}: a Field as its default is not looked at",
                f"Write {parameter.name}: Annotated[TYPE, Field(...)].",
            )
        if parameter.name in (HEARTBEAT, THOUGHT):
            raise LocalmemError(
                f"function {name!r}, parameter {parameter.name!r}: the name is localmem's own", "Rename the parameter."
            )
    return signature


def _schema(function: Callable[..., object], signature: inspect.Signature, name: str) -> Schema:
    try:
        schema = _read(function.__name__, signature)
    except _UNREADABLE as error:
        raise _culprit(signature, name, error) from error
    held = hold(schema, f"function {name!r}")
    for parameter in signature.parameters.values():
        _check_seen(parameter, f"function {name!r}, parameter {parameter.name!r}")
    return held


def _read(name: str, signature: inspect.Signature) -> dict[str, Any]:  # Any: JSON
    from outlines.types.utils import get_schema_from_signature

    def stand_in(**_arguments: object) -> None: ...

    stand_in.__name__ = name
    stand_in.__signature__ = signature  # type: ignore[attr-defined]  # outlines reads it with its types resolved
    return get_schema_from_signature(stand_in)


def _culprit(signature: inspect.Signature, name: str, error: Exception) -> LocalmemError:
    """The error of a signature that has no schema, naming the first parameter that has none alone."""
    where = f"function {name!r}"
    for parameter in signature.parameters.values():
        try:
            _read(name, signature.replace(parameters=[parameter]))
        except _UNREADABLE as alone:
            where, error = f"{where}, parameter {parameter.name!r}", alone
            break
    said = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    reason = said[-1 if isinstance(error, SchemaError) else 0] if said else type(error).__name__
    hint = "Use str, int, float, bool, Literal, Enum, list, dict[str, ...], a dataclass or a pydantic model."
    if isinstance(error, SchemaError) and "regex" in str(error):
        hint = "Write the pattern without look-around and back-references."
    return LocalmemError(f"{where}: its type has no JSON Schema ({reason})", hint)


def _check_seen(parameter: inspect.Parameter, where: str) -> None:
    """Raises LocalmemError for a type whose JSON Schema admits what pydantic then refuses."""
    from pydantic import ConfigDict, create_model

    alone = create_model(
        "alone", __config__=ConfigDict(arbitrary_types_allowed=True), value=(parameter.annotation, ...)
    )
    for inner in _core_schemas(alone.__pydantic_core_schema__):
        kind = inner["type"]
        if kind in _BLIND:
            raise LocalmemError(f"{where}: no grammar can hold a call to a {kind}", _BLIND[kind])
        if kind == "dict" and inner.get("keys_schema", {}).get("type", "str") != "str":
            raise LocalmemError(
                f"{where}: the keys of a JSON object are text",
                "Take dict[str, ...], or a list of pairs: list[tuple[int, str]].",
            )


def _core_schemas(schema: object) -> Iterator[dict[str, Any]]:  # Any: pydantic's own description of a type
    """Every part of a core schema that describes a type."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema
        for key, value in schema.items():
            if key not in ("metadata", "serialization"):
                yield from _core_schemas(value)
    elif isinstance(schema, (list, tuple)):
        for item in schema:
            yield from _core_schemas(item)


def _checked(function: Callable[..., object]) -> Callable[..., object]:
    """The function with its arguments converted to their types by pydantic."""
    from pydantic import ConfigDict, validate_call

    return validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)
