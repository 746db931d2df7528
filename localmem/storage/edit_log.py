"""What was done to an agent's memory: every change of a block, passages, the summary and a setting, and by whom.

An edit says how its item was before and after, so each can be taken back, and taking one back is an edit too: nothing
here is ever changed, or removed but with the agent itself. Each is sealed with the digest of all before it, so a row
that was tampered with is found by `first_broken`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from localmem.storage.database import Database, storable, utc_moment, utc_text
from localmem.storage.schema import seal

Author = Literal["model", "user", "import"]
EditKind = Literal["block", "passages", "summary", "setting"]
State = Mapping[str, Any]
"""How an item is, as JSON has it. Any: text, numbers, flags, or ids."""


SEALED = ("number", "kind", "item", "before", "after", "author", "reverts", "created_at")
"""The fields of an edit that its digest is of, in their order."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Whose a change is, when, and in which step of the agent; without a step for what was done outside of any."""

    author: Author
    moment: datetime
    step_id: int | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """One change. `number` counts the agent's edits from 1; `before` and `after` are None where the item was not there.
    `reverts` is the number of the edit that this one takes back."""

    number: int
    kind: EditKind
    item: str
    before: State | None
    after: State | None
    author: Author
    step_id: int | None
    reverts: int | None
    created_at: datetime


class EditLog:
    """The edits of every agent of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(
        self,
        agent_id: int,
        kind: EditKind,
        item: str,
        before: State | None,
        after: State | None,
        by: Attribution,
        *,
        reverts: int | None = None,
    ) -> int:
        """The number it got. To be called in the transaction that makes the change."""
        with self._database.transaction():
            last = self._database.row(
                "SELECT number, digest FROM edit WHERE agent_id = ? ORDER BY number DESC LIMIT 1", (agent_id,)
            )
            number = 1 if last is None else last["number"] + 1
            fields = (number, kind, storable(item), state_text(before), state_text(after), by.author, reverts)
            moment = utc_text(by.moment)
            self._database.execute(
                "INSERT INTO edit (agent_id, number, kind, item, before, after, author, reverts, created_at, "
                "step_id, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    agent_id,
                    *fields,
                    moment,
                    by.step_id,
                    seal(b"" if last is None else last["digest"], *fields, moment),
                ),
            )
        return number

    def edits(
        self, agent_id: int, *, kind: EditKind | None = None, item: str | None = None, limit: int | None = None
    ) -> list[Edit]:
        """Newest first; of all kinds and items where none is named."""
        rows = self._database.rows(
            "SELECT * FROM edit WHERE agent_id = ?1 AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR item = ?3) "
            "ORDER BY number DESC LIMIT ?4",
            (agent_id, kind, item, -1 if limit is None else limit),
        )
        return [_edit(row) for row in rows]

    def edit(self, agent_id: int, number: int) -> Edit | None:
        row = self._database.row("SELECT * FROM edit WHERE agent_id = ? AND number = ?", (agent_id, number))
        return None if row is None else _edit(row)

    def first_broken(self, agent_id: int) -> int | None:
        """The number of the first edit that is not as it was written; None when all are."""
        digest, expected = b"", 1
        for row in self._database.rows("SELECT * FROM edit WHERE agent_id = ? ORDER BY number", (agent_id,)):
            digest = seal(digest, *(row[name] for name in SEALED))
            if row["number"] != expected or digest != row["digest"]:
                return row["number"]
            expected += 1
        return None


def state_text(state: State | None) -> str | None:
    """A state as it is written."""
    return None if state is None else storable(json.dumps(state, ensure_ascii=False, sort_keys=True))


def _edit(row: sqlite3.Row) -> Edit:
    return Edit(
        number=row["number"],
        kind=row["kind"],
        item=row["item"],
        before=None if row["before"] is None else json.loads(row["before"]),
        after=None if row["after"] is None else json.loads(row["after"]),
        author=row["author"],
        step_id=row["step_id"],
        reverts=row["reverts"],
        created_at=utc_moment(row["created_at"]),
    )
