"""Killed at any moment between two steps and opened again, an agent has the same window, byte for byte."""

from __future__ import annotations

import contextlib
import gc
import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support import Clock, append, make_agent, say

from localmem.backend.scripted import ScriptedBackend
from localmem.errors import ChainLimit
from localmem.kernel.agent import Agent
from localmem.kernel.events import SystemMessage
from localmem.kernel.messages import FunctionCall
from localmem.memory.working_context import Block
from localmem.storage.database import Database

WINDOW = 3_600
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
lengths = st.sampled_from([1, 30, 400])


class Restarts(RuleBasedStateMachine):
    """An agent in a file; `restart` drops every object without closing anything."""

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.agent = self.opened()

    def opened(self) -> Agent:
        database = Database(Path(self.folder.name) / "localmem.db")
        return make_agent(ScriptedBackend(window=WINDOW), database=database, now=self.clock, max_steps=5)

    def script(self, *calls: FunctionCall | str) -> None:
        assert isinstance(self.agent.backend, ScriptedBackend)
        self.agent.backend.script[:] = calls

    @rule(text=words, times=lengths)
    def talk(self, text: str, times: int) -> None:
        self.script()
        list(self.agent.send(text * times))

    @rule(fact=words, heartbeat=st.booleans())
    def remember(self, fact: str, heartbeat: bool) -> None:
        self.script(append(fact, heartbeat=heartbeat), "no call at all", say(fact))
        list(self.agent.send(fact))

    @rule(text=words)
    def fail(self, text: str) -> None:
        self.script(*[FunctionCall("fly", {"to": text})] * 9)
        with contextlib.suppress(ChainLimit):
            list(self.agent.send(text))

    @rule(text=words)
    def stop_half_way(self, text: str) -> None:
        self.script(append(text), append(text + "!"), say(text))
        steps = self.agent.send(text)
        next(steps)
        steps.close()

    @rule(text=words)
    def interrupt_the_reply(self, text: str) -> None:
        self.script(say("<|im_end|>" + text * 5))
        list(self.agent.send("Go on.", on_reply=lambda _piece: self.agent.cancel()))

    @rule(text=words, times=lengths)
    def other_event(self, text: str, times: int) -> None:
        self.script(append(text))
        list(self.agent.handle(SystemMessage(text * times)))

    @rule(hours=st.integers(0, 60))
    def come_back(self, hours: int) -> None:
        self.clock.advance(timedelta(hours=hours))
        self.agent.log_in()

    @rule(value=words)
    def edit(self, value: str) -> None:
        self.agent.set_block("human", value)

    @rule(label=st.sampled_from(["work", "family"]), value=words)
    def add_block(self, label: str, value: str) -> None:
        self.agent.add_block(Block(label, "More.", value, limit=170))

    @rule()
    def flush(self) -> None:
        self.agent.queue_manager.flush()

    @rule()
    def restart(self) -> None:
        before = self.state()
        del self.agent
        gc.collect()
        self.agent = self.opened()
        assert self.state() == before

    def state(self) -> tuple[object, ...]:
        context = self.agent.main_context
        return (
            context.prompt().ids,
            dict(self.agent.working_context),
            [message.id for message in context.queue],
            [message.tokens for message in context.queue],
            self.agent.queue_manager.warned,
        )

    @invariant()
    def second_reader_sees_the_same_window(self) -> None:
        if not hasattr(self, "agent"):
            return
        reader = self.opened()
        assert reader.main_context.prompt() == self.agent.main_context.prompt()
        assert dict(reader.working_context) == dict(self.agent.working_context)

    def teardown(self) -> None:
        self.folder.cleanup()


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(max_examples=max(5, settings.default.max_examples // 4), stateful_step_count=15)
