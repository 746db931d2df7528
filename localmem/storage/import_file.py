"""An export file becomes an agent of this database, whole or not at all.

Ids are moved behind those there are, as one block for each table, so their order stays, and with it the window and what
a search finds. The edits of the file are checked against their digests as they come, and sealed anew over their new
ids. What the rows of one table say of another's must be true of the file itself: nothing in it reaches another agent.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast, get_args

from localmem.errors import LocalmemError
from localmem.kernel.messages import Kind, Role
from localmem.memory.search import PLACE_BITS
from localmem.storage.agent_store import MODEL, check_agent_name, is_block_state, is_setting_state
from localmem.storage.database import Database, is_moment
from localmem.storage.edit_log import SEALED, Author, EditKind, state_text
from localmem.storage.export import TABLES, Export, Progress, Row
from localmem.storage.schema import seal

_MOMENTS = ("created_at", "started_at", "last_seen_at", "timers_paused_until", "next_due_at")
_WORDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("message", "role"): get_args(Role),
    ("message", "kind"): get_args(Kind),
    ("edit", "kind"): get_args(EditKind),
    ("edit", "author"): get_args(Author),
    ("embedding", "store"): ("message", "passage"),
}
_LARGEST_ID = 1 << (PLACE_BITS - 1)
_MOST_PASSAGES = 10_000_000  # of one edit: each of its ids is a number in memory when it is undone

# What refers to a row that must be of the same agent: (table, its column, the table referred to, a condition).
_REFERENCES = (
    ("queue", "message_id", "message", "TRUE"),
    ("message", "step_id", "step", "row.step_id IS NOT NULL"),
    ("edit", "step_id", "step", "row.step_id IS NOT NULL"),
    ("inference", "step_id", "step", "row.step_id IS NOT NULL"),
    ("embedding", "item_id", "message", "row.store = 'message'"),
    ("embedding", "item_id", "passage", "row.store = 'passage'"),
)


def import_agent(
    database: Database, export: Export, name: str | None = None, *, progress: Progress | None = None
) -> tuple[int, str]:
    """The id and the name of the agent it became; `name` stands in for the one in the file.

    Raises LocalmemError when the name is taken or the file is refused; then nothing has changed.
    """
    name = export.manifest.agent if name is None else name
    check_agent_name(name)
    with database.transaction():
        if database.row("SELECT 1 FROM agent WHERE name = ?", (name,)):
            raise LocalmemError(f"there is an agent named {name!r} already", "Import it under another: --name NAME.")
        agent_id = _Import(database, export, name, progress).run()
    return agent_id, name


@dataclass(slots=True)
class _Import:
    """One import on its way."""

    database: Database
    export: Export
    name: str
    progress: Progress | None
    agent_id: int = 0
    offsets: dict[str, int] = field(default_factory=dict[str, int])
    done: int = 0

    def run(self) -> int:
        self._insert_agent()
        for table in ("step", "message", "summary", "passage"):
            self.offsets[table] = self._next_id(table) - self._least_id(table)
        for table in TABLES:
            if table != "agent":
                self._insert_table(table)
        for reference in _REFERENCES:
            self._check_reference(*reference)
        self._take_ids()
        return self.agent_id

    def refuse(self, why: str) -> LocalmemError:
        return LocalmemError(
            f"{self.export.path} is refused: {why}",
            "Nothing was kept of it. Export the agent again, or use another copy.",
        )

    def _insert_agent(self) -> None:
        rows = list(islice(self._checked("agent"), 2))
        if len(rows) != 1:
            raise self.refuse("it holds more than one agent" if rows else "it holds no agent")
        row = {**rows[0], "name": self.name}
        cursor = self.database.execute(
            f"INSERT INTO agent ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values())
        )
        assert cursor.lastrowid is not None, "an INSERT has an id"
        self.agent_id = cursor.lastrowid

    def _insert_table(self, table: str) -> None:
        columns = ("agent_id", *TABLES[table])
        rows = self._sealed_anew() if table == "edit" else self._checked(table)
        try:
            self.database.execute_many(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
                ([self.agent_id, *self._moved(table, row).values()] for row in self._counted(rows)),
            )
        except sqlite3.IntegrityError as error:
            raise self.refuse(f"its {table} rows do not fit together ({error})") from error

    def _counted(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self.done += 1
            if self.progress is not None:
                self.progress(self.done)
            yield row

    def _moved(self, table: str, row: Row) -> dict[str, Any]:
        """The row with its ids where they are to be here."""
        moved = dict(row)
        if "id" in moved:
            moved["id"] += self.offsets["passage" if table == "deleted_passage" else table]
        if moved.get("step_id") is not None:
            moved["step_id"] += self.offsets["step"]
        if table == "queue":
            moved["message_id"] += self.offsets["message"]
        if table == "embedding":
            moved["item_id"] += self.offsets[moved["store"]]
        return moved

    def _least_id(self, table: str) -> int:
        """The smallest id of the table that the file names; 1 where it names none."""
        ids = [next((row["id"] for row in self.export.rows(table)), _LARGEST_ID)]  # they rise
        if table == "passage":
            ids += [row["id"] for row in self.export.rows("deleted_passage")]
            ids += [first for row in self._checked("edit") for first, _ in _spans(row)]
        least = min(ids)
        return 1 if least == _LARGEST_ID else least

    def _next_id(self, table: str) -> int:
        """The first id that no row of the table has ever had."""
        return 1 + (self.database.scalar("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)) or 0)

    def _take_ids(self) -> None:
        """No later passage may get the id of one that was deleted, or purged: undo would take the one for the other."""
        spans = [span for row in self.database.rows(_STATES, (self.agent_id,)) for span in _spans(row)]
        deleted = self.database.scalar("SELECT MAX(id) FROM deleted_passage WHERE agent_id = ?", (self.agent_id,)) or 0
        last = max([deleted, *(last for _, last in spans)])
        if last >= self._next_id("passage"):
            self.database.execute("DELETE FROM sqlite_sequence WHERE name = 'passage'")
            self.database.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('passage', ?)", (last,))

    def _checked(self, table: str) -> Iterator[Row]:
        """The rows of a table, each a possible one."""
        last = 0
        for number, row in enumerate(self.export.rows(table), 1):
            where = f"{table}, row {number}"
            for name, value in row.items():
                if isinstance(value, int) and not 0 <= value < _LARGEST_ID:
                    raise self.refuse(f"{where}: {name} is out of range")
                if name in _MOMENTS and isinstance(value, str) and not is_moment(value):
                    raise self.refuse(f"{where}: {name} is no moment")
                if value not in _WORDS.get((table, name), (value,)):
                    raise self.refuse(f"{where}: {name} cannot be {value!r}")
            if "id" in row:
                if row["id"] <= last:
                    raise self.refuse(f"{where}: its ids do not rise")
                last = row["id"]
            if table == "edit" and not _is_edit(row):
                raise self.refuse(f"{where}: what it says of its {row['kind']} cannot be")
            if "tags" in row and not _is_list_of_text(row["tags"]):
                raise self.refuse(f"{where}: tags are no list of words")
            yield row

    def _sealed_anew(self) -> Iterator[Row]:
        """The edits, each checked against its digest, and sealed again with its passages' ids as they are here."""
        found = digest = b""
        for number, row in enumerate(self._checked("edit"), 1):
            before = [row[name] for name in SEALED]
            found = seal(found, *before)
            if row["number"] != number or found != row["digest"]:
                raise self.refuse(f"its edit {number} is not as it was written")
            moved = dict(row)
            for name in ("before", "after"):
                moved[name] = self._moved_state(row, name)
            digest = seal(digest, *(moved[name] for name in SEALED))
            yield {**moved, "digest": digest}

    def _moved_state(self, row: Row, name: str) -> str | None:
        state = _state(row, name)
        if state is None or row["kind"] != "passages":
            return row[name]
        offset = self.offsets["passage"]
        return state_text({**state, "ids": [[first + offset, last + offset] for first, last in state["ids"]]})

    def _check_reference(self, table: str, column: str, referred: str, condition: str) -> None:
        stray = self.database.row(
            f"SELECT 1 FROM {table} row WHERE row.agent_id = ?1 AND {condition} AND NOT EXISTS "
            f"(SELECT 1 FROM {referred} other WHERE other.id = row.{column} AND other.agent_id = ?1)",
            (self.agent_id,),
        )
        if stray is not None:
            raise self.refuse(f"a row of {table} belongs to no {referred} of its own")


