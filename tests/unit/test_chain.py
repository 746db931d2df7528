"""What the calls of an event leave to call next."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from localmem.calls.chat_format import BARE
from localmem.calls.grammar import CallGrammar, FunctionChoice, Schema
from localmem.kernel.chain import Chain, excluding
from localmem.kernel.messages import FunctionCall, FunctionResult
from localmem.kernel.rules import ToolRules
from localmem.memory.functions import days_of

APPEND: Schema = {
    "type": "object",
    "properties": {
        "label": {"enum": ["human", "persona"]},
        "content": {"type": "string", "minLength": 1, "maxLength": 60},
    },
    "required": ["label", "content"],
    "additionalProperties": False,
}
SEARCH: Schema = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "maxLength": 60},
        "page": {"type": "integer", "minimum": 1, "maximum": 2},
    },
    "required": ["query", "page"],
    "additionalProperties": False,
}
ANSWER: Schema = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
CHOICES = (
    FunctionChoice("send_message", ANSWER),
    FunctionChoice("core_memory_append", APPEND),
    FunctionChoice("conversation_search", SEARCH),
)
BYTES = LLTokenizer("byte")


def chain(*done: tuple[FunctionCall, FunctionResult], rules: ToolRules | None = None) -> Chain:
    made = Chain("user_message", "What about abcd-1234?", rules or ToolRules())
    for call, result in done:
        made.add(call, result)
    return made


def accepts(choices: tuple[FunctionChoice, ...], name: str, **arguments: object) -> bool:
    """Whether llguidance lets the call through, and jsonschema agrees."""
    matcher = LLMatcher(BYTES, CallGrammar(BARE, choices).lark(lambda _: [], by_ids=False), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = BYTES.tokenize_str(BARE.write(name, json.dumps(arguments, ensure_ascii=False)))
    matched = matcher.validate_tokens(tokens) == len(tokens)
    schema = next((choice.parameters for choice in choices if choice.name == name), None)
    assert matched == (schema is not None and Draft202012Validator(dict(schema)).is_valid(arguments))
    return matched


def test_nothing_done_narrows_nothing():
    assert chain().narrow(CHOICES) == CHOICES


@pytest.mark.parametrize(
    "content",
    [
        "We moved.",
        'He said "hi" \\ / & ~ - #',
        "[x] {y} (z) ^$.*+?|",
        "👩‍👩‍👧 é 你好",
        "two\nlines\tand more",
        "'",
        "`<>=!@%;:,_",
    ],
)
def test_the_call_that_failed_is_left_out_and_every_other_is_not(content: str):
    failed = (
        FunctionCall("core_memory_append", {"label": "human", "content": content}),
        FunctionResult(False, "Error: full"),
    )
    left = chain(failed).narrow(CHOICES)
    assert not accepts(left, "core_memory_append", label="human", content=content)
    assert accepts(left, "core_memory_append", label="persona", content=content)
    assert accepts(left, "core_memory_append", label="human", content=content + "x")
    assert accepts(left, "core_memory_append", label="human", content="y")
    assert accepts(left, "send_message", message="no")


def test_a_call_that_worked_may_come_again():
    done = FunctionCall("core_memory_append", {"label": "human", "content": "a b c"}), FunctionResult(True, "Saved.")
    assert accepts(chain(done).narrow(CHOICES), "core_memory_append", label="human", content="a b c")


def test_a_search_made_twice_finds_the_same_and_is_left_out():
    call = FunctionCall("conversation_search", {"query": "boat", "page": 1})
    left = chain((call, FunctionResult(True, "Results 1-5 of 8, page 1 of 2:\nUser: boat"))).narrow(CHOICES)
    assert not accepts(left, "conversation_search", query="boat", page=1)
    assert accepts(left, "conversation_search", query="boat", page=2)
    assert accepts(left, "conversation_search", query="car trip", page=1)


def test_a_search_without_a_page_was_of_the_first():
    call = FunctionCall("conversation_search", {"query": "boat"})
    left = chain((call, FunctionResult(True, "Nothing found for 'boat' in older messages."))).narrow(CHOICES)
    assert not accepts(left, "conversation_search", query="boat", page=1)


def test_two_searches_are_left_out_of_a_third():
    queries = ("boat", "the sea")
    done = [
        (FunctionCall("conversation_search", {"query": query, "page": 1}), FunctionResult(True, "Results"))
        for query in queries
    ]
    left = chain(*done).narrow(CHOICES)
    for query in queries:
        assert not accepts(left, "conversation_search", query=query, page=1)
        assert accepts(left, "conversation_search", query=query, page=2)
    assert accepts(left, "conversation_search", query="car", page=1)


def test_days_that_were_read_are_left_out():
    day = {"type": "string", "pattern": days_of(2025, 2026)}
    page = {"type": "integer", "minimum": 1, "maximum": 1}
    schema: Schema = {
        "type": "object",
        "properties": {"start_date": day, "end_date": day, "page": page},
        "required": ["start_date", "end_date", "page"],
        "additionalProperties": False,
    }
    offered = (FunctionChoice("conversation_search_date", schema), FunctionChoice("send_message", ANSWER))
    arguments = {"start_date": "2026-03-02", "end_date": "2026-03-04", "page": 1}
    call = FunctionCall("conversation_search_date", arguments)
    left = chain((call, FunctionResult(True, "No messages from 2026-03-02 to 2026-03-04."))).narrow(offered)
    assert not accepts(left, "conversation_search_date", **arguments)
    assert accepts(left, "conversation_search_date", **{**arguments, "end_date": "2026-03-05"})
    assert accepts(left, "conversation_search_date", **{**arguments, "start_date": "2026-03-01"})
    assert not accepts(left, "conversation_search_date", **{**arguments, "start_date": "2026-02-30"})


def test_a_thought_makes_no_other_call():
    schema: Schema = {
        **SEARCH,
        "properties": {"thought": {"type": "string", "maxLength": 20}, **SEARCH["properties"]},
        "required": ["thought", "query", "page"],
    }
    call = FunctionCall("conversation_search", {"query": "boat", "page": 2}, thought="mm")
    (left,) = chain((call, FunctionResult(True, "Results"))).narrow((FunctionChoice("conversation_search", schema),))
    assert not accepts((left,), "conversation_search", thought="other", query="boat", page=2)
    assert accepts((left,), "conversation_search", thought="other", query="boat", page=1)


def test_a_function_wears_out_but_the_answer_does_not():
    done = [
        (FunctionCall("conversation_search", {"query": q, "page": 1}), FunctionResult(True, "Results")) for q in "abc"
    ]
    assert [choice.name for choice in chain(*done).narrow(CHOICES)] == ["send_message", "core_memory_append"]
    said = [(FunctionCall("send_message", {"message": "x"}), FunctionResult(True, "Sent."))] * 4
    assert "send_message" in [choice.name for choice in chain(*said).narrow(CHOICES)]


def test_identifiers_are_all_a_search_may_ask_for():
    rules = ToolRules(identifiers=r"[a-z]{4}-\d{4}", verified=True)
    left = chain(rules=rules).narrow(CHOICES)
    assert accepts(left, "conversation_search", query="abcd-1234", page=1)
    assert not accepts(left, "conversation_search", query="anything", page=1)
    assert not accepts(left, "send_message", message="guess")
    found = FunctionCall("conversation_search", {"query": "abcd-1234", "page": 1})
    ended = chain((found, FunctionResult(True, "Results 1-1 of 1, page 1 of 1:\nabcd-1234 is an end")), rules=rules)
    assert [choice.name for choice in ended.narrow(CHOICES)] == ["send_message", "core_memory_append"]


def test_nothing_is_left_of_a_call_without_alternatives():
    schema: Schema = {**APPEND, "properties": {"label": {"const": "human"}, "content": {"enum": ["only this"]}}}
    assert excluding(schema, {"label": "human", "content": "only this"}) is None
    failed = (
        FunctionCall("core_memory_append", {"label": "human", "content": "only this"}),
        FunctionResult(False, "Error: full"),
    )
    only = (FunctionChoice("core_memory_append", schema), FunctionChoice("send_message", ANSWER))
    assert [choice.name for choice in chain(failed).narrow(only)] == ["send_message"]


@pytest.mark.parametrize(
    "reply",
    [
        "I have saved that.",
        "I've noted it!",
        "I'll remember that.",
        "Saved!",
        "Lo he anotado.",
        "C'est noté, merci",
        "已经记住了",
        "J’ai bien noté",
    ],
)
def test_a_promise_that_nothing_kept(reply: str):
    assert chain().broken_promise(reply)
    kept = FunctionCall("core_memory_append", {"label": "human", "content": "x"}), FunctionResult(True, "Saved.")
    assert not chain(kept).broken_promise(reply)


@pytest.mark.parametrize(
    ("text", "reply", "echoed"),
    [
        ("Take the trash out on Monday. Mop the floor.", "Take the trash out on Monday! Mop the floor!", True),
        ("Take the trash out on Monday. Mop the floor.", "I'll remind you of the trash on Monday.", False),
        ("My dog is called Bo.", "Your dog is called Bo.", True),
        ("Good morning!", "Good morning!", False),
    ],
)
def test_what_was_only_said_back(text: str, reply: str, echoed: bool):
    assert Chain("user_message", text).is_echoed(reply) is echoed
    kept = FunctionCall("core_memory_append", {"label": "human", "content": text}), FunctionResult(True, "Saved.")
    assert not Chain("user_message", text, done=[kept]).is_echoed(reply)


@pytest.mark.parametrize(
    "reply", ["I remember you told me.", "Shall I save that?", "You saved my day.", "Congratulations on the new job!"]
)
def test_what_is_no_promise(reply: str):
    assert not chain().broken_promise(reply)
