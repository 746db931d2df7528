"""The call frame: the text round a function's name and arguments.

Each model family was trained on its own (`<tool_call>` tags, bare JSON, ...). A frame is three strings; the family's
own is read off its chat template (`calls/chat_format.py`), the others come from `grammars/frames.toml`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from localmem.calls.names import OWN_NAMES, Names
from localmem.errors import InvalidArguments
from localmem.kernel.messages import FunctionCall
from localmem.kernel.tokens import clean

THOUGHT = "thought"
HEARTBEAT = "request_heartbeat"
MESSAGE = "message"

Thought = Literal["none", "first", "last"]
"""Where a call holds a thought: nowhere, before the function's own arguments, or after them."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`before` name `between` arguments `after`; and of the function `plain`, the message and nothing round it.

    Functions are handed over and given back by their own names; what is written is what the model calls them.

    >>> Frame('{"name": "', '", "arguments": ', '}').write("f", "{}")
    '{"name": "f", "arguments": {}}'
    >>> Frame('{"name": "', '", "arguments": ', '}', plain="say").write("say", '{"message": "Hi!"}')
    'Hi!'
    """

    before: str
    between: str
    after: str
    plain: str = ""
    """The function that is written as the family's plain reply, if any: one with a `message`."""
    names: Names = OWN_NAMES

    def head(self, function: str) -> str:
        """What a call of the function begins with, up to its arguments."""
        return f"{self.before}{self.names.of(function)}{self.between}"

    @property
    def tag(self) -> str:
        """What stands before the call's JSON: `<tool_call>` and a line break, or nothing.

        >>> Frame('<call>{"name": "', '", "arguments": ', "}</call>").tag
        '<call>'
        """
        return self.before.partition("{")[0]

    def write(self, name: str, arguments: str) -> str:
        if self.plain and name == self.plain:
            return str(json.loads(arguments)[MESSAGE])
        return f"{self.head(name)}{arguments}{self.after}"

    def is_plain(self, text: str) -> bool:
        """Whether what begins so is a plain reply, and no call."""
        opening = self.before.strip()
        begun = text.lstrip()
        return bool(self.plain) and not (begun.startswith(opening) or opening.startswith(begun))

    def parse(self, text: str) -> FunctionCall:
        """The call that `text` holds. Raises InvalidArguments, in words for the model, when it holds none."""
        body = text.strip()
        if body and self.is_plain(body):
            return FunctionCall(self.plain, {MESSAGE: clean(body)})
        start, end = body.find(self.before), body.rfind(self.after)
        if start < 0 or end < 0 or self.between not in body:
            raise InvalidArguments(f"that was no function call; write {self.write('NAME', '{...}')}")
        name, _, arguments = body[start + len(self.before) : end].partition(self.between)
        try:
            values = _clean(json.loads(arguments))
        except (ValueError, RecursionError) as error:  # not JSON, a number of 5,000 digits, brackets without end
            raise InvalidArguments(f"the arguments of {name} are not JSON: {error}") from error
        if not isinstance(values, dict):
            raise InvalidArguments(f"the arguments of {name} must be an object")
        thought = str(values.pop(THOUGHT, ""))
        heartbeat = values.pop(HEARTBEAT, False) is True
        return FunctionCall(self.names.function(name), values, thought, heartbeat)


def _clean(value: Any) -> Any:  # Any: JSON
    """JSON escapes can spell lone surrogates and NULs, which nothing can show or store."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _clean(item) for key, item in value.items()}
    return value
