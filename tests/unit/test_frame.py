"""The call frame: writing a call, and reading one back from what a model wrote."""

from __future__ import annotations

import json

import pytest

from localmem.calls.chat_format import BARE
from localmem.calls.frame import Frame
from localmem.errors import InvalidArguments

HERMES = Frame('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")


@pytest.mark.parametrize("frame", [BARE, HERMES], ids=["bare", "hermes"])
def test_written_call_is_read_back(frame: Frame):
    call = frame.parse(frame.write("f", '{"a": "}", "b": [1, {"c": null}]}'))
    assert (call.name, call.arguments) == ("f", {"a": "}", "b": [1, {"c": None}]})


def test_text_round_a_call_does_not_matter():
    assert BARE.parse('  Sure:\n{"name": "f", "arguments": {}}\n').name == "f"


def test_heartbeat_and_thought_are_taken_out_of_the_arguments():
    call = BARE.parse(BARE.write("f", '{"thought": "hm", "x": 1, "request_heartbeat": true}'))
    assert (call.arguments, call.thought, call.request_heartbeat) == ({"x": 1}, "hm", True)


@pytest.mark.parametrize("value", ["false", "0", '"true"', "null", "1"])
def test_only_true_is_a_heartbeat(value: str):
    assert not BARE.parse(BARE.write("f", f'{{"request_heartbeat": {value}}}')).request_heartbeat


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello!",
        '{"name": "f"}',
        '{"name": "f", "arguments": {"a": }}',
        '{"name": "f", "arguments": [1]}}',
        '{"name": "f", "arguments": "x"}',
        '{"name": "f", "arguments": ',
        '} {"name": "',
        '{"name": "f", "arguments": {"a": 1}} {"name": "g", "arguments": {}}',
        '{"name": "f", "arguments": ' + "[" * 100_000 + "}",
        '{"name": "f", "arguments": {"a": ' + "1" * 5_000 + "}}",
    ],
)
def test_what_is_no_call_is_refused_in_words_for_the_model(text: str):
    with pytest.raises(InvalidArguments):
        BARE.parse(text)


def test_refusal_shows_how_a_call_is_written():
    with pytest.raises(InvalidArguments, match=r'\{"name": "NAME", "arguments": \{...\}\}'):
        BARE.parse("Hello!")


def test_lone_surrogate_in_an_argument_becomes_text_that_can_be_shown():
    call = BARE.parse(BARE.write("f", r'{"a": "x\ud83d", "b": ["\udc00"], "c": {"d": "\ud83d\ude00"}}'))
    assert call.arguments == {"a": "x?", "b": ["?"], "c": {"d": "😀"}}


HERMES_PLAIN = Frame('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", plain="send_message")


@pytest.mark.parametrize("text", ["Hello!", "  Hello! ", "Use <b>tool_call</b>", '{"a": 1}', "你好"])
def test_plain_reply_is_the_call_it_means(text: str):
    call = HERMES_PLAIN.parse(text)
    assert (call.name, call.arguments) == ("send_message", {"message": text.strip()})
    assert HERMES_PLAIN.write("send_message", json.dumps({"message": text})) == text


@pytest.mark.parametrize("text", ["<tool_call>", "<tool_call>\n{", '<tool_call>\n{"name": "f", "arguments": {'])
def test_what_begins_like_a_call_is_no_plain_reply(text: str):
    assert not HERMES_PLAIN.is_plain(text)
    with pytest.raises(InvalidArguments):
        HERMES_PLAIN.parse(text)


def test_call_beside_a_plain_reply_is_a_call():
    written = HERMES_PLAIN.write("f", '{"a": 1}')
    assert HERMES_PLAIN.parse(written).name == "f"
