"""The queue manager: what stands in the FIFO queue, and when it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from support import Clock, make_agent, scripted_agent, stored_messages

from localmem.backend.scripted import ScriptedBackend
from localmem.kernel.agent import Agent
from localmem.kernel.budget import Budget
from localmem.kernel.events import UserMessage
from localmem.kernel.messages import Kind
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database


@pytest.fixture
def database() -> Iterator[Database]:
    with Database(":memory:") as database:
        yield database


def told(agent: Agent, *texts: str) -> None:
    for text in texts:
        agent.note(UserMessage(text))


def call(agent: Agent, text: str) -> None:
    """A call and its result, as a step writes them."""
    agent.queue_manager.append("assistant", "call", text, token_ids=tuple(text.encode()))
    agent.queue_manager.append("function", "result", f"done {text}")


def shown(agent: Agent) -> list[str]:
    return [message.text for message in agent.main_context.queue]


def test_message_is_written_to_recall_and_queue_alike(database: Database):
    agent = scripted_agent(database=database)
    told(agent, "one", "two")
    ids = [message.id for message in stored_messages(agent, database)]
    assert ids == [message.id for message in agent.main_context.queue] == AgentStore(database).queue_ids(agent.id)


def test_stored_token_count_is_what_the_message_takes():
    agent = scripted_agent()
    before = agent.main_context.tokens
    told(agent, "Hello.")
    assert agent.main_context.queue[0].tokens == agent.main_context.tokens - before


def test_flush_takes_whole_exchanges_and_about_half():
    agent = scripted_agent()
    for number in range(4):
        told(agent, f"question {number}")
        call(agent, f"call {number}")
    agent.queue_manager.flush()
    assert shown(agent)[0] == "question 2"
    assert len(shown(agent)) == 6


def test_newest_exchange_stays_even_when_it_is_the_largest():
    agent = scripted_agent()
    told(agent, "a", "b", "c" * 2_000)
    agent.queue_manager.flush()
    assert shown(agent) == ["c" * 2_000]


def test_no_result_is_left_without_its_call():
    agent = scripted_agent()
    told(agent, "THE QUESTION")
    for number in range(6):
        call(agent, f"call {number}")
    agent.queue_manager.flush()
    kinds = [message.kind for message in agent.main_context.queue]
    assert shown(agent)[0] == "THE QUESTION"
    assert kinds[1:] == ["call", "result"] * (len(kinds) // 2)
    assert 3 <= len(kinds) < 13


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8])
def test_share_that_is_evicted_is_a_setting(share: float):
    backend = ScriptedBackend(window=8_192)
    agent = make_agent(backend, budget=Budget(8_192, 512, evict=share))
    told(agent, *(f"{n:02d}" + "x" * 98 for n in range(20)))
    sizes = [message.tokens for message in agent.main_context.queue]
    target = sum(sizes) * share
    agent.queue_manager.flush()
    evicted = 20 - len(shown(agent))
    assert sum(sizes[: evicted - 1]) < target <= sum(sizes[:evicted]) + 1


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_flushing_again_and_again_empties_the_queue_and_stops(count: int):
    agent = scripted_agent()
    told(agent, *(f"message {n}" for n in range(count)))
    lengths = []
    while agent.main_context.queue:
        agent.queue_manager.flush()
        lengths.append(len(agent.main_context.queue))
    assert lengths == sorted(set(lengths), reverse=True)
    agent.queue_manager.flush()
    assert agent.main_context.queue == []


def test_prompt_at_the_limit_is_not_flushed_and_one_token_more_is():
    agent = scripted_agent(window=6_000)
    told(agent, "first", "second")
    room = agent.options.budget.flush_tokens - agent.main_context.tokens
    sizes: list[int] = []
    while room > 1_400:
        told(agent, "x" * 1_000)
        room = agent.options.budget.flush_tokens - agent.main_context.tokens
    overhead = agent.main_context.encoder.overhead("system")
    for piece in (room // 2, room - room // 2):
        agent.queue_manager.append("system", "login", "y" * (piece - overhead))
        sizes.append(agent.main_context.tokens)
    assert sizes[-1] == agent.options.budget.flush_tokens
    assert not agent.queue_manager.relieve_pressure()
    agent.queue_manager.append("system", "login", "z")
    assert agent.queue_manager.relieve_pressure()
    assert agent.main_context.tokens <= agent.options.budget.flush_tokens


def test_counts_of_evicted_messages_add_up(database: Database):
    agent = scripted_agent(database=database)
    told(agent, *(f"message {n}" for n in range(10)))
    for _ in range(3):
        agent.queue_manager.flush()
    summary = AgentStore(database).current_summary(agent.id)
    assert summary is not None
    assert summary.evicted_messages + len(agent.main_context.queue) == 10


@pytest.mark.parametrize("kind", ["result", "login", "system_message", "document", "timer", "memory_pressure"])
def test_only_what_the_user_says_is_stamped(clock: Clock, kind: Kind):
    agent = scripted_agent(window=6_000, now=clock)
    told(agent, "one")
    clock.advance(timedelta(hours=2))
    message = agent.queue_manager.append("system", kind, "x" * 900)
    assert message.content == "x" * 900


def test_a_filling_window_adds_nothing_to_what_is_said():
    agent = scripted_agent(window=6_000)
    told(agent, *("x" * 200 for _ in range(8)))
    assert {message.content for message in agent.main_context.queue if message.kind == "user_message"} == {"x" * 200}


def test_warning_is_due_at_its_share_and_not_below():
    agent = scripted_agent(window=6_000)
    due = []
    while agent.main_context.tokens < agent.options.budget.limit * 0.9:
        told(agent, "x" * 100)
        due.append((agent.main_context.tokens >= agent.options.budget.warning_tokens, agent.queue_manager.warning_due))
    assert {True, False} == {expected for expected, _ in due}
    assert [expected for expected, _ in due] == [found for _, found in due]


def test_restored_queue_is_the_queue(database: Database):
    agent = scripted_agent(database=database)
    told(agent, "one", "two", "three")
    call(agent, "f()")
    agent.queue_manager.flush()
    reopened = scripted_agent(database=database)
    assert reopened.main_context.queue == agent.main_context.queue
    assert reopened.main_context.prompt() == agent.main_context.prompt()
    assert reopened.queue_manager.warned == agent.queue_manager.warned


def test_queues_of_two_agents_never_mix(database: Database):
    ana, bea = scripted_agent(database=database, name="ana"), scripted_agent(database=database, name="bea")
    told(ana, "for ana")
    told(bea, "for bea")
    ana.queue_manager.flush()
    assert shown(bea) == ["for bea"]
    assert [m.text for m in stored_messages(ana, database)] == ["for ana"]
    assert AgentStore(database).current_summary(bea.id) is None
