"""Recall storage: every message ever, whether it is still in the queue or not (MemGPT, section 2.1).

Searches read only what was said, by the user and by the agent: a stored result of an earlier search would
crowd it out. Moments given back are timezone-aware, in UTC; days asked for are local days, the last one
included.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from localmem.kernel.messages import Message
from localmem.memory.search import (
    Page,
    Scope,
    Statement,
    fused_search,
    local_days,
    page_of,
    paginate,
    place,
    within_statement,
)
from localmem.storage.database import Database, storable, utc_moment, utc_text
from localmem.storage.embedder import Embedder
from localmem.storage.schema import SPOKEN
from localmem.storage.vector_index import MeaningIndex

_EMBED_BATCH = 64
_SPOKEN = f"t.{SPOKEN}"


class Recall:
    """The messages of one agent. `index_path` is the folder of the vector index; without an `embedder`
    searches go by words alone."""

    def __init__(self, database: Database, agent_id: int, embedder: Embedder | None, index_path: Path | None) -> None:
        self._database = database
        self._agent_id = agent_id
        self._meaning = None if embedder is None else MeaningIndex(database, "message", agent_id, embedder, index_path)

    def insert(self, message: Message, *, step_id: int | None = None) -> Message:
        """The message as it is stored, with its id; what UTF-8 cannot hold is replaced."""
        stored = replace(
            message,
            text=storable(message.text),
            content=storable(message.content),
            created_at=utc_moment(utc_text(message.created_at)),
        )
        cursor = self._database.execute(
            "INSERT INTO message "
            "(agent_id, step_id, role, kind, text, content, tokens, token_ids, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._agent_id,
                step_id,
                stored.role,
                stored.kind,
                stored.text,
                stored.content,
                stored.tokens,
                _ids_blob(stored.token_ids),
                utc_text(stored.created_at),
            ),
        )
        return replace(stored, id=cursor.lastrowid)

    def get(self, ids: Sequence[int]) -> list[Message]:
        """The messages of `ids`, in that order; ids that are not this agent's are left out."""
        rows = self._database.rows(
            "SELECT t.* FROM json_each(?) ids CROSS JOIN message t ON t.id = ids.value WHERE t.agent_id = ?",
            (json.dumps(list(ids)), self._agent_id),
        )
        by_id = {row["id"]: _message(row) for row in rows}
        return [by_id[message_id] for message_id in ids if message_id in by_id]

    def count(self) -> int:
        """All messages, of every kind."""
        return self._database.scalar(
            "SELECT COALESCE(SUM(messages), 0) FROM message_day WHERE agent_id = ?", (self._agent_id,)
        )

    def spoken_count(self) -> int:
        """The messages a search can find."""
        return self._database.scalar(
            "SELECT COALESCE(SUM(spoken), 0) FROM message_day WHERE agent_id = ?", (self._agent_id,)
        )

    def first_year(self) -> int | None:
        """The year in which the first thing was said, in local time; None before anything was."""
        rows = self._database.rows(
            f"SELECT t.created_at FROM message t WHERE t.agent_id = ? AND {_SPOKEN} ORDER BY t.id LIMIT 1",
            (self._agent_id,),
        )
        return utc_moment(rows[0]["created_at"]).astimezone().year if rows else None

    def search(
        self,
        query: str,
        *,
        since: date | None = None,
        until: date | None = None,
        page: int = 0,
        page_size: int = 5,
        exclude: Collection[int] = (),
        by_words_only: bool = False,
    ) -> Page[Message]:
        """What was said about `query`, best first, between two local days; `by_words_only` leaves vectors out.

        `total` counts all hits; a query of words that thousands of messages have is ranked in part, and then
        `more` is true. A blank query finds everything of those days, in the order it was said.
        `exclude` are ids that the asker sees already, such as those of its queue.
        """
        if not query.strip():
            return self._in_time_order(_period(since, until), exclude, page, page_size)
        meaning = None if by_words_only else self._meaning
        if meaning is not None:
            self.embed_pending()
        found = fused_search(
            query,
            self._scope(_period(since, until), exclude),
            run=self._ids,
            nearest=None if meaning is None else meaning.nearest,
        )
        hits = paginate([message_id for message_id, _ in found.ranked], page, page_size, more=found.more)
        return Page(tuple(self.get(hits.items)), hits.page, hits.pages, hits.total, hits.more)

    def between(self, since: date | None, until: date | None, page: int = 0, page_size: int = 5) -> Page[Message]:
        """What was said between two local days, both included, in the order it was said."""
        return self._in_time_order(_period(since, until), (), page, page_size)

    def neighbours(self, message_id: int, n: int = 1) -> list[Message]:
        """The `n` spoken messages before and the `n` after, in time order, without the message itself."""
        rows = self._database.rows(
            "SELECT * FROM ("
            f"SELECT * FROM message t WHERE t.agent_id = ?1 AND {_SPOKEN} AND t.id < ?2 "
            "ORDER BY t.id DESC LIMIT ?3"
            ") UNION ALL SELECT * FROM ("
            f"SELECT * FROM message t WHERE t.agent_id = ?1 AND {_SPOKEN} AND t.id > ?2 "
            "ORDER BY t.id LIMIT ?3"
            ") ORDER BY id",
            (self._agent_id, message_id, max(n, 0)),
        )
        return [_message(row) for row in rows]

    def embed_pending(self, most: int | None = None) -> int:
        """Give every spoken message that has none its vector, or `most` of them, and return how many that were.

        `search` does it; in idle time it is free. Each batch is kept, so an interruption loses little.
        """
        if self._meaning is None:
            return 0
        done = 0
        while most is None or done < most:
            rows = self._pending(self._meaning.embedder_name, _EMBED_BATCH if most is None else most - done)
            if not rows:
                break
            self._meaning.write_texts([row["id"] for row in rows], [row["text"] for row in rows])
            done += len(rows)
        return done

    def save_index(self, *, at_least: int = 1) -> None:
        """Write the vector index to its file, for a quicker start."""
        if self._meaning is not None:
            self._meaning.save(at_least=at_least)

    def _pending(self, embedder: str, limit: int) -> list[sqlite3.Row]:
        # Vectors are made in the order of ids, which only grow: what has none is behind the last that has one.
        return self._database.rows(
            "SELECT t.id, t.text FROM message t "
            f"WHERE t.agent_id = ?1 AND {_SPOKEN} AND t.id > (SELECT COALESCE(MAX(item_id), 0) FROM embedding "
            "WHERE agent_id = ?1 AND store = 'message' AND embedder = ?2) ORDER BY t.id LIMIT ?3",
            (self._agent_id, embedder, limit),
        )

    def _scope(self, period: _Period, exclude: Collection[int]) -> Scope:
        first, last = self._ids_between(period)
        return Scope(
            "message",
            place(self._agent_id, first),
            place(self._agent_id, last),
            f"t.agent_id = ? AND {_SPOKEN} AND t.created_at >= ? AND t.created_at < ?",
            (self._agent_id, period.start, period.end),
            narrowed=period != _EVER,
            exclude=exclude,
        )

    def _ids_between(self, period: _Period) -> tuple[int, int]:
        """Ids outside which nothing was said in `period`; (1, 0) when nothing was said at all."""
        row = self._database.row(
            "SELECT COALESCE(MIN(first_id), 1), COALESCE(MAX(last_id), 0) FROM message_day "
            "WHERE agent_id = ? AND day BETWEEN ? AND ?",
            (self._agent_id, period.first_day, period.last_day),
        )
        assert row is not None, "an aggregate always has a row"
        return row[0], row[1]

    def _in_time_order(self, period: _Period, exclude: Collection[int], page: int, page_size: int) -> Page[Message]:
        scope, page = self._scope(period, exclude), max(page, 0)
        rows = self._database.rows(
            f"SELECT * FROM message t WHERE {scope.where} AND t.id NOT IN (SELECT value FROM json_each(?)) "
            "ORDER BY t.created_at, t.id LIMIT ? OFFSET ?",
            (*scope.params, json.dumps(list(exclude)), page_size, page * page_size),
        )
        total = self._said_in(period) - len(self._ids(within_statement(scope, list(set(exclude)))))
        return page_of([_message(row) for row in rows], page, page_size, total=total)

    def _said_in(self, period: _Period) -> int:
        """How many spoken messages: whole days from their table, the first and the last one row by row."""
        days: int = self._database.scalar(
            "SELECT COALESCE(SUM(spoken), 0) FROM message_day WHERE agent_id = ? AND day > ? AND day < ?",
            (self._agent_id, period.first_day, period.last_day),
        )
        return days + sum(
            self._database.scalar(
                f"SELECT COUNT(*) FROM message t WHERE t.agent_id = ? AND {_SPOKEN} "
                "AND t.created_at >= ? AND t.created_at < ?",
                (self._agent_id, start, end),
            )
            for start, end in period.edges
        )

    def _ids(self, statement: Statement) -> list[int]:
        return [row[0] for row in self._database.rows(*statement)]


