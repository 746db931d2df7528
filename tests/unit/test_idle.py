"""Idle work: what is done ahead is what the turn would have done, and what is cut short changes nothing."""

from __future__ import annotations

import pytest
from support import Clock, append, make_agent, replies, say, scripted_agent, stored_messages

from localmem.backend.base import Completion
from localmem.backend.scripted import ScriptedBackend
from localmem.calls.prompt import Prompt
from localmem.kernel.agent import Agent
from localmem.kernel.cancellation import Cancellation
from localmem.storage.database import Database
from localmem.storage.embedder import HashEmbedder


def filled(agent: Agent, *, near: bool) -> Agent:
    """An agent whose window is nearly full, or just past the warning."""
    number = 0
    while not agent.queue_manager.flush_near:
        list(agent.send(f"Message {number} about the sea, which is wide and blue and full of ships."))
        number += 1
        if not near and agent.main_context.tokens > agent.options.budget.warning_tokens:
            break
    return agent


def rest(agent: Agent) -> None:
    agent.rest()
    agent.finish_idle_work()


def test_flush_that_is_near_is_made_ahead_and_the_next_turn_reads_only_what_is_new():
    agent = filled(scripted_agent(window=8_000), near=True)
    rest(agent)
    assert len(agent.summaries()) == 1
    before = agent.main_context.window()
    (step,) = agent.send("And the sky?")
    assert len(agent.summaries()) == 1
    assert step.usage.reused_tokens >= before.tokens - 1


def test_flush_made_ahead_gives_the_window_that_one_in_the_turn_gives():
    early, late = (filled(scripted_agent(window=8_000), near=True) for _ in range(2))
    rest(early)
    late.queue_manager.flush()
    assert early.main_context.window() == late.main_context.window()
    assert early.summaries()[0].text == late.summaries()[0].text


def test_nothing_is_flushed_while_the_window_has_room():
    agent = filled(scripted_agent(window=8_000), near=False)
    rest(agent)
    assert not agent.summaries()


def test_evicted_messages_stay_in_recall_storage():
    database = Database(":memory:")
    agent = filled(scripted_agent(window=8_000, database=database), near=True)
    rest(agent)
    told = {message.text for message in stored_messages(agent, database)}
    assert "Message 0 about the sea, which is wide and blue and full of ships." in told


def test_edited_block_is_shown_afresh():
    agent = scripted_agent([append("Likes tea."), say("Noted.")])
    list(agent.send("I like tea."))
    assert "Likes tea." not in agent.main_context.context_text
    rest(agent)
    assert agent.main_context.context_text == agent.working_context.render()
    assert "Likes tea." in agent.main_context.context_text


def test_rendering_made_ahead_is_there_after_a_restart(clock: Clock):
    database = Database(":memory:")
    agent = scripted_agent([append("Likes tea."), say("Noted.")], database=database, now=clock)
    list(agent.send("I like tea."))
    rest(agent)
    again = scripted_agent(database=database, now=clock)
    assert again.main_context.window() == agent.main_context.window()


def test_new_window_is_read_before_the_user_says_anything():
    agent = scripted_agent()
    rest(agent)
    (step,) = agent.send("Hello.")
    assert step.usage.reused_tokens >= agent.main_context.preamble_tokens


def test_idle_work_that_is_off_does_nothing():
    agent = filled(scripted_agent(window=8_000, idle=False), near=True)
    rest(agent)
    assert not agent.summaries()
    assert isinstance(agent.backend, ScriptedBackend)
    assert not agent.backend.ahead_prompts


