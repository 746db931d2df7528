"""What a user's types come to as JSON Schema: bounded, closed, and refused where no grammar can hold a call to it.

Pure. `hold` goes through the schema that outlines makes. Only keywords that are known to be enforced get through, and
what has no end of its own gets one: strings, lists, objects. A refusal names the place and says what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localmem.calls.grammar import Schema
from localmem.errors import LocalmemError
from localmem.kernel.tokens import clean

TEXT_CHARACTERS = 400
"""A string with no length of its own could fill the window."""
LIST_ITEMS = 20
MAP_ENTRIES = 20
KEY_CHARACTERS = 80
LARGEST_BOUND = 10**18  # llguidance counts in 64 bits

_ANNOTATIONS = frozenset(
    {"title", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "discriminator"}
)
_KNOWN = frozenset(
    {
        *("description", "$ref", "$defs", "anyOf", "oneOf", "allOf", "enum", "const", "type"),
        *("format", "pattern", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("items", "prefixItems", "minItems", "maxItems"),
        *("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    }
)
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_ABOUT: Mapping[str, frozenset[str]] = {
    "string": frozenset({"format", "pattern", "minLength", "maxLength"}),
    "integer": _NUMBER,
    "number": _NUMBER,
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

# Format -> the most characters it may take, None where the format itself has an end. llguidance enforces these.
_FORMATS: Mapping[str, int | None] = {
    "date": None,
    "time": 21,  # 23:59:59.123456+01:00
    "date-time": 32,
    "duration": 40,
    "uuid": None,
    "ipv4": None,
    "ipv6": None,
    "email": 254,  # RFC 5321
    "hostname": 253,  # RFC 1035
    "uri": TEXT_CHARACTERS,
}
# Formats that hold for any text at all, so that nothing is lost without them.
_ANY_TEXT = frozenset({"path", "file-path", "directory-path", "password", "binary"})

_REMEDIES: Mapping[str, str] = {
    "uniqueItems": "Take a list[...] and make a set of it in the function.",
    "propertyNames": "Take a pydantic model with one optional field for each key, or a list of pairs.",
    "patternProperties": "Take a pydantic model with the fields, or a list of pairs.",
    "contentMediaType": "Take the type itself instead of Json[...]: a call is JSON already.",
    "contentSchema": "Take the type itself instead of Json[...]: a call is JSON already.",
}
_ADVICE = "Say it with Literal, an Enum, a range, a pattern or a pydantic model, and check the rest in the function."


def hold(schema: Schema, where: str) -> dict[str, Any]:  # Any: JSON
    """A function's parameters as they are enforced: every argument required, in order, each bounded.

    `where` begins each refusal ("function 'f'"). Raises LocalmemError, naming the parameter.
    """
    definitions = schema.get("$defs", {})
    properties = {
        name: _Holder(f"{where}, parameter {name!r}", definitions).held(inner)
        for name, inner in schema.get("properties", {}).items()
    }
    held: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(properties),  # small models do better with every argument, in order
        "additionalProperties": False,
    }
    if not definitions:
        return held
    users = {label: _user(schema, label) for label in definitions}
    inner = {
        label: _Holder(f"{where}, parameter {users[label]!r}, {label}", definitions).held(definition)
        for label, definition in definitions.items()
    }
    for name, parameter in properties.items():
        _check_end(parameter, inner, f"{where}, parameter {name!r}")
    return {**held, "$defs": inner}


def _user(schema: Schema, label: str) -> str:
    """The first parameter that leads to a definition."""
    definitions: Mapping[str, Schema] = schema["$defs"]
    for name, parameter in schema.get("properties", {}).items():
        reached: set[str] = set()
        todo = references(parameter)
        while todo:
            found = todo.pop()
            if found not in reached and found in definitions:
                reached.add(found)
                todo |= references(definitions[found])
        if label in reached:
            return name
    return label


def references(schema: Any) -> set[str]:  # Any: JSON
    """The labels of the definitions a schema names."""
    if isinstance(schema, Mapping):
        own = {label_of(schema["$ref"])} if isinstance(schema.get("$ref"), str) else set[str]()
        for key, value in schema.items():
            if key in ("properties", "patternProperties", "$defs"):  # names, not keywords
                own |= references(list(value.values()))
            elif key not in ("enum", "const"):
                own |= references(value)
        return own
    if isinstance(schema, list):
        return set[str]().union(*(references(item) for item in schema))
    return set()


def fixed_values(schema: Any) -> Iterator[object]:  # Any: JSON
    """Every value and every key that a schema spells out."""
    if isinstance(schema, list):
        for item in schema:
            yield from fixed_values(item)
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs"):  # names, not keywords
            yield from value if key == "properties" else ()
            yield from fixed_values(list(value.values()))
        elif key == "enum":
            yield from value
        elif key == "const":
            yield value
        else:
            yield from fixed_values(value)


def label_of(reference: str) -> str:
    """The name in "#/$defs/name", JSON pointer escapes undone."""
    return reference.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")


@dataclass(frozen=True, slots=True)
class _Holder:
    """Goes through one parameter's schema, or one definition's."""

    where: str
    definitions: Mapping[str, Schema]

    def refuse(self, problem: str, hint: str = _ADVICE) -> LocalmemError:
        return LocalmemError(f"{self.where}: {problem}", hint)

    def inside(self, name: str) -> _Holder:
        return _Holder(f"{self.where}, {name}", self.definitions)

    def held(self, schema: Any) -> dict[str, Any]:  # Any: JSON
        if not isinstance(schema, Mapping):
            raise self.refuse("it may be anything, so that a call need not end", "Write its type out.")
        held = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        for key in held:
            if key not in _KNOWN:
                raise self.refuse(f"no grammar can hold a call to {key!r}", _REMEDIES.get(key, _ADVICE))
        if not held.keys() - {"description"}:
            raise self.refuse("it may be anything, so that a call need not end", "Write its type out.")
        if "discriminator" in schema and "oneOf" in held:  # the tag tells the alternatives apart, so any is one
            held = {"anyOf" if key == "oneOf" else key: value for key, value in held.items()}
        return self._narrowed(held)

    def _narrowed(self, held: dict[str, Any]) -> dict[str, Any]:
        for key in _ALTERNATIVES:
            if key in held:
                held[key] = [self.held(alternative) for alternative in held[key]]
        if "$ref" in held and label_of(held["$ref"]) not in self.definitions:
            raise self.refuse(f"{held['$ref']!r} is not among its definitions")
        if "enum" in held or "const" in held:
            self._check_values(held["enum"] if "enum" in held else [held["const"]])
            return held
        self._check_keywords(held)
        for kind in _kinds(held):
            self._bound(held, kind)
        return held

    def _check_keywords(self, held: Mapping[str, object]) -> None:
        """A keyword of another type is one that every engine passes over."""
        kinds = _kinds(held)
        if not kinds and not held.keys() & {"$ref", *_ALTERNATIVES}:
            raise self.refuse("it has no type", "Write its type out.")
        for key in _NUMBER.union(*_ABOUT.values()) & held.keys():
            if kinds and not any(key in _ABOUT.get(kind, ()) for kind in kinds):
                raise self.refuse(f"{key!r} says nothing of a value of type {' or '.join(kinds)}")

    def _bound(self, held: dict[str, Any], kind: str) -> None:
        if kind == "string":
            self._bound_text(held)
        elif kind in ("integer", "number"):
            self._check_number(held, kind)
        elif kind == "array":
            self._bound_list(held)
        elif kind == "object":
            self._close_object(held)
        elif kind not in ("boolean", "null"):
            raise self.refuse(f"{kind!r} is no type of JSON")

    def _check_values(self, values: Sequence[object]) -> None:
        if not values:
            raise self.refuse("there is no value it could have", "Give the Enum or Literal a value.")
        for value in values:
            if isinstance(value, str) and clean(value) != value:  # as it would be when the call is read
                raise self.refuse(f"{value!r} is no text that can be stored", "Use whole characters, and no NUL.")

    def _bound_text(self, held: dict[str, Any]) -> None:
        longest: int | None = TEXT_CHARACTERS
        if (form := held.get("format")) is not None:
            if form in _ANY_TEXT:
                del held["format"]
            elif form in _FORMATS:
                longest = _FORMATS[form]
            else:
                raise self.refuse(
                    f"no grammar knows the format {form!r}",
                    "Take a str, with a pattern if it has one, and check the rest in the function.",
                )
        if "pattern" in held:
            self._check_pattern(held["pattern"])
        if longest is not None:
            held.setdefault("maxLength", max(longest, held.get("minLength", 0)))

    def _check_pattern(self, pattern: str) -> None:
        """The executor checks arguments with Python's re, and the grammar writes them by Rust's: both must read it."""
        try:
            re.compile(pattern)
        except re.error as error:
            raise self.refuse(
                f"the pattern {pattern!r} is none in Python ({error})", "Write its characters out, as in [A-Za-z]."
            ) from error
        if pattern.startswith("(?") and not pattern.startswith(("(?:", "(?P<")):
            raise self.refuse(f"the pattern {pattern!r} has flags", "Write its characters out, as in [Aa].")

    def _check_number(self, held: dict[str, Any], kind: str) -> None:
        if any(abs(held.get(key, 0)) >= LARGEST_BOUND for key in _BOUNDS):
            raise self.refuse("a bound of more than 18 digits cannot be enforced", "Take a str with a pattern.")
        if kind == "number" and "multipleOf" in held:
            raise self.refuse(
                "multiples of a fraction cannot be enforced", "Count in the smaller unit, as an int, or round."
            )

    def _bound_list(self, held: dict[str, Any]) -> None:
        if "prefixItems" in held:
            held["prefixItems"] = [
                self.inside(f"item {number}").held(item) for number, item in enumerate(held["prefixItems"], start=1)
            ]
        if "items" in held:
            held["items"] = self.inside("its items").held(held["items"])
        elif "prefixItems" in held:
            held["maxItems"] = min(len(held["prefixItems"]), held.get("maxItems", LIST_ITEMS))
        else:
            raise self.refuse("a list of anything need not end", "Write what it holds: list[str].")
        held.setdefault("maxItems", max(LIST_ITEMS, held.get("minItems", 0)))

    def _close_object(self, held: dict[str, Any]) -> None:
        if "properties" in held:
            held["properties"] = {
                name: self.inside(f"field {name!r}").held(inner) for name, inner in held["properties"].items()
            }
            held["additionalProperties"] = False  # a model writes what was declared and nothing else
            return
        values = held.pop("additionalProperties", None)
        if values is False or ("required" in held and values is None):
            held |= {"properties": {}, "additionalProperties": False}
            return
        if not isinstance(values, Mapping) or not values:
            raise self.refuse("an object of anything need not end", "Write what it holds: dict[str, int], or a model.")
        if held.get("minProperties", 0) > 1:
            raise self.refuse("no grammar sees that two keys are alike", "Take a pydantic model, or a list of pairs.")
        key = f"^[\\s\\S]{{1,{KEY_CHARACTERS}}}$"
        held["patternProperties"] = {key: self.inside("its values").held(values)}
        held["additionalProperties"] = False
        held.setdefault("maxProperties", MAP_ENTRIES)


def _kinds(schema: Schema) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _check_end(schema: Schema, definitions: Mapping[str, Schema], where: str) -> None:
    """Raises LocalmemError when every value holds another of its kind, without end."""
    ending: set[str] = set()
    while more := {label for label, inner in definitions.items() if label not in ending and _can_end(inner, ending)}:
        ending |= more
    if not _can_end(schema, ending):
        name = sorted(references(schema) - ending)[0]
        raise LocalmemError(
            f"{where}: every {name} holds another, so that a call could never end",
            f"Let it end: write `{name} | None`, or a list of them.",
        )


def _can_end(schema: Schema, ending: set[str]) -> bool:
    if "$ref" in schema:
        return label_of(schema["$ref"]) in ending
    if "anyOf" in schema or "oneOf" in schema:
        return any(_can_end(inner, ending) for inner in schema.get("anyOf", schema.get("oneOf", ())))
    needed: list[Schema] = list(schema.get("allOf", ()))
    needed += [inner for name, inner in schema.get("properties", {}).items() if name in schema.get("required", ())]
    least = schema.get("minItems", 0)
    needed += schema.get("prefixItems", [])[:least]
    if least > len(schema.get("prefixItems", [])) and "items" in schema:
        needed.append(schema["items"])
    if schema.get("minProperties", 0):
        needed += schema.get("patternProperties", {}).values()
    return all(_can_end(inner, ending) for inner in needed)