@dataclass(frozen=True, slots=True)
class _Period:
    """From `start` up to `end`, which is outside: moments as they are stored, or days before and after any."""

    start: str = "0000-00-00"
    end: str = "9999-99-99"

    @property
    def first_day(self) -> str:
        return self.start[:10]

    @property
    def last_day(self) -> str:
        return self.end[:10]

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """What lies in the first and in the last UTC day, which the period may have in part."""
        if self.first_day >= self.last_day:  # of one day, or of none: then it begins after its end
            return ((self.start, self.end),)
        return (self.start, f"{self.first_day}U"), (self.last_day, self.end)  # U: after every "...T" of that day


_EVER = _Period()


def _period(since: date | None, until: date | None) -> _Period:
    start, end = local_days(since, until)
    return _Period(
        _EVER.start if start is None else utc_text(start),
        _EVER.end if end is None else utc_text(end),
    )


def _ids_blob(token_ids: tuple[int, ...] | None) -> bytes | None:
    return None if token_ids is None else struct.pack(f"<{len(token_ids)}i", *token_ids)


def _message(row: sqlite3.Row) -> Message:
    blob: bytes | None = row["token_ids"]
    return Message(
        role=row["role"],
        kind=row["kind"],
        text=row["text"],
        content=row["content"],
        created_at=utc_moment(row["created_at"]),
        tokens=row["tokens"],
        token_ids=None if blob is None else struct.unpack(f"<{len(blob) // 4}i", blob),
        id=row["id"],
    )