_STATES = "SELECT kind, before, after FROM edit WHERE agent_id = ? AND kind = 'passages'"


def _state(row: Row | sqlite3.Row, name: str) -> dict[str, Any] | None:
    return None if row[name] is None else json.loads(row[name])


def _spans(row: Row | sqlite3.Row) -> list[tuple[int, int]]:
    """The ranges of passage ids that an edit names."""
    if row["kind"] != "passages":
        return []
    states = [_state(row, name) for name in ("before", "after")]
    return [(first, last) for state in states if state is not None for first, last in state["ids"]]


def _is_edit(row: Row) -> bool:
    """Whether an edit can be undone and done again: passages come or go, and an agent always has a model."""
    states = row["before"], row["after"]
    if row["kind"] == "passages" and states.count(None) != 1:
        return False
    if row["kind"] == "setting" and row["item"] == MODEL and None in states:
        return False
    return all(_is_state(row["kind"], row["item"], state) for state in states)


def _is_state(kind: str, item: str, text: str | None) -> bool:
    """Whether an edit of that kind can say `text` of its item, so that undoing it does what it says."""
    try:
        state = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return False
    if state is None:
        return text is None
    if not isinstance(state, dict):
        return False
    state = cast(dict[str, Any], state)
    match kind:
        case "block":
            return is_block_state(state)
        case "passages":
            return (
                set(state) == {"ids", "source"} and _are_spans(state["ids"]) and _is_text(state["source"], or_none=True)
            )
        case "summary":
            return set(state) == {"text"} and _is_text(state["text"])
        case _:
            return is_setting_state(item, state)


def _are_spans(value: object) -> bool:
    """Ranges of ids, none of them twice, and not more than there can be passages."""
    try:
        spans = [(first, last) for first, last in cast(list[tuple[object, object]], value)]
    except (TypeError, ValueError):
        return False
    end, total = 0, 0
    for first, last in spans:
        if type(first) is not int or type(last) is not int or not end < first <= last < _LARGEST_ID:
            return False
        end, total = last, total + last - first + 1
    return total <= _MOST_PASSAGES


def _is_text(value: object, *, or_none: bool = False) -> bool:
    return isinstance(value, str) or (or_none and value is None)


def _is_list_of_text(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, list) and all(isinstance(item, str) for item in value)  # pyright: ignore[reportUnknownVariableType]
