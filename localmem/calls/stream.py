"""The reply as it is being written: the text of a send_message call, out of a call that is not whole yet."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from localmem.calls.frame import Frame
from localmem.kernel.tokens import clean

# Characters of a JSON string that no later text can change. A high surrogate waits until its low one is there, or
# until something else is: then it stands alone, and is shown as the stored reply has it.
_CERTAIN = re.compile(
    r"""(?:[^"\\]+
        |\\["\\/bfnrt]
        |\\u(?![dD][89abAB])[0-9a-fA-F]{4}
        |\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
        |\\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F])
    )*""",
    re.VERBOSE,
)


class ReplyStream:
    """Feed it generated text; it hands on the characters of the message, unescaped, as soon as they are certain."""

    def __init__(self, frame: Frame, on_reply: Callable[[str], None]) -> None:
        self._frame = frame
        head = frame.head("send_message")
        self._opening = re.compile(re.escape(head) + r'\{.*?"message": ?"', re.DOTALL)
        self._on_reply = on_reply
        self._text = ""
        self._start: int | None = None
        self.sent = ""

    def feed(self, piece: str) -> None:
        self._text += piece
        if self._frame.is_plain(self._text):
            # What a reply is stripped of at its ends is not shown, nor is a half of a surrogate pair ever in it.
            shown = clean(self._text.strip())
            if shown.startswith(self.sent) and len(shown) > len(self.sent):
                self._on_reply(shown[len(self.sent) :])
                self.sent = shown
            return
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
    """The JSON string that `text` begins, up to its end or to the first character that is not certain yet."""
    certain = _CERTAIN.match(text)
    assert certain is not None, "it matches nothing at least"
    return clean(str(json.loads(f'"{certain[0]}"', strict=False)))
