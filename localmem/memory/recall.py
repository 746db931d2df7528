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
from dataclasses import replace
from datetime import date
from pathlib import Path

from localmem.kernel.messages import SPOKEN_KINDS, Message
from localmem.memory.search import (
    Page,
    Scope,
    Statement,
    fused_search,
    local_days,
    page_of,
    paginate,
)
from localmem.storage.database import Database, storable, utc_moment, utc_text
from localmem.storage.embedder import Embedder
from localmem.storage.vector_index import MeaningIndex

_EMBED_BATCH = 64
_SPOKEN = "t.kind IN (" + ", ".join(f"'{kind}'" for kind in SPOKEN_KINDS) + ")"


class Recall:
    """The messages of one agent. `index_path` is the folder of the vector index; without an `embedder`
    searches go by words alone."""

    def __init__(self, database: Database, agent_id: int, embedder: Embedder | None, index_path: Path | None) -> None:
        self._database = database
        self._agent_id = agent_id
        self._meaning = None if embedder is None else MeaningIndex(database, "message", agent_id, embedder, index_path)
        self._embedded_through = 0  # every spoken message up to this id has its vector
        self._rollbacks = database.rollbacks

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
            "SELECT * FROM message WHERE agent_id = ? AND id IN (SELECT value FROM json_each(?))",
            (self._agent_id, json.dumps(list(ids))),
        )
        by_id = {row["id"]: _message(row) for row in rows}
        return [by_id[message_id] for message_id in ids if message_id in by_id]

    def count(self) -> int:
        """All messages, of every kind."""
        return self._database.scalar("SELECT COUNT(*) FROM message WHERE agent_id = ?", (self._agent_id,))

    def spoken_count(self) -> int:
        """The messages a search can find."""
        return self._database.scalar(
            f"SELECT COUNT(*) FROM message t WHERE t.agent_id = ? AND {_SPOKEN}", (self._agent_id,)
        )

    def search(
        self,
        query: str,
        *,
        since: date | None = None,
        until: date | None = None,
        page: int = 0,
        page_size: int = 5,
        exclude: Collection[int] = (),
    ) -> Page[Message]:
        """What was said about `query`, best first, between two local days; `total` counts all hits.

        A blank query finds everything of those days, in the order it was said. `exclude` are ids that the
        asker sees already, such as those of its queue.
        """
        if not query.strip():
            return self._in_time_order(self._scope(since, until, exclude), page, page_size)
        self.embed_pending()
        hits = fused_search(
            query,
            self._scope(since, until, exclude),
            run=self._ids,
            nearest=None if self._meaning is None else self._meaning.nearest,
        )
        found = paginate([message_id for message_id, _ in hits], page, page_size)
        return Page(tuple(self.get(found.items)), found.page, found.pages, found.total)

    def between(self, since: date | None, until: date | None, page: int = 0, page_size: int = 5) -> Page[Message]:
        """What was said between two local days, both included, in the order it was said."""
        return self._in_time_order(self._scope(since, until, ()), page, page_size)

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

    def embed_pending(self) -> int:
        """Give every spoken message that has none its vector, and return how many that were.

        `search` does it; in idle time it is free. Each batch is kept, so an interruption loses little.
        """
        if self._meaning is None:
            return 0
        if self._rollbacks != self._database.rollbacks:  # the vectors, or the ids, may have been undone
            self._embedded_through, self._rollbacks = 0, self._database.rollbacks
        done = 0
        while rows := self._pending(self._meaning.embedder_name):
            self._meaning.write_texts([row["id"] for row in rows], [row["text"] for row in rows])
            self._embedded_through = rows[-1]["id"]
            done += len(rows)
        return done

    def save_index(self) -> None:
        """Write the vector index to its file, for a quicker start."""
        if self._meaning is not None:
            self._meaning.save()

    def _pending(self, embedder: str) -> list[sqlite3.Row]:
        return self._database.rows(
            "SELECT t.id, t.text FROM message t "
            f"WHERE t.agent_id = ? AND t.id > ? AND {_SPOKEN} AND NOT EXISTS (SELECT 1 FROM embedding e "
            "WHERE e.store = 'message' AND e.item_id = t.id AND e.embedder = ?) ORDER BY t.id LIMIT ?",
            (self._agent_id, self._embedded_through, embedder, _EMBED_BATCH),
        )

    def _scope(self, since: date | None, until: date | None, exclude: Collection[int]) -> Scope:
        start, end = local_days(since, until)
        terms = [f"t.agent_id = ? AND {_SPOKEN}"]
        bounds: list[str] = []
        if start is not None:
            terms.append("t.created_at >= ?")
            bounds.append(utc_text(start))
        if end is not None:
            terms.append("t.created_at < ?")
            bounds.append(utc_text(end))
        terms.append("t.id NOT IN (SELECT value FROM json_each(?))")
        return Scope(
            "message",
            " AND ".join(terms),
            (self._agent_id, *bounds, json.dumps(sorted(exclude))),
            narrowed=bool(bounds),
            exclude=exclude,
        )

    def _in_time_order(self, scope: Scope, page: int, page_size: int) -> Page[Message]:
        page = max(page, 0)
        total = self._database.scalar(f"SELECT COUNT(*) FROM message t WHERE {scope.where}", scope.params)
        rows = self._database.rows(
            f"SELECT * FROM message t WHERE {scope.where} ORDER BY t.created_at, t.id LIMIT ? OFFSET ?",
            (*scope.params, page_size, page * page_size),
        )
        return page_of([_message(row) for row in rows], page, page_size, total=total)

    def _ids(self, statement: Statement) -> list[int]:
        return [row[0] for row in self._database.rows(*statement)]


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
