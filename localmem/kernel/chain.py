"""The calls of one event, in order, and what they leave to call next: by the tool rules, and by plain sense. Pure.

Plain sense: the call that has just failed fails again, a search whose every page has been read finds nothing new, and
a function that works may be repeated without end by a small model. The grammar leaves all three out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localmem.calls.grammar import NOT_BLANK, FunctionChoice, Schema
from localmem.kernel.messages import FunctionCall, FunctionResult, Kind
from localmem.kernel.rules import Done, ToolRules

MOST_CALLS = 3
"""Of one function an event, where no rule says otherwise."""

SAVING = ("core_memory_append", "core_memory_replace", "archival_memory_insert")
"""The functions that write to memory."""

# "I have saved that", as the models say it in the languages of the benchmark.
_CLAIM = re.compile(
    r"""\bI(?:['’]ve|\ have)?\ (?:just\ |now\ |also\ )?(?:saved|stored|noted|recorded|updated|added)\b
    |\bI(?:['’]ll|\ will)\ (?:remember|note|save|keep\ (?:that|it)\ in\ mind)\b
    |\b(?:saved|noted|stored)[.!]
    |\b(?:lo\ |la\ )?he\ (?:guardado|anotado|apuntado|registrado)\b|\b(?:guardado|anotado)[.!]
    |\bj['’]ai\ (?:bien\ )?(?:noté|enregistré|sauvegardé|retenu)\b|\bc['’]est\ (?:noté|enregistré)\b
    |(?:已经?|帮你)(?:保存|记下|记住|存好|更新)|记(?:下|住)了""",
    re.IGNORECASE | re.VERBOSE,
)
_ANSWER = "send_message"
_QUERY = "query"
_PAGE = re.compile(r"Results .* page (\d+) of (\d+):")
_NOTHING_LEFT = ("Nothing found", "There is no page")


@dataclass(slots=True)
class Chain:
    """An event and what has been done about it."""

    kind: Kind
    text: str
    rules: ToolRules = field(default_factory=ToolRules)
    done: list[Done] = field(default_factory=list[Done])
    steps: int = 0
    """Inferences made; those that gave no call count too."""

    def add(self, call: FunctionCall | None, result: FunctionResult) -> None:
        self.steps += 1
        if call is not None:
            self.done.append((call, result))

    def broken_promise(self, reply: str) -> bool:
        """Whether the reply says that something was saved, and nothing was."""
        saved = any(result.ok and call.name in SAVING for call, result in self.done)
        return not saved and _CLAIM.search(reply) is not None

    @property
    def repeats_a_failure(self) -> bool:
        """The last two calls are one and the same, and both failed."""
        last = self.done[-2:]
        return len(last) == 2 and last[0][0] == last[1][0] and not (last[0][1].ok or last[1][1].ok)

    def narrow(self, choices: Sequence[FunctionChoice]) -> tuple[FunctionChoice, ...]:
        """The choices without what may not, or need not, be called now. Never empty where `choices` is not."""
        counted = Counter(call.name for call, _ in self.done)
        worn_out = {name for name, times in counted.items() if times >= MOST_CALLS} - {_ANSWER, *self.rules.at_most}
        offered = [choice for choice in choices if choice.name not in worn_out]
        left_out = self.rules.left_out([choice.name for choice in offered], self.done, request=self.text)
        narrowed = [self._narrowed(choice) for choice in offered if choice.name not in left_out]
        kept = tuple(choice for choice in narrowed if choice is not None)
        return kept or tuple(choice for choice in choices if choice.name == _ANSWER) or tuple(choices)

    def _narrowed(self, choice: FunctionChoice) -> FunctionChoice | None:
        schema: Schema | None = choice.parameters
        if self.rules.identifiers and _QUERY in schema.get("properties", {}):
            wanted = self.rules.open_identifiers(self.text, self.done)
            if not wanted:
                return None
            schema = _with_property(schema, _QUERY, {"enum": wanted})
        read = self._read_through(choice.name)
        if read:
            schema = without_value(schema, _QUERY, read)
        if schema is not None and self.done:
            call, result = self.done[-1]
            if not result.ok and call.name == choice.name:
                schema = excluding(schema, call.arguments)
        return None if schema is None else replace(choice, parameters=schema)

    def _read_through(self, function: str) -> list[str]:
        """The queries of a search that have nothing more to show."""
        read: list[str] = []
        for call, result in self.done:
            query = call.arguments.get(_QUERY)
            page = _PAGE.match(result.text)
            finished = page is not None and page[1] == page[2]
            if call.name == function and isinstance(query, str) and (finished or result.text.startswith(_NOTHING_LEFT)):
                read.append(query)
        return list(dict.fromkeys(read))


def without_value(schema: Schema, name: str, values: Sequence[object]) -> Schema | None:
    """An object schema whose property `name` is none of `values`; None where nothing is left of it."""
    kept = _other_than(schema["properties"][name], values)
    return None if kept is None else _with_property(schema, name, kept)


def excluding(schema: Schema, arguments: Mapping[str, Any]) -> Schema | None:  # Any: JSON
    """An object schema that holds for everything it held for, but for these very arguments; None when nothing is left.

    One alternative a property: those before it as they were, it another than it was, the rest free.
    """
    if "anyOf" in schema:
        kept = [rest for one in schema["anyOf"] if (rest := excluding(one, arguments)) is not None]
        return _union(kept)
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if set(properties) - set(arguments) or not properties:
        return schema if set(properties) - set(arguments) else None
    alternatives: list[Schema] = []
    fixed: dict[str, Schema] = {}
    for name, value_schema in properties.items():
        value = arguments[name]
        other = _other_than(value_schema, [value])
        if other is not None:
            rest = {key: properties[key] for key in properties if key not in fixed and key != name}
            alternatives.append({**schema, "properties": {**fixed, name: other, **rest}})
        if not _can_be(value_schema, value):
            break  # it was never this: nothing beyond it to exclude
        fixed[name] = {"const": value}
    return _union(alternatives)


def _other_than(schema: Schema, values: Sequence[object]) -> Schema | None:
    """`schema` without `values`; None where nothing is left, and as it is where that cannot be said."""
    if "const" in schema:
        return None if schema["const"] in values else schema
    if "enum" in schema:
        kept = [item for item in schema["enum"] if item not in values]
        return {**schema, "enum": kept} if kept else None
    if schema.get("type") == "boolean":
        kept = [item for item in (False, True) if item not in values]
        return {"enum": kept} if kept else None
    if schema.get("type") == "integer" and {"minimum", "maximum"} <= set(schema):
        kept = [number for number in range(schema["minimum"], schema["maximum"] + 1) if number not in values]
        return {"enum": kept} if kept else None
    if schema.get("type") == "string" and "format" not in schema and schema.get("pattern", NOT_BLANK) == NOT_BLANK:
        barred = [*schema.get("not", {}).get("enum", []), *values]
        return {**schema, "not": {"enum": list(dict.fromkeys(map(str, barred)))}}
    return schema


def _can_be(schema: Schema, value: object) -> bool:
    if "const" in schema:
        return bool(schema["const"] == value)
    return "enum" not in schema or value in schema["enum"]


def _with_property(schema: Schema, name: str, value: Schema) -> Schema:
    return {**schema, "properties": {**schema["properties"], name: value}}


def _union(alternatives: Sequence[Schema]) -> Schema | None:
    if not alternatives:
        return None
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": list(alternatives)}
