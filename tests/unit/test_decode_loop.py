"""The decode loop where a text would go on without end."""

from __future__ import annotations

import numpy as np
import pytest

from localmem.backend.base import Sampling
from localmem.backend.decode_loop import DecodeLoop, in_a_loop
from localmem.backend.scripted import ByteTokenizer
from localmem.backend.text_room import TextRoom
from localmem.calls.chat_format import BARE
from localmem.calls.grammar import ROOM, CallGrammar, FunctionChoice

CONTENT = {"label": {"const": "human"}, "content": {"type": "string", "minLength": 1, ROOM: 10}}
GRAMMAR = CallGrammar(BARE, (FunctionChoice("append", {"type": "object", "properties": CONTENT}),))


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

    HEAD = BARE.write("append", '{"label": "human", "content": ""}').removesuffix('"}}').encode()

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


def test_a_text_ends_where_its_room_ends():
    loop = DecodeLoop(Chatty(), Append(), Sampling(), 400, room=TextRoom(GRAMMAR, ByteTokenizer()))  # type: ignore[arg-type]
    assert loop.run() == "stop"
    assert BARE.parse(loop.text).arguments["content"] == "a" * 9


def test_a_text_that_runs_in_a_loop_is_ended():
    loop = DecodeLoop(Chatty(), Append(), Sampling(), 400)  # type: ignore[arg-type]
    assert loop.run() == "stop"
    assert BARE.parse(loop.text).arguments["content"] == "a" * 16


def test_a_free_text_that_runs_in_a_loop_is_ended():
    loop = DecodeLoop(Chatty(), None, Sampling(), 400)
    assert (loop.run(), loop.text) == ("stop", "a" * 16)


@pytest.mark.parametrize(
    ("ids", "loops"),
    [
        ([7] * 16, True),
        ([7] * 15, False),
        ([1, 2] * 8, True),
        ([1, 2] * 7, False),
        ([5, *[1, 2, 3] * 6], True),
        ([*[1, 2, 3] * 6, 1], True),
        ([*[1, 2, 3] * 6, 5], False),
        ([1, 2, 3] * 5, False),
        ([*range(32)] * 6, True),
        ([*range(33)] * 6, False),
        ([], False),
    ],
)
def test_what_a_loop_is(ids: list[int], loops: bool):
    assert in_a_loop(ids) is loops
