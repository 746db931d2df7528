"""A conversation that can be gone on with from wherever it was cut off: all of it follows from what the window holds.

Everything that writes is in it: facts saved, changed and deleted, passages, a function of the user's own that leaves
its mark in a file, searches, long messages that fill the window until it is flushed. What is acknowledged, once it is,
is told to `acknowledge`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import localmem
from localmem.backend.base import Completion
from localmem.backend.scripted import ScriptedBackend
from localmem.calls.prompt import Prompt
from localmem.config import Settings, load_settings
from localmem.kernel.agent import Agent
from localmem.kernel.messages import FunctionCall, newest_exchange
from localmem.memory.functions import NOTHING
from localmem.storage.embedder import HashEmbedder
from localmem.storage.vector_index import VectorIndex

NAME, DATABASE = "life", "localmem.db"
MIX = 8
"""Turns after which the same kinds of calls come again."""

_WINDOW_TOKENS, _RESERVE_TOKENS = 6_000, 700  # bytes here: flushed every dozen turns
_EXACT_LIMIT = 8  # vectors
_START = datetime(2026, 1, 1, 8, tzinfo=UTC)

Acknowledge = Callable[[str, str], None]
"""Told what is now kept: `said`, `fact`, `changed`, `passage` or `paid`, and its text."""


class LifeBackend(ScriptedBackend):
    """A model that makes the next call of the newest event."""

    def __init__(self) -> None:
        super().__init__(window=_WINDOW_TOKENS)
        self.agent: Agent | None = None

    def complete(self, prompt: Prompt, **options: Any) -> Completion:  # Any: whatever the protocol has
        if options.get("sequence", "main") == "main":
            assert self.agent is not None, "set before the first event"
            self.script[:] = [next_call(self.agent)]
        return super().complete(prompt, **options)


def next_call(agent: Agent) -> FunctionCall:
    """What the model calls next: the first call of the newest event that has not been made."""
    queue = agent.main_context.queue
    start = newest_exchange(queue)
    if queue[start].kind == "memory_pressure":
        return FunctionCall(NOTHING)
    made = sum(message.kind in ("call", "reply") for message in queue[start + 1 :])
    number = turn_of(queue[start].text)
    reply = FunctionCall("send_message", {"message": f"Answer {number}."})
    return [*_calls(number), reply][min(made, len(_calls(number)))]


def turn_of(text: str) -> int:
    """The number of the turn a user's message is of."""
    return int(text.split(".", 1)[0].removeprefix("Turn "))


def _calls(number: int) -> list[FunctionCall]:
    match number % MIX:
        case 0:
            return [_call("core_memory_append", label="human", content=f"Fact {number} of the boat.")]
        case 1:
            return [_call("archival_memory_insert", content=f"Note {number}: the boat is {number} feet long.")]
        case 2:
            old, new = f"Fact {number - 2} of the boat.", f"Fact {number - 2} of the boat, changed."
            return [_call("core_memory_replace", label="human", old_content=old, new_content=new)]
        case 3:
            return [_call("pay", amount=number)]
        case 4:
            return [_call("archival_memory_search", query="boat", page=1)]
        case 5:
            old = f"Fact {number - 5} of the boat, changed."
            return [_call("core_memory_replace", label="human", old_content=old, new_content="")]
        case 6:
            return [_call("pay", amount=number), _call("archival_memory_insert", content=f"Note {number}: paid.")]
        case _:
            return []


def _call(name: str, **arguments: object) -> FunctionCall:
    return FunctionCall(name, arguments)


def said_in(number: int) -> str:
    return f"Turn {number}. " + "It was a long day on the boat. " * (12 if number % MIX == 7 else 1)


def life_settings(home: Path) -> Settings:
    flags = {"home": home, "window": _WINDOW_TOKENS, "reserve": _RESERVE_TOKENS, "embedder": "hash", "idle": False}
    return load_settings(flags=flags)


def _keep_index_files() -> None:
    """Have an index in a file from a few vectors on: a conversation as short as this one would have none."""
    defaults = VectorIndex.__init__.__kwdefaults__
    assert defaults is not None, "exact_limit has one"
    defaults["exact_limit"] = _EXACT_LIMIT


def open_life(home: Path) -> Agent:
    """The agent, made with a standing fact so that no edit leaves its block empty."""
    _keep_index_files()
    backend = LifeBackend()
    clock = _Clock()
    agent = localmem.open(NAME, settings=life_settings(home), backend=backend, embedder=HashEmbedder(), now=clock)
    backend.agent = clock.agent = agent
    if not agent.working_context["human"]:
        try:
            agent.set_block("human", "Keeps bees, and sails on Sundays with her brother.")
        except BaseException:
            agent.close()
            raise

    @agent.function
    def pay(amount: int) -> str:
        """Pay an amount."""
        with payments(home).open("ab") as file:
            file.write(f"{amount}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        return f"Paid {amount}."

    return agent


def payments(home: Path) -> Path:
    """Where the function of the user's own leaves its mark."""
    return home / "payments.txt"


class _Clock:
    """A minute a message, so that a run that was cut off tells the same times as one that was not."""

    def __init__(self) -> None:
        self.agent: Agent | None = None

    def __call__(self) -> datetime:
        count = 0 if self.agent is None else self.agent.recall.count()
        return _START + timedelta(minutes=count)


def live(home: Path, turns: int, acknowledge: Acknowledge, *, opened: Callable[[Agent], None] | None = None) -> Agent:
    """Go on with the conversation to its end; the agent, still open. `opened` is handed it before it goes on."""
    agent = open_life(home)
    if opened is not None:
        opened(agent)
    try:
        _go_on(agent, turns, acknowledge)
    except BaseException:
        agent.close()
        raise
    return agent


def _go_on(agent: Agent, turns: int, acknowledge: Acknowledge) -> None:
    for step in agent.resume():
        _tell(step.call, ok=step.result.ok, acknowledge=acknowledge)
    spoken = [turn_of(m.text) for m in agent.main_context.queue if m.kind == "user_message"]
    begun = spoken[-1] + 1 if spoken else 0
    for number in range(begun, turns):
        told = False
        for step in agent.send(said_in(number)):
            if not told:
                acknowledge("said", said_in(number))
                told = True
            _tell(step.call, ok=step.result.ok, acknowledge=acknowledge)


def _tell(call: FunctionCall | None, *, ok: bool, acknowledge: Acknowledge) -> None:
    if call is None or not ok:
        return
    match call.name:
        case "core_memory_append":
            acknowledge("fact", str(call.arguments["content"]))
        case "core_memory_replace":
            acknowledge("changed", str(call.arguments["old_content"]))
        case "archival_memory_insert":
            acknowledge("passage", str(call.arguments["content"]))
        case "pay":
            acknowledge("paid", str(call.arguments["amount"]))
        case "send_message":
            acknowledge("said", str(call.arguments["message"]))
        case _:
            pass
