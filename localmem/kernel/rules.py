"""Tool rules: what an agent, or one task, may call when. Enforced by the grammar, so they cannot be broken. Pure.

A small model answers after its first search whatever the prompt says; a rule makes it look again.

>>> rules = ToolRules(first=("archival_memory_search",), at_most={"archival_memory_search": 2})
>>> sorted(rules.left_out(["send_message", "archival_memory_search"], []))
['send_message']
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from localmem.errors import LocalmemError
from localmem.kernel.messages import FunctionCall, FunctionResult

Done = tuple[FunctionCall, FunctionResult]
"""A call of the event in hand, and what came of it."""

_ANSWER = "send_message"
_QUERY = "query"


@dataclass(frozen=True, slots=True)
class ToolRules:
    """Rules over the calls of one event. Names are those of functions; an empty rule forbids nothing.

    A rule that would leave nothing to call gives way to the answer: an event always ends.
    """

    first: tuple[str, ...] = ()
    """The event's first call is one of these."""
    followed_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """After a call of the key, the next one is one of these."""
    at_most: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often a function may be called in an event; 0 is never."""
    not_before: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The key only once each of these has been called."""
    identifiers: str = ""
    """A regular expression for identifiers, such as UUIDs. With it, searches go only for those that have been seen in
    this event (in the message, or in a found row that holds what was searched for) and have not been searched yet."""
    verified: bool = False
    """With `identifiers`: answer only when every identifier found has been searched itself and led no further."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.identifiers)
        except re.error as error:
            raise LocalmemError(
                f"the rule's identifiers {self.identifiers!r} are no regular expression: {error}",
                "Mend the expression.",
            ) from error
        if self.verified and not self.identifiers:
            raise LocalmemError("a rule `verified` needs `identifiers`", "Give what one looks like, as a regex.")
        for name, times in self.at_most.items():
            if times < 0:
                raise LocalmemError(f"the rule at_most of {name!r} is {times}", "Give 0, which is never, or more.")

    def names(self) -> set[str]:
        """Every function the rules speak of."""
        named = {*self.first, *self.followed_by, *self.at_most, *self.not_before}
        return named.union(*self.followed_by.values(), *self.not_before.values())

    def left_out(self, offered: Collection[str], done: Sequence[Done], *, request: str = "") -> set[str]:
        """Which of the functions offered may not be called now; `request` is the event's text."""
        called = [call.name for call, _ in done]
        allowed = set(offered)
        if not called and self.first:
            allowed &= set(self.first)
        if called and called[-1] in self.followed_by:
            allowed &= set(self.followed_by[called[-1]])
        allowed -= {name for name, times in self.at_most.items() if called.count(name) >= times}
        allowed -= {name for name, needed in self.not_before.items() if not set(needed) <= set(called)}
        if self.verified and (not called or self.open_identifiers(request, done)):
            allowed.discard(_ANSWER)
        if not allowed:
            allowed = {_ANSWER} & set(offered)
        return set(offered) - allowed if allowed else set()

    def open_identifiers(self, request: str, done: Sequence[Done]) -> list[str]:
        """The identifiers seen and not searched yet, in the order they were seen."""
        if not self.identifiers:
            return []
        searched: list[str] = []
        seen = dict.fromkeys(re.findall(self.identifiers, request))
        for call, result in done:
            query = call.arguments.get(_QUERY)
            if not isinstance(query, str):
                continue
            searched.append(query)
            for row in result.text.splitlines()[1:]:
                if query in row:  # other rows were found by likeness: they lead elsewhere
                    seen |= dict.fromkeys(re.findall(self.identifiers, row))
        return [identifier for identifier in seen if identifier not in searched]
