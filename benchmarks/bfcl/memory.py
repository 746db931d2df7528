"""BFCL's memory category with real agents: told everything, flushes and all, then asked.

Each of BFCL's three stores is a part of localmem's own memory, and the agent can call its functions and no others:

kv       core memory, and archival storage searched by words alone
vector   core memory, and archival storage searched by meaning and by words
summary  the recursive summary, and the search of what was said

BFCL's own key-value and vector stores have a core and an archival part too; its summary is one text. An agent of the
tuned arm is told of every function, as the model was tuned, and rules keep it from calling the others.

An agent is told a scenario's conversations once, and kept. What its window still holds then leaves as it always does,
with a warning before each flush; and the summary is emptied where it is not the store. Each question is asked of a
copy, so that none sees another.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

import localmem
from benchmarks.agents import Clock, Exchange, arm_backend, arm_profile, go_on, quiet, say
from benchmarks.bfcl.checker import Checker
from benchmarks.bfcl.data import MemoryQuestion
from benchmarks.journal import Journal, Record
from localmem.backend.base import Backend
from localmem.bench.arms import Arm
from localmem.bench.reliability import declared_functions
from localmem.config import Settings
from localmem.kernel.agent import Agent
from localmem.kernel.events import MemoryPressure
from localmem.kernel.rules import ToolRules
from localmem.memory.functions import NOTHING
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution
from localmem.storage.embedder import Embedder

Store = Literal["kv", "vector", "summary"]
STORES: tuple[Store, ...] = ("kv", "vector", "summary")

_KEPT = ("core_memory_append", "core_memory_replace", "archival_memory_insert", "archival_memory_search")
FUNCTIONS: dict[Store, tuple[str, ...]] = {"kv": _KEPT, "vector": _KEPT, "summary": ("conversation_search",)}
_KEEPING = "I keep what the user tells me, and search archival memory before I answer a question."
PERSONAS: dict[Store, str] = {
    "kv": _KEEPING,
    "vector": _KEEPING,
    "summary": "I search our conversation before I answer a question about something that is not here.",
}
"""What BFCL's own instructions say of a store, in the words of an agent."""

_NAME = "agent"
_BETWEEN_SESSIONS = timedelta(days=1)
_BETWEEN_TURNS = timedelta(minutes=2)

OnTurn = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Telling:
    """One arm's agents over one store: how they are opened, and the folder of their databases."""

    store: Store
    arm: Arm
    settings: Settings
    backend: Backend
    embedder: Embedder | None
    folder: Path

    def open(self, database: Path, home: Path, clock: Clock) -> Agent:
        """The agent in `database`, with its store's functions."""
        own = FUNCTIONS[self.store]
        others = dict.fromkeys(declared_functions().keys() - {*own, "send_message", NOTHING}, 0)
        tuned = self.arm == "tuned"
        settings = replace(self.settings, home=home, database=database)
        return localmem.open(
            _NAME,
            settings=quiet(settings if self.store == "vector" else replace(settings, embedder="none")),
            backend=arm_backend(self.backend, self.arm, own),
            embedder=self.embedder if self.store == "vector" else None,
            profile=arm_profile(self.settings, self.arm),
            functions=None if tuned else own,
            rules=ToolRules(at_most=others) if tuned else None,
            now=clock,
        )

    def tell(self, scenario: str, sessions: Sequence[Sequence[str]], *, on_turn: OnTurn | None = None) -> Path:
        """The database of an agent that has been told these sessions; one that was told before is told on, or kept."""
        told, telling = (self.folder / f"{self.arm}-{self.store}-{scenario}{end}" for end in (".db", ".telling.db"))
        if told.is_file():
            return told
        self.folder.mkdir(parents=True, exist_ok=True)
        known = _turns_told(telling)
        clock, number = Clock(), 0
        with self.open(telling, self.folder, clock) as agent:
            if not known:
                self._furnish(agent)
            go_on(agent)
            for session in sessions:
                clock.now += _BETWEEN_SESSIONS
                for place, text in enumerate(session):
                    clock.now += _BETWEEN_TURNS
                    number += 1
                    if number > known:
                        if not place:
                            agent.log_in()
                        say(agent, text)
                    if on_turn is not None:
                        on_turn()
            self._flush_everything(agent)
        self._end_conversation(telling, clock)
        return telling.rename(told)

    def ask(self, told: Path, question: str) -> Exchange:
        """A question, asked of a copy of a told agent."""
        clock = Clock()
        clock.now += 30 * _BETWEEN_SESSIONS
        with tempfile.TemporaryDirectory() as home:
            database = Path(shutil.copy(told, Path(home) / "localmem.db"))
            with self.open(database, Path(home), clock) as agent:
                return say(agent, question)

    def _furnish(self, agent: Agent) -> None:
        agent.set_block("persona", PERSONAS[self.store])

    def _flush_everything(self, agent: Agent) -> None:
        """What happens to what is still in the window as a conversation goes on: a warning, and a flush, until all of
        it has left. Where only the summary is kept there is nothing to be warned for."""
        while any(message.kind == "user_message" for message in agent.main_context.queue):
            if self.store != "summary":
                budget = agent.queue_manager.budget
                for _ in agent.handle(MemoryPressure(budget.warning_tokens, budget.flush_tokens)):
                    pass
            agent.queue_manager.carry_out(agent.queue_manager.plan_flush())

    def _end_conversation(self, path: Path, clock: Clock) -> None:
        """Empty the queue, and the summary with it where it is not the store."""
        with Database(path) as database:
            store = AgentStore(database)
            row = store.get(_NAME)
            store.replace_queue(row.id, [])
            store.set_warned(row.id, False)
            store.set_rendered_context(row.id, "")  # it is rendered as it is opened
            if self.store != "summary" and store.current_summary(row.id) is not None:
                store.add_summary(row.id, "", 0, Attribution("user", clock.now))


def run_memory(
    telling: Telling,
    questions: Sequence[MemoryQuestion],
    sessions: Callable[[str], Sequence[Sequence[str]]],
    checker: Checker,
    *,
    journal: Journal,
    on_turn: OnTurn | None = None,
) -> list[Record]:
    """Every question's record; a scenario is told when its first question comes. A reply is right that holds an
    answer."""
    found: list[Record] = []
    for question in questions:
        key = f"{telling.store} {telling.arm} {question.id}"
        record = journal.known(key)
        if record is None:
            told = telling.tell(question.scenario, sessions(question.scenario), on_turn=on_turn)
            given = telling.ask(told, question.text)
            right = checker.right_reply(given.reply, question.answers)
            record = journal.add(key, {"id": question.id, "right": right, **given.record})
        found.append(record)
        if on_turn is not None:
            on_turn()
    return found


def _turns_told(path: Path) -> int:
    """How many of the user's messages an agent has been given; 0 where there is none yet."""
    if not path.is_file():
        return 0
    with Database(path) as database:
        row = database.row("SELECT count(*) AS told FROM message WHERE kind = 'user_message'", ())
        return 0 if row is None else int(row["told"])
