"""Two processes on one home, each with an agent of its own: is anything lost, does anything cross?

Both do the same kinds of things in a random order, as fast as they can: messages, facts, passages, undo and redo,
searches. Everything an agent writes has its name in it. Afterwards each must hold just what its process wrote, and
nothing of the other's; and while one runs an agent, the other is refused it.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import localmem
from benchmarks.faults.children import fork
from benchmarks.faults.life import life_settings
from localmem.backend.scripted import ScriptedBackend
from localmem.errors import DatabaseBusy, LocalmemError
from localmem.kernel.agent import Agent
from localmem.kernel.events import UserMessage
from localmem.storage.embedder import HashEmbedder

NAMES = ("ana", "bea")
_EACH = 100  # of an agent's newest messages and passages a search is held against


@dataclass(slots=True)
class Processes:
    """What came of it."""

    operations: int = 0
    lost: list[str] = field(default_factory=list[str])
    crossed: list[str] = field(default_factory=list[str])
    shared: int = 0
    """How often a process was given an agent that the other was running."""


@dataclass(slots=True)
class _Written:
    """What one process knows that its agent holds."""

    messages: list[str] = field(default_factory=list[str])
    passages: list[str] = field(default_factory=list[str])
    fact: str = ""
    shared: int = 0


def run_two(operations: int, *, seed: int = 0) -> Processes:
    """Have two processes do that many operations together."""
    found = Processes()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        children = [
            fork(partial(_work_and_tell, home, name, operations // 2, seed + number))
            for number, name in enumerate(NAMES)
        ]
        for child in children:
            if os.waitpid(child, 0)[1]:
                raise RuntimeError("a process failed by itself")
        for name in NAMES:
            _look(home, name, found)
    found.operations = operations
    return found


def _work_and_tell(home: Path, name: str, operations: int, seed: int) -> None:
    written = _work(home, name, operations, seed)
    told = [written.messages, written.passages, written.fact, written.shared]
    _note(home, name).write_text(json.dumps(told))


def _note(home: Path, name: str) -> Path:
    return home / f"{name}.json"


def _mark(home: Path, name: str, what: str) -> None:
    (home / f"{name}.{what}").touch()


def _is_marked(home: Path, name: str, what: str) -> bool:
    return (home / f"{name}.{what}").exists()


def _open(home: Path, name: str) -> Agent:
    return localmem.open(name, settings=life_settings(home), backend=ScriptedBackend(), embedder=HashEmbedder())


def _work(home: Path, name: str, operations: int, seed: int) -> _Written:
    chance, written = random.Random(seed), _Written()
    other = NAMES[1 - NAMES.index(name)]
    with _open(home, name) as agent:
        written.fact = agent.working_context["human"]
        _mark(home, name, "running")
        while not _is_marked(home, other, "running"):
            time.sleep(0.01)
        for number in range(operations):
            text = f"{name} {number} of the boat"
            match chance.choice(("say", "say", "fact", "passage", "turn back", "search", "other")):
                case "say":
                    agent.note(UserMessage(text))
                    written.messages.append(text)
                case "fact":
                    agent.set_block("human", text)
                    written.fact = text
                case "passage":
                    agent.archival.insert(text)
                    written.passages.append(text)
                case "turn back":
                    _turn_back(agent)
                case "search":
                    agent.recall.search("boat")
                    agent.archival.search("boat")
                case _:
                    written.shared += _is_given(home, other)
        _mark(home, name, "done")
    return written


def _turn_back(agent: Agent) -> None:
    """An undo and its redo: afterwards all is as it was, if neither took another agent's edit."""
    try:
        agent.undo("block")
    except LocalmemError:
        return  # nothing was written yet
    agent.redo("block")


def _is_given(home: Path, name: str) -> bool:
    """Whether an agent can be had; False where another process has it."""
    try:
        with _open(home, name):
            return not _is_marked(home, name, "done")
    except DatabaseBusy:
        return False


def _look(home: Path, name: str, found: Processes) -> None:
    messages, passages, fact, shared = json.loads(_note(home, name).read_text())
    found.shared += shared
    with _open(home, name) as agent:
        said = [message.text for message in agent.recall.search("", page_size=1_000_000).items]
        kept = [passage.text for passage in agent.archival.list(page_size=1_000_000).items]
        hits = [message.text for message in agent.recall.search("boat", page_size=_EACH).items]
        hits += [passage.text for passage in agent.archival.search("boat", page_size=_EACH).items]
        block = agent.working_context["human"]
    for wrote, holds in ((messages, said), (passages, kept), ([fact], [block])):
        found.lost += [text for text in wrote if text not in holds]
        found.crossed += [text for text in holds if text not in wrote]
    found.crossed += [text for text in hits if not text.startswith(name)]
