"""Text in the model's own tokens: the Tokenizer protocol, and cutting to an exact count.

Pure. The implementations are in `backend/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back, in one model's vocabulary."""

    name: str

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids; only with `special` does control-token text become control tokens."""
        ...

    def decode_bytes(self, ids: Sequence[int], *, special: bool = False) -> bytes:
        """The bytes the ids stand for; control tokens give nothing, or their text with `special`."""
        ...


_MOST_CHARACTERS = 16
"""Characters a token may stand for when text is cut before it is encoded: a megabyte must not be tokenized to keep a
page of it. Only a text of very long tokens (runs of spaces) is cut shorter than it needed to be."""


def clean(text: str) -> str:
    """`text` as it can be stored and encoded: lone surrogates become '?', NULs vanish."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")


def count(tokenizer: Tokenizer, text: str) -> int:
    """How many tokens `text` takes as literal content."""
    return len(tokenizer.encode(text))


def fits(tokenizer: Tokenizer, text: str, limit: int) -> bool:
    """Whether `text` takes at most `limit` tokens; a text that is far too long is not encoded."""
    return len(text) <= limit * _MOST_CHARACTERS and count(tokenizer, text) <= limit


def can_write(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the vocabulary has tokens for all of `text`: SmolLM2's lacks 21 bytes, flags of emoji among them."""
    return tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()


def cut(tokenizer: Tokenizer, text: str, limit: int, *, marker: str = " […] ") -> str:
    """`text` in at most `limit` tokens, `marker` standing for what was left out of its middle.

    The beginning gets two thirds of the room, the end one third: questions often stand last.
    """
    if fits(tokenizer, text, limit):
        return text
    room = limit - count(tokenizer, marker)
    while room > 2:
        head = _first(tokenizer, text, room * 2 // 3)
        tail = _last(tokenizer, text, room - room * 2 // 3)
        shown = head + marker + tail
        over = count(tokenizer, shown) - limit  # pieces joined may take other tokens than apart
        if over <= 0:
            return shown
        room -= over
    return ""


def _first(tokenizer: Tokenizer, text: str, limit: int) -> str:
    ids = tokenizer.encode(text[: limit * _MOST_CHARACTERS])[:limit]
    return tokenizer.decode_bytes(ids).decode("utf-8", "ignore")


def _last(tokenizer: Tokenizer, text: str, limit: int) -> str:
    ids = tokenizer.encode(text[-limit * _MOST_CHARACTERS :])[-limit:]
    return tokenizer.decode_bytes(ids).decode("utf-8", "ignore")