class InterruptedBackend(ScriptedBackend):
    """An event arrives while this backend is at one kind of idle work."""

    def __init__(self, at: str) -> None:
        super().__init__([append("Likes the sea.")], window=8_000)
        self.at = at
        self.interrupts = 0

    def complete(self, prompt: Prompt, **options: object) -> Completion:  # type: ignore[override]
        if options.get("sequence") == "side" and self.at == "summary":
            self._interrupt(options["cancellation"])
        return super().complete(prompt, **options)  # type: ignore[arg-type]

    def read_ahead(self, prompt: Prompt, *, owner: str = "", cancellation: Cancellation | None = None) -> bool:
        if self.at == "reading":
            self._interrupt(cancellation)
        return super().read_ahead(prompt, owner=owner, cancellation=cancellation)

    def _interrupt(self, cancellation: object) -> None:
        assert isinstance(cancellation, Cancellation)
        cancellation.cancel()
        self.interrupts += 1


@pytest.mark.parametrize("at", ["summary", "reading"])
def test_event_in_the_middle_of_idle_work_changes_nothing_and_the_work_is_done_later(at: str):
    backend = InterruptedBackend(at)
    agent = filled(make_agent(backend), near=True)
    window, told = agent.main_context.window(), len(agent.recall.between(None, None).items)
    rest(agent)
    assert backend.interrupts == 1
    assert (agent.main_context.window(), agent.summaries()) == (window, [])
    assert len(agent.recall.between(None, None).items) == told
    assert replies(agent.send("Are you there?")) == ["All right."]
    backend.at = ""
    rest(agent)
    assert len(agent.summaries()) == 1
    assert "Likes the sea." in agent.main_context.context_text


def test_summary_that_was_made_before_the_interruption_is_not_made_again():
    backend = InterruptedBackend("reading")
    agent = filled(make_agent(backend), near=True)
    rest(agent)
    backend.at = ""
    rest(agent)
    assert len(agent.summaries()) == 1
    assert len(backend.side_prompts) == 1


def test_flush_in_a_turn_uses_the_summary_that_was_made_ahead():
    backend = InterruptedBackend("reading")
    agent = filled(make_agent(backend), near=True)
    rest(agent)
    agent.queue_manager.flush()
    assert len(backend.side_prompts) == 1


def test_agent_that_is_closed_while_it_works_ahead_stops():
    agent = filled(scripted_agent(window=8_000), near=True)
    agent.rest()
    agent.close()
    reopened = agent.main_context.tokens
    assert reopened <= agent.options.budget.flush_tokens


def test_window_read_ahead_is_main_when_the_user_comes_back_and_is_kept_at_closing():
    agent = filled(scripted_agent(window=8_000), near=True)
    rest(agent)
    backend, window = agent.backend, agent.main_context.window()
    assert isinstance(backend, ScriptedBackend)
    assert backend.cache.ids("main") == window.ids
    agent.close()
    assert backend.kept == [("", window)]


def test_agent_does_not_work_ahead_in_the_middle_of_an_event():
    agent = scripted_agent([append("Likes tea."), say("Noted.")])
    steps = agent.send("I like tea.")
    next(steps)
    rest(agent)
    assert "Likes tea." not in agent.main_context.context_text
    assert replies(steps) == ["Noted."]


def test_what_was_said_is_embedded_in_idle_time(clock: Clock):
    database = Database(":memory:")
    agent = scripted_agent(database=database, now=clock, embedder=HashEmbedder())
    list(agent.send("I like tea."))
    rest(agent)
    assert database.scalar("SELECT COUNT(*) FROM embedding") == 2
    assert agent.recall.embed_pending() == 0


class SlowEmbedder(HashEmbedder):
    """Is not ready before it is told so."""

    loaded = False
    loading = False

    def load_in_background(self) -> None:
        self.loading = True

    @property
    def ready(self) -> bool:
        return self.loaded


def test_event_does_not_wait_for_an_embedder_that_is_loading():
    embedder = SlowEmbedder()
    agent = scripted_agent(embedder=embedder)
    list(agent.send("I like tea."))
    agent.rest()
    assert replies(agent.send("And you?")) == ["All right."]
    assert embedder.loading
    agent.rest()
    embedder.loaded = True
    agent.finish_idle_work()
    assert agent.recall.embed_pending() == 0
