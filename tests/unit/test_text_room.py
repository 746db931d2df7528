"""Room for a text, in tokens: counted while it is written."""

from __future__ import annotations

import json

import pytest

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
