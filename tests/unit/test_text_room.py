"""Room for a text, in tokens: counted while it is written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from localmem.backend.base import Sampling
from localmem.backend.decode_loop import DecodeLoop
from localmem.backend.scripted import ByteTokenizer
from localmem.backend.text_room import TextRoom
from localmem.calls.chat_format import BARE
from localmem.calls.grammar import ROOM, CallGrammar, FunctionChoice, Schema

TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": 240}


def place(label: str, room: int, **before: Schema) -> Schema:
    properties = {"label": {"const": label}, **before, "content": {**TEXT, ROOM: room}}
    return {"type": "object", "properties": properties, "required": list(properties)}


GRAMMAR = CallGrammar(
    BARE,
    (
        FunctionChoice("append", {"anyOf": [place("human", 10), place("persona", 4)]}),
        FunctionChoice("replace", place("human", 3, old_content={"enum": ["four", "two words"]})),
        FunctionChoice("send_message", {"type": "object", "properties": {"message": TEXT}}),
    ),
)
ROOMS = TextRoom(GRAMMAR, ByteTokenizer())


def begun(name: str, **arguments: str) -> str:
    """A call up to the end of its last text, which is still open."""
    return BARE.write(name, json.dumps(arguments, ensure_ascii=False)).removesuffix('"}}')


@pytest.mark.parametrize(
    ("written", "left"),
    [
        (begun("append", label="human", content=""), 10),
        (begun("append", label="human", content="abc"), 7),
        (begun("append", label="persona", content="abc"), 1),
        (begun("append", label="human", content="é"), 8),
        (begun("append", label="human", content='a"b\\c'), 5),
        (begun("append", label="human", content="a")[:-1] + "\\", 10),
        (begun("append", label="human", content="") + "\\u00", 10),
        (begun("append", label="human", content="too long by far"), -5),
        (begun("replace", label="human", old_content="four", content="ab"), 3 + 4 - 2),
        (begun("replace", label="human", old_content="two words", content=""), 3 + 9),
        (begun("send_message", message="abc"), None),
        (BARE.write("append", json.dumps({"label": "human", "content": "abc"})), None),
        (begun("append", label="hu"), None),
        ("", None),
    ],
)
def test_what_is_left(written: str, left: int | None):
    assert ROOMS.left(written) == left


class Chatty:
    """A processor over bytes that would rather write one letter for ever."""

    end_tokens = frozenset[int]()
    closers = (ord('"'), ord("}"))

    def feed(self, ids: object) -> None:
        del ids

    def logits(self) -> np.ndarray:
        logits = np.zeros(256, np.float32)
        logits[ord("a")] = 5
        return logits

    def text_of(self, ids: list[int]) -> bytes:
        return bytes(ids)


class Append:
    """A constraint that holds to one append whose content is of any length."""

    HEAD = begun("append", label="human", content="").encode()

    def __init__(self) -> None:
        self.written = b""

    def allows(self, token: int) -> bool:
        rest = self.written[len(self.HEAD) :]
        if len(self.written) < len(self.HEAD):
            return token == self.HEAD[len(self.written)]
        return token == ord("}") if rest.endswith((b'"', b"}")) else token in b'a"'

    def mask(self, logits: np.ndarray) -> None:
        logits[[t for t in range(256) if not self.allows(t)]] = -np.inf

    def accept(self, tokens: list[int]) -> None:
        self.written += bytes(tokens)

    def forced(self) -> list[int]:
        return list(self.HEAD[len(self.written) :])

    @property
    def finished(self) -> bool:
        return self.written.endswith(b'"}}')


def test_the_loop_ends_a_text_where_its_room_ends():
    loop = DecodeLoop(Chatty(), Append(), Sampling(), 400, room=ROOMS)  # type: ignore[arg-type]
    assert loop.run() == "stop"
    assert BARE.parse(loop.text).arguments["content"] == "a" * 9
