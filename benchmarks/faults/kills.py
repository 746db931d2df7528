"""kill -9, in the middle of everything: what was acknowledged, and is not there afterwards?

A process goes on with the conversation of `life` and is killed: before the n-th SQL statement, before one of a kind
that none was killed before yet (so that every statement is such a point sooner or later), or after a random while. Then
it is looked at: every message, fact and passage that was acknowledged must be there, none twice; the function of the
user's own must not have been called twice for one call; the window must be what it was, wherever a run that was never
killed stood at the same state; and a search must find the same with the indexes on disk as without. A new process goes
on from there, until the conversation is over; then another begins.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from benchmarks.faults.children import fork_piped, output_of, tell
from benchmarks.faults.life import DATABASE, MIX, live, open_life, payments
from benchmarks.faults.statements import shape, watch_statements
from localmem.errors import LocalmemError
from localmem.kernel.agent import Agent
from localmem.memory.archival import Archival
from localmem.memory.recall import Recall
from localmem.storage.database import Database
from localmem.storage.embedder import HashEmbedder

TURNS = 6 * MIX
_MOST_STATEMENTS = 200  # between a start and its kill: opening takes some 40 of them
_MOST_SECONDS = 0.3
_SIGNALS = (signal.SIGKILL, signal.SIGTERM)  # after a while; before a statement it is always the first
_POINT = "point"
_QUERIES = ("boat", "Fact 8 of the boat", "Answer 3", "feet long")


Point = int | str | float
"""Before which statement to end a process: the n-th, or the first of a kind; or after how many seconds."""

Told = list[tuple[str, str]]
"""Kinds and texts, as `life` acknowledges them."""

Run = Callable[[Path, Point], tuple[bool, Told]]
"""Goes on with a conversation to a point; whether it came there before the conversation was over, and what was told."""


@dataclass(slots=True)
class Kills:
    """What came of them."""

    kills: int = 0
    points: set[str] = field(default_factory=set[str])
    """Statements before which a process was killed."""
    all_points: set[str] = field(default_factory=set[str])
    """Statements of a run that nobody kills."""
    conversations: int = 0
    lost: list[str] = field(default_factory=list[str])
    duplicates: list[str] = field(default_factory=list[str])
    failed_opens: list[str] = field(default_factory=list[str])
    reruns: list[str] = field(default_factory=list[str])
    differences: list[str] = field(default_factory=list[str])
    compared: int = 0
    """Windows that were held against one of the run that nobody killed."""


def kill_often(kills: int, *, seed: int = 0, quiet: bool = False) -> Kills:
    """Kill at least that many processes."""
    found = Kills()
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        windows = windows_of_a_whole_life(Path(folder) / "whole", found.all_points)
        with tqdm(total=kills, desc="kills", unit="kill", disable=quiet) as bar:
            while found.kills < kills:
                home = Path(folder) / str(found.conversations)
                home.mkdir()
                live_often(home, found, chance, windows, lambda home, point: _run(home, point, chance.choice(_SIGNALS)))
                found.conversations += 1
                shutil.rmtree(home)
                bar.update(found.kills - bar.n)
    return found


def live_often(home: Path, found: Kills, chance: random.Random, windows: dict[str, set[str]], run: Run) -> None:
    """Go on with one conversation until it is over, and look at what every process left."""
    acknowledged: list[tuple[str, str]] = []
    while True:
        was_ended, told = run(home, _point(found, chance))
        acknowledged += [(kind, text) for kind, text in told if kind != _POINT]
        if was_ended:
            found.kills += 1
            found.points |= {text for kind, text in told if kind == _POINT}
        look(home, acknowledged, found, windows)
        if not was_ended or found.failed_opens:
            return


def _point(found: Kills, chance: random.Random) -> Point:
    """Where the next process is to be killed."""
    left = sorted(found.all_points - found.points)
    match chance.choice(("statement", "kind", "moment")):
        case "kind" if left:
            return chance.choice(left)
        case "moment":
            return chance.uniform(0.0, _MOST_SECONDS)
        case _:
            return chance.randrange(1, _MOST_STATEMENTS)


def _run(home: Path, point: Point, by: signal.Signals) -> tuple[bool, Told]:
    """Have a process live and be killed; whether it was, and what it had acknowledged by then."""
    child, pipe = fork_piped(lambda pipe: live_to(home, point, pipe, signal.SIGKILL))
    if isinstance(point, float):
        time.sleep(point)
        os.kill(child, by)  # one that has ended by itself stays as it is: nobody has waited for it yet
    told = told_in(pipe)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True, told
    if os.WEXITSTATUS(status):
        raise RuntimeError("the conversation failed by itself")
    return False, told


def told_in(pipe: int) -> Told:
    """What a process that has lived told, when it has ended."""
    with os.fdopen(pipe, "rb") as file:
        lines = file.read().decode().split("\n")[:-1]  # a line that was cut off was not acknowledged
    return [(kind, text) for kind, _, text in (line.partition("\t") for line in lines)]


def live_to(home: Path, point: Point, pipe: int, end: signal.Signals) -> None:
    """Live; at a point that is a statement, this process sends itself the signal."""
    if not isinstance(point, float):
        watch_statements(_ender(point, pipe, end))
    live(home, TURNS, lambda kind, text: tell(pipe, f"{kind}\t{text}\n")).close()


def _ender(point: int | str, pipe: int, end: signal.Signals) -> Callable[[str], None]:
    done = 0

    def watch(sql: str) -> None:
        nonlocal done
        done += 1
        if done == point or shape(sql) == point:
            tell(pipe, f"{_POINT}\t{shape(sql)}\n")
            os.kill(os.getpid(), end)

    return watch


def windows_of_a_whole_life(home: Path, points: set[str]) -> dict[str, set[str]]:
    """The window at every state of the database, in a run that nobody kills; its statements go into `points`."""
    home.mkdir()
    windows: dict[str, set[str]] = {}
    for line in output_of(lambda pipe: _live_watched(home, pipe)).decode().splitlines():
        state, _, window = line.partition("\t")
        if state == _POINT:
            points.add(window)
        else:
            windows.setdefault(state, set()).add(window)
    return windows


def _live_watched(home: Path, pipe: int) -> None:
    watched: list[tuple[Agent, sqlite3.Connection]] = []

    def note(sql: str) -> None:
        tell(pipe, f"{_POINT}\t{shape(sql)}\n")
        if watched and sql.startswith("BEGIN"):  # between two transactions memory is as the disk is
            agent, reader = watched[0]
            tell(pipe, f"{_state(reader)}\t{_window(agent)}\n")

    connect = sqlite3.connect
    watch_statements(note)
    agent = live(home, TURNS, lambda *_: None, opened=lambda one: watched.append((one, connect(home / DATABASE))))
    watched.clear()
    agent.close()


def _state(reader: sqlite3.Connection) -> str:
    """What the window is made of, as the database has it, in short."""
    parts = [
        reader.execute(
            "SELECT m.kind, m.content FROM queue q JOIN message m ON m.id = q.message_id ORDER BY q.position"
        ).fetchall(),
        reader.execute("SELECT label, value FROM block ORDER BY position").fetchall(),
        reader.execute("SELECT text FROM summary ORDER BY id DESC LIMIT 1").fetchall(),
        reader.execute("SELECT rendered_context FROM agent").fetchall(),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _window(agent: Agent) -> str:
    return hashlib.sha256(repr(agent.main_context.prompt().ids).encode()).hexdigest()


def look(home: Path, acknowledged: list[tuple[str, str]], found: Kills, windows: dict[str, set[str]]) -> None:
    """Open what a process left, and hold it against what that had acknowledged."""
    try:
        agent = open_life(home)
    except (LocalmemError, sqlite3.Error, AssertionError, KeyError, ValueError) as error:
        found.failed_opens.append(str(error))
        return
    with agent, closing(sqlite3.connect(home / DATABASE)) as reader:
        known = windows.get(_state(reader))
        if known is not None:
            found.compared += 1
            if _window(agent) not in known:
                found.differences.append("window")
        with Database(home / DATABASE) as database:  # no folder: the indexes are made anew
            recall = Recall(database, agent.id, HashEmbedder(), None)
            archival = Archival(database, agent.id, HashEmbedder(), None)
            if _found_by(agent.recall, agent.archival) != _found_by(recall, archival):
                found.differences.append("search")
        found.lost += _lost(reader, home, acknowledged)
        found.duplicates += _twice(reader)
    paid = Counter(payments(home).read_text().split()) if payments(home).exists() else Counter[str]()
    found.reruns += [f"{amount} was paid {times} times" for amount, times in paid.items() if times > _times(amount)]


def _times(amount: str) -> int:
    """How often a turn asks for its amount to be paid."""
    return 1 if int(amount) % MIX in (3, 6) else 0


def _found_by(recall: Recall, archival: Archival) -> list[list[str]]:
    said = [[message.text for message in recall.search(query, page_size=20).items] for query in _QUERIES]
    return said + [[passage.text for passage in archival.search(query, page_size=20).items] for query in _QUERIES]


_KEPT = {
    "said": "SELECT 1 FROM message WHERE text = ?",
    "passage": "SELECT 1 FROM passage WHERE text = ?",
    "fact": "SELECT 1 FROM edit WHERE kind = 'block' AND after LIKE '%' || ? || '%'",
    "changed": "SELECT 1 FROM edit WHERE kind = 'block' AND before LIKE '%' || ?1 || '%' "
    "AND after NOT LIKE '%' || ?1 || '\n%'",
}


def _lost(reader: sqlite3.Connection, home: Path, acknowledged: list[tuple[str, str]]) -> list[str]:
    paid = payments(home).read_text().split() if payments(home).exists() else []
    return [
        f"{kind} {text!r}"
        for kind, text in acknowledged
        if not (text in paid if kind == "paid" else reader.execute(_KEPT[kind], (text,)).fetchone())
    ]


def _twice(reader: sqlite3.Connection) -> list[str]:
    """What stands more often than it was written."""
    queries = {
        "message": "SELECT text FROM message WHERE kind = 'user_message' GROUP BY text HAVING COUNT(*) > 1",
        "reply": "SELECT text FROM message WHERE kind = 'reply' GROUP BY text HAVING COUNT(*) > 1",
        "passage": "SELECT text FROM passage GROUP BY text HAVING COUNT(*) > 1",
        "queue": "SELECT message_id FROM queue GROUP BY message_id HAVING COUNT(*) > 1",
    }
    return [f"{what} {text!r}" for what, query in queries.items() for (text,) in reader.execute(query)]
