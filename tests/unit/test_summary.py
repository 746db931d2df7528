"""The recursive summary: everything folded in, in pieces that fit."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localmem.backend.base import Completion
from localmem.backend.scripted import ScriptedBackend
from localmem.calls.chat_format import BARE, probe
from localmem.calls.grammar import CallGrammar
from localmem.calls.prompt import Prompt, TurnEncoder
from localmem.errors import ConfigError
from localmem.kernel.messages import Kind, Message, Role
from localmem.kernel.tokens import count
from localmem.memory.summary import Summarizer, transcript_line

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def message(kind: Kind, text: str, role: Role = "user") -> Message:
    return Message(role, kind, text, text, NOW)


def summarizer(backend: ScriptedBackend, *, limit: int = 200) -> tuple[Summarizer, list[Completion]]:
    made: list[Completion] = []
    encoder = TurnEncoder(backend.tokenizer, probe(None, bos="", eos="", tools=[]))
    return (
        Summarizer(
            backend,
            encoder,
            frame=BARE,
            instructions="In {words} words.",
            request="Sum up in {words} words.",
            limit=limit,
            on_inference=lambda phase, completion: made.append(completion),
        ),
        made,
    )


def side_texts(backend: ScriptedBackend) -> str:
    return b"\n".join(backend.tokenizer.decode_bytes(prompt.ids) for prompt in backend.side_prompts).decode()


def test_new_summary_is_what_the_model_wrote():
    made, _ = summarizer(ScriptedBackend(summary=" Ana has a dog. "))
    assert made.fold("", [message("user_message", "I have a dog.")]) == "- Ana has a dog."


def test_old_summary_and_messages_are_what_the_model_reads():
    backend = ScriptedBackend()
    summarizer(backend)[0].fold("Ana is 30.", [message("user_message", "I have a dog.")])
    assert "Ana is 30." in side_texts(backend)
    assert "[2026-03-02] User: I have a dog." in side_texts(backend)
    assert "In 100 words." in side_texts(backend)


def test_window_that_has_been_read_is_continued_and_not_read_again():
    backend = ScriptedBackend(summary="The user is Ana.")
    window = tuple(backend.tokenizer.encode("Everything the agent has read. " * 40))
    backend.read_ahead(Prompt(window))
    made, completions = summarizer(backend)
    summary = made.fold("Old.", [message("user_message", "I am Ana.")], window=window)
    assert summary == "- The user is Ana."
    assert backend.side_prompts[0].ids[: len(window)] == window
    assert "Sum up in 100 words." in side_texts(backend)
    assert completions[0].usage.evaluated_tokens < 100


def test_window_that_has_not_been_read_is_summarised_in_a_prompt_of_its_own():
    backend = ScriptedBackend(summary="Ana.")
    window = tuple(backend.tokenizer.encode("Everything the agent has read. " * 40))
    assert summarizer(backend)[0].fold("", [message("user_message", "I am Ana.")], window=window) == "- Ana."
    assert "Everything the agent has read." not in side_texts(backend)


def test_each_fact_stands_once_on_a_line_of_its_own():
    facts = ["I am Ana.", " - I have\na dog. ", "i am ana.", "I am 30."]
    call = BARE.write("keep_facts", json.dumps({"facts": facts}))

    class Listing(ScriptedBackend):
        def _aside(self, grammar: CallGrammar | None) -> str:
            return call

    made, _ = summarizer(Listing())
    assert made.fold("", [message("user_message", "I am Ana.")]) == "- I am Ana.\n- I have a dog.\n- I am 30."


def test_answer_that_is_no_list_leaves_the_old_summary():
    class Rambling(ScriptedBackend):
        def _aside(self, grammar: CallGrammar | None) -> str:
            return "Well, they talked"

    assert summarizer(Rambling())[0].fold("Old.", [message("user_message", "Hi.")]) == "Old."


def test_model_that_writes_nothing_behind_the_window_leaves_the_old_summary():
    backend = ScriptedBackend(summary="  ")
    window = tuple(backend.tokenizer.encode("Everything the agent has read. " * 40))
    backend.read_ahead(Prompt(window))
    assert summarizer(backend)[0].fold("Old.", [message("user_message", "Hi.")], window=window) == "Old."


@given(
    sizes=st.lists(st.integers(0, 3_000) | st.just(40_000), max_size=25),
    limit=st.integers(32, 2_000),
    character=st.sampled_from(["x", "é", "😀", " ", "<|im_end|>"]),
    summary=st.sampled_from(["", "s", "s" * 5_000, "😀" * 900]),
)
@example(sizes=[40_000] * 5, limit=2_000, character="x", summary="s" * 5_000)
def test_summary_prompt_never_overflows(sizes: list[int], limit: int, character: str, summary: str):
    backend = ScriptedBackend(summary=summary)  # it refuses a prompt that does not fit
    made, _ = summarizer(backend, limit=limit)
    new = made.fold("o" * limit, [message("user_message", character * size) for size in sizes])
    assert count(backend.tokenizer, new) <= limit
    assert all(prompt.tokens + limit <= backend.side_window for prompt in backend.side_prompts)


def test_each_message_is_folded_in_once():
    backend = ScriptedBackend(summary="s")
    summarizer(backend)[0].fold("", [message("user_message", f"fact {n:03d} " + "x" * 500) for n in range(40)])
    assert [side_texts(backend).count(f"fact {n:03d}") for n in range(40)] == [1] * 40
    assert len(backend.side_prompts) > 1


def test_piece_is_folded_into_the_summary_of_those_before_it():
    backend = ScriptedBackend(summary="SO FAR")
    summarizer(backend)[0].fold("", [message("user_message", "x" * 3_000) for _ in range(4)])
    first, second = (backend.tokenizer.decode_bytes(prompt.ids).decode() for prompt in backend.side_prompts[:2])
    assert "(none)" in first
    assert "SO FAR" in second


def test_model_that_writes_nothing_leaves_the_old_summary():
    made, _ = summarizer(ScriptedBackend(summary="  "))
    assert made.fold("Ana is 30.", [message("user_message", "Hello.")]) == "Ana is 30."


def test_cost_of_each_piece_is_told():
    backend = ScriptedBackend()
    made, costs = summarizer(backend)
    made.fold("", [message("user_message", "x" * 3_000) for _ in range(4)])
    assert len(costs) == len(backend.side_prompts) > 1


def test_nothing_evicted_costs_nothing():
    backend = ScriptedBackend()
    assert summarizer(backend)[0].fold("Ana is 30.", []) == "Ana is 30."
    assert backend.side_prompts == []


def test_summary_too_long_for_a_side_prompt_is_refused_with_the_most_that_fits():
    with pytest.raises(ConfigError) as caught:
        summarizer(ScriptedBackend(), limit=4_000)
    most = int(caught.value.hint.split()[3].rstrip("."))
    summarizer(ScriptedBackend(), limit=most)


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (message("user_message", "Hi."), "[2026-03-02] User: Hi."),
        (message("reply", "Hello.", "assistant"), "[2026-03-02] Assistant: Hello."),
        (
            message("call", "core_memory_append(label='human', content='x')", "assistant"),
            "[2026-03-02] (Assistant saved: core_memory_append(label='human', content='x'))",
        ),
        (message("timer", "Tea.", "system"), "[2026-03-02] (Event: Tea.)"),
        (message("document", "a.md", "system"), "[2026-03-02] (Event: a.md)"),
        (message("call", "conversation_search(query='x')", "assistant"), ""),
        (message("result", "Done.", "function"), ""),
        (message("memory_pressure", "Full.", "system"), ""),
    ],
    ids=lambda value: value.kind if isinstance(value, Message) else "",
)
def test_transcript_keeps_what_was_said_and_saved(told: Message, line: str):
    assert transcript_line(told) == line
