"""How much may still be written into a text that has to fit a block, in the model's own tokens.

A grammar can bound characters, not tokens: thirty characters are seven tokens of English and ninety of a script the
vocabulary does not know. So the decode loop counts, and ends the text in time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from localmem.calls.calibration import OLD_CONTENT
from localmem.calls.grammar import ROOM, CallGrammar, Schema
from localmem.kernel.tokens import Tokenizer, count

_STRING = r'"(?:[^"\\]|\\.)*"'
_OPEN_TEXT = r'"(?P<text>(?:[^"\\]|\\.)*)\\?$'
_OLD_TEXT = r'(?P<old>"(?:[^"\\]|\\.)*")'


class TextRoom:
    """The bounded texts of a grammar's calls."""

    def __init__(self, grammar: CallGrammar, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts = [
            (re.compile(pattern, re.DOTALL), tokens)
            for choice in grammar.choices
            for schema in choice.parameters.get("anyOf", [choice.parameters])
            for pattern, tokens in _bounded(grammar.frame.head(choice.name), schema)
        ]

    def left(self, written: str) -> int | None:
        """Tokens that still fit into the text that is being written; None when there is no bounded one.

        A line that is replaced makes room for what replaces it.
        """
        for pattern, tokens in self._texts:
            found = pattern.match(written)
            if found is not None:
                old = found.groupdict().get("old")
                freed = count(self._tokenizer, json.loads(old)) if old else 0
                return tokens + freed - count(self._tokenizer, _unescaped(found["text"]))
        return None


def _bounded(head: str, schema: Schema) -> Iterator[tuple[str, int]]:
    """A pattern for what is written while a bounded text is open, and its bound."""
    before = re.escape(head + "{")
    for name, value in schema.get("properties", {}).items():
        key = re.escape(json.dumps(name, ensure_ascii=False) + ": ")
        if ROOM in value:
            yield before + key + _OPEN_TEXT, value[ROOM]
        if "const" in value:
            written = re.escape(json.dumps(value["const"], ensure_ascii=False))
        elif name == OLD_CONTENT:
            written = _OLD_TEXT
        else:
            written = _STRING if value.get("type") == "string" or "enum" in value else "[^,}]*"
        before += key + written + ", "


def _unescaped(text: str) -> str:
    """The text that the beginning of a JSON string spells; an escape that is not whole is left out."""
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return re.sub(r"\\u?[0-9a-fA-F]{0,3}$", "", text)
