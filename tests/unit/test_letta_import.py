"""Agent files of Letta's: both layouts, what is taken, and what is said of the rest."""

import json
from datetime import UTC, datetime

import pytest
from support import scripted_agent

from localmem.errors import LocalmemError
from localmem.letta_import import agent_name, only_agent, take_in
from localmem.memory.letta_file import read_letta
from localmem.storage.embedder import HashEmbedder


def said(role, content, minute, **more):
    return {"role": role, "content": content, "created_at": f"2025-10-31T22:{minute:02}:00+00:00", **more}


def send(text):
    return {"id": "c", "function": {"name": "send_message", "arguments": json.dumps({"message": text})}}


def envelope(kind, text):
    return json.dumps({"type": kind, "message": text, "time": "2025-10-31"})


PRESENT = {
    "agents": [
        {
            "id": "agent-0",
            "name": "Sam the sailor",
            "system": "You are Sam.",
            "block_ids": ["block-1", "block-0"],
            "messages": [
                said("system", [{"type": "text", "text": "You are Sam."}], 0),
                said("user", [{"type": "text", "text": envelope("user_message", "I sail a boat. é 🎉")}], 2),
                said("user", envelope("heartbeat", "wake"), 3),
                said("assistant", [{"type": "text", "text": "a thought"}], 4, tool_calls=[send("Where to?")]),
                said("tool", [{"type": "text", "text": "OK"}], 5),
                said("assistant", "No calls here.", 6),
                said(
                    "assistant", "", 7, tool_calls=[{"function": {"name": "archival_memory_insert", "arguments": "{"}}]
                ),
                said("user", "An early word.", 1),
            ],
        }
    ],
    "blocks": [
        {"id": "block-0", "label": "human", "value": "Name: Chad", "description": "The user.", "limit": 20000},
        {"id": "block-1", "label": "Ship's Log!", "value": "line\n" * 200, "description": "d", "read_only": True},
        {"id": "block-9", "label": "other", "value": "of nobody"},
    ],
    "tools": [{"name": "x"}, {"name": "y"}],
}
EARLIER = {
    "name": "sam",
    "core_memory": [{"label": "persona", "value": "I am Sam.", "limit": 5000}],
    "messages": [
        {"role": "user", "text": "Hello."},
        {"role": "assistant", "content": None, "tool_calls": [send("Hi!")]},
    ],
    "tools": [{"name": "x"}],
}


def test_the_present_layout_is_read():
    (agent,) = read_letta(json.dumps(PRESENT))

    assert agent.name == "Sam the sailor"
    assert [(block.label, block.read_only) for block in agent.blocks] == [("ship-s-log", True), ("human", False)]
    assert [(message.kind, message.text) for message in agent.messages] == [
        ("user_message", "An early word."),
        ("user_message", "I sail a boat. é 🎉"),
        ("reply", "Where to?"),
        ("reply", "No calls here."),
    ]
    assert agent.messages[1].created_at == datetime(2025, 10, 31, 22, 2, tzinfo=UTC)
    assert agent.left_out == {
        "tools": 2, "system instructions": 1, "system messages": 1, "events": 1, "results": 1, "calls": 1,
    }  # fmt: skip


def test_the_earlier_layout_is_read():
    (agent,) = read_letta(json.dumps(EARLIER))

    assert [(block.label, block.value) for block in agent.blocks] == [("persona", "I am Sam.")]
    assert [message.text for message in agent.messages] == ["Hello.", "Hi!"]
    assert agent.left_out == {"tools": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "7",
        "{" * 100_000,
        '{"agents": []}',
        '{"agents": 7}',
        '{"agents": [1, null]}',
        '{"core_memory": {}}',
    ],
)
def test_what_is_no_agent_file_is_refused(text):
    with pytest.raises(LocalmemError, match="no agent file"):
        read_letta(text)


@pytest.mark.parametrize(
    "agent",
    [
        {"name": None, "messages": [{"role": 7, "content": 7}, {"role": "user", "content": [7, {"type": "text"}]}]},
        {"name": ["x"], "block_ids": [7, None], "messages": [{"role": "assistant", "tool_calls": [{"function": 7}]}]},
        {"messages": [{"role": "user", "content": "x", "created_at": "never"}], "memory_blocks": [{}, {"label": 7}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "send_message", "arguments": "[1]"}]}]},
    ],
)
def test_odd_parts_of_a_file_are_passed_over(agent):
    (read,) = read_letta(json.dumps({"agents": [agent]}))
    assert agent_name(read.name)
    take_in(scripted_agent(), read)


def test_an_agent_takes_in_what_fits_and_says_what_does_not():
    agent = scripted_agent(window=16_384, embedder=HashEmbedder())
    taken = take_in(agent, read_letta(json.dumps(PRESENT))[0])

    assert agent.working_context["human"] == "Name: Chad"
    log = agent.working_context.block("ship-s-log")
    assert log.read_only
    assert "cut: the whole block is in archival memory" in log.value
    assert agent.working_context.used("ship-s-log") <= log.limit
    stored = agent.archival.list(page_size=100).items
    assert "".join(passage.text for passage in stored).strip() == ("line\n" * 200).strip()
    assert {passage.source for passage in stored} == {"block ship-s-log"}
    assert [message.text for message in agent.recall.search("boat").items] == ["I sail a boat. é 🎉"]
    assert agent.main_context.queue == []
    assert (taken.blocks, taken.messages, taken.passages) == (2, 4, len(stored))
    assert any("ship-s-log: cut to 300 of" in note for note in taken.notes)
    assert "left out: tools (2)" in taken.notes
    assert {edit.author for edit in agent.history()[:3]} == {"import"}


def test_blocks_that_leave_no_room_go_into_archival_memory():
    agent = scripted_agent(window=4_096, embedder=HashEmbedder())
    blocks = [{"id": f"b{n}", "label": f"block{n}x", "value": "word " * 50} for n in range(40)]
    ids = [block["id"] for block in blocks]
    taken = take_in(agent, read_letta(json.dumps({"agents": [{"block_ids": ids}], "blocks": blocks}))[0])

    assert any("no room in the window" in note for note in taken.notes)
    assert agent.archival.count() == taken.passages > 0
    assert list(agent.send("Hello."))


def test_one_of_several_agents_is_chosen_by_name():
    agents = read_letta(json.dumps({"agents": [{"name": "a"}, {"name": "b"}]}))
    assert only_agent(agents, "b").name == "b"
    for wanted in (None, "c"):
        with pytest.raises(LocalmemError, match="2 agents: 'a', 'b'"):
            only_agent(agents, wanted)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("Sam the sailor", "Sam-the-sailor"), ("../x", "x"), ("é", "letta"), ("", "letta"), ("a" * 99, "a" * 64)],
)
def test_a_name_becomes_one_that_can_be_had(theirs, ours):
    assert agent_name(theirs) == ours
