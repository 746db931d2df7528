"""Main context: one order, one sum."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from localmem.backend.scripted import ByteTokenizer
from localmem.calls.chat_format import probe
from localmem.calls.prompt import TurnEncoder
from localmem.kernel.messages import Message
from localmem.memory.main_context import MainContext, Prefix

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def message(text: str) -> Message:
    return Message("user", "user_message", text, text, NOW)


@pytest.fixture
def context() -> MainContext:
    encoder = TurnEncoder(ByteTokenizer(), probe(None, bos="", eos="", tools=[]))
    context = MainContext(Prefix(encoder, encoder.first("INSTRUCTIONS"), encoder.turn("user", "EXAMPLES")))
    context.set_context("BLOCKS")
    context.set_summary("SUMMARY")
    context.append(message("FIRST"))
    context.append(message("SECOND"))
    return context


def text(context: MainContext) -> str:
    return context.encoder.tokenizer.decode_bytes(context.prompt().ids, special=True).decode()


def test_parts_stand_in_their_order(context: MainContext):
    shown = text(context)
    places = [shown.index(part) for part in ("INSTRUCTIONS", "BLOCKS", "EXAMPLES", "SUMMARY", "FIRST", "SECOND")]
    assert places == sorted(places)
    assert shown.endswith("<|im_start|>assistant\n")


def test_token_count_is_the_length_of_the_prompt(context: MainContext):
    prompt = context.prompt()
    assert context.tokens == prompt.tokens == sum(prompt.parts.values())
    assert prompt.parts["queue"] == context.queue_tokens
    assert prompt.parts["system"] + prompt.parts["examples"] == context.preamble_tokens
    assert prompt.parts["answer"] == context.answer_tokens


def test_appending_changes_nothing_that_stood_before(context: MainContext):
    before = context.prompt().ids[: -context.answer_tokens]
    context.append(message("THIRD"))
    assert context.prompt().ids[: len(before)] == before


def test_measure_is_what_appending_costs(context: MainContext):
    before = context.tokens
    third = message("THIRD")
    context.append(third)
    assert context.tokens - before == context.measure(third)


def test_evicted_messages_leave_the_prompt(context: MainContext):
    context.evict(0, 1)
    assert "FIRST" not in text(context)
    assert "SECOND" in text(context)
    assert [m.text for m in context.queue] == ["SECOND"]


def test_empty_summary_and_context_take_no_tokens(context: MainContext):
    context.set_summary("")
    context.set_context("")
    parts = context.prompt().parts
    assert (parts["summary"], parts["working_context"]) == (0, 0)


def test_shown_text_is_the_content_and_not_what_was_said(context: MainContext):
    context.append(replace(message("SAID"), content="SHOWN"))
    assert "SHOWN" in text(context)
    assert "SAID" not in text(context)
