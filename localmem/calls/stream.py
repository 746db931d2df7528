"""The reply as it is being written: the text of a send_message call, out of a call that is not whole yet."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from localmem.calls.frame import Frame


class ReplyStream:
    """Feed it generated text; it hands on the characters of the message, unescaped, as soon as they are certain."""

    def __init__(self, frame: Frame, on_reply: Callable[[str], None]) -> None:
        head = frame.before + "send_message" + frame.between
        self._opening = re.compile(re.escape(head) + r'\{.*?"message": ?"', re.DOTALL)
        self._on_reply = on_reply
        self._text = ""
        self._start: int | None = None
        self.sent = ""

    def feed(self, piece: str) -> None:
        self._text += piece
        if self._start is None:
            found = self._opening.search(self._text)
            if found is None:
                return
            self._start = found.end()
        message = _decode(self._text[self._start :])
        if len(message) > len(self.sent):
            self._on_reply(message[len(self.sent) :])
            self.sent = message


def _decode(text: str) -> str:
    """The JSON string that `text` begins, up to its end or to the first escape that is not whole."""
    end, position = len(text), 0
    while position < len(text):
        if text[position] == '"':
            end = position
            break
        if text[position] != "\\":
            position += 1
            continue
        width = 6 if text[position + 1 : position + 2] == "u" else 2
        if width == 6 and text[position + 2 : position + 4].lower() in ("d8", "d9", "da", "db"):
            width = 12  # a surrogate pair is one character
        if position + width > len(text):
            end = position
            break
        position += width
    return str(json.loads(f'"{text[:end]}"', strict=False))
