"""The reply while it is being written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localmem.calls.chat_format import BARE
from localmem.calls.frame import Frame
from localmem.calls.stream import ReplyStream

HERMES = Frame('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")


def streamed(frame: Frame, pieces: list[str]) -> list[str]:
    """What was handed on, piece by piece."""
    heard: list[str] = []
    stream = ReplyStream(frame, heard.append)
    for piece in pieces:
        stream.feed(piece)
    assert "".join(heard) == stream.sent
    return heard


def cut_at(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]


# A NUL and a lone surrogate can be spelled in JSON, and are cleaned away.
whole_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


@given(message=whole_text, places=st.lists(st.integers(0, 2000), max_size=20), escaped=st.booleans())
@example(message='"\\😀\n/', places=list(range(200)), escaped=True)
@example(message="", places=[], escaped=False)
def test_message_arrives_whole_however_it_is_cut(message: str, places: list[int], escaped: bool):
    text = BARE.write("send_message", json.dumps({"message": message}, ensure_ascii=escaped))
    assert "".join(streamed(BARE, cut_at(text, places))) == message


@given(message=whole_text, places=st.lists(st.integers(0, 2000), max_size=20))
def test_each_character_of_the_generated_text_may_come_alone(message: str, places: list[int]):
    text = HERMES.write("send_message", json.dumps({"thought": 'say "message": "x', "message": message}))
    assert "".join(streamed(HERMES, list(text))) == message


@given(tail=st.text(max_size=40))
@example(tail='\\ud83d abc"}}')
@example(tail='\\ud83d\\n"}}')
@example(tail='\\ud83d"}}     and more')
@example(tail='\\udc00"}}')
@example(tail='\\uZZZZ"}}')
@example(tail='\\q"}}')
def test_text_that_is_no_json_never_raises(tail: str):
    said = "".join(streamed(BARE, list('{"name": "send_message", "arguments": {"message": "' + tail)))
    said.encode()  # and can be shown


def test_what_was_shown_is_never_taken_back():
    text = BARE.write("send_message", json.dumps({"message": "a😀b\n"}))
    heard = streamed(BARE, list(text))
    assert heard == ["a", "😀", "b", "\n"]


@pytest.mark.parametrize("lone", [r"a\ud83d", r"a\ud83db", r"\udc00x", r"\ud83d\ud83d\ude00", r"\ud83d\nx"])
def test_lone_surrogate_is_shown_as_the_stored_reply_has_it(lone: str):
    text = BARE.write("send_message", f'{{"message": "{lone}"}}')
    assert "".join(streamed(BARE, list(text))) == BARE.parse(text).arguments["message"]


def test_other_functions_are_not_spoken():
    text = BARE.write("core_memory_append", '{"label": "human", "message": "secret", "content": "x"}')
    assert streamed(BARE, list(text)) == []


def test_escape_waits_until_it_is_whole():
    head = '{"name": "send_message", "arguments": {"message": "'
    heard: list[str] = []
    stream = ReplyStream(BARE, heard.append)
    stream.feed(head + "a\\u00")
    assert heard == ["a"]
    stream.feed("e9")
    assert heard == ["a", "é"]


def test_plain_reply_is_heard_as_it_is_written():
    frame = replace(BARE, plain="send_message")
    text = " Good morning, Ines! 你好 🫠 "
    assert "".join(streamed(frame, list(text))) == text.strip()
    assert len(streamed(frame, list(text))) > 5
    assert streamed(frame, list(frame.write("core_memory_append", '{"label": "human", "content": "x"}'))) == []
