"""The calls of one event, in order, and what they leave to call next: by the tool rules, and by plain sense. Pure.

Plain sense: the call that has just failed fails again (unless the model was asked whether it means it), a search made
twice finds the same, and a function that works may be repeated without end by a small model. The grammar leaves all
three out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localmem.calls.frame import HEARTBEAT, THOUGHT
from localmem.calls.grammar import NOT_BLANK, FunctionChoice, Schema, is_plain
from localmem.kernel.messages import SAVING, SEARCHES, FunctionCall, FunctionResult, Kind
from localmem.kernel.rules import Done, ToolRules
from localmem.memory.signs import terms

MOST_CALLS = 3
"""Of one function an event, where no rule says otherwise."""

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
_LEAST_ECHOED = 3  # telling words: fewer make no fact
_ECHO = 0.8  # of the words of message and reply, those that both hold
_ANSWER = "send_message"
_QUERY, _PAGE = "query", "page"
_EXTRAS = (THOUGHT, HEARTBEAT)  # a call is no other for what it says beside


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

    @property
    def has_saved(self) -> bool:
        return any(result.ok and call.name in SAVING for call, result in self.done)

    def broken_promise(self, reply: str) -> bool:
        """Whether the reply says that something was saved, and nothing was."""
        return not self.has_saved and _CLAIM.search(reply) is not None

    def is_echoed(self, reply: str) -> bool:
        """Whether the reply only says back what the user told, and nothing was saved: a small model's way with a list
        of things to do."""
        told, back = terms(self.text), terms(reply)
        return not self.has_saved and len(told) >= _LEAST_ECHOED and len(told & back) >= _ECHO * len(told | back)

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
        for call, _ in self.done:
            if call.name == choice.name and call.name in SEARCHES and schema is not None:
                schema = excluding(schema, {_PAGE: 1, **call.arguments})
        if schema is not None and self.done:
            call, result = self.done[-1]
            if not (result.ok or result.unconfirmed) and call.name == choice.name:
                schema = excluding(schema, call.arguments)
        return None if schema is None else replace(choice, parameters=schema)


def excluding(schema: Schema, arguments: Mapping[str, Any]) -> Schema | None:  # Any: JSON
    """An object schema that holds for everything it held for, but for these very arguments; None when nothing is left.

    One alternative a property: those before it as they were, it another than it was, the rest free.
    """
    if "anyOf" in schema:
        kept = [rest for one in schema["anyOf"] if (rest := excluding(one, arguments)) is not None]
        return _union(kept)
    properties: Mapping[str, Schema] = schema.get("properties", {})
    compared = [name for name in properties if name in arguments or name not in _EXTRAS]
    if set(compared) - set(arguments):
        return schema
    alternatives: list[Schema] = []
    fixed: dict[str, Schema] = {}
    for name in compared:
        other = _other_than(properties[name], [arguments[name]])
        if other is not None:
            alternatives.append({**schema, "properties": {**properties, **fixed, name: other}})
        if not _can_be(properties[name], arguments[name]):
            break  # it was never this: nothing beyond it to exclude
        fixed[name] = {"const": arguments[name]}
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
    if schema.get("type") == "string" and "format" not in schema and _can_leave_out(schema.get("pattern", NOT_BLANK)):
        barred = [*schema.get("not", {}).get("enum", []), *values]
        return {**schema, "not": {"enum": list(dict.fromkeys(map(str, barred)))}}
    return schema


def _can_leave_out(pattern: str) -> bool:
    return pattern == NOT_BLANK or is_plain(pattern)


def _can_be(schema: Schema, value: object) -> bool:
    if "const" in schema:
        return bool(schema["const"] == value)
    return value not in schema.get("not", {}).get("enum", ()) and ("enum" not in schema or value in schema["enum"])


def _with_property(schema: Schema, name: str, value: Schema) -> Schema:
    return {**schema, "properties": {**schema["properties"], name: value}}


def _union(alternatives: Sequence[Schema]) -> Schema | None:
    """One schema that holds where any of these does, never a union inside of a union."""
    flat = [inner for one in alternatives for inner in one.get("anyOf", [one])]
    if not flat:
        return None
    return flat[0] if len(flat) == 1 else {"anyOf": flat}
