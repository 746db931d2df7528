"""The tables of localmem's SQLite file, and how an older file becomes one of today.

Knows SQL and nothing of connections: `database` opens the file and calls `migrate` inside a transaction.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from typing import TYPE_CHECKING

from localmem.kernel.messages import SPOKEN_KINDS
from localmem.memory.search import PLACE_BITS

if TYPE_CHECKING:
    from sqlite_utils import Database as UtilsDatabase
    from sqlite_utils import Migrations

SCHEMA_VERSION = 3
APPLICATION_ID = 0x6C6D656D  # "lmem": tells our file from any other SQLite file
MIGRATION_SET = "localmem"
_TOKENIZER = "porter unicode61 remove_diacritics 2"  # 2: also strips marks that 1 leaves on, as in "ặ"


def _text_index(table: str, condition: str = "TRUE") -> tuple[str, ...]:
    """FTS5 over the words of `table`.text, and over the parts of its unspaced runs, for the rows of `condition`
    (over `new` in place of `row`). Triggers keep both in step; neither holds the text, which stays in the table.
    """
    at = f"row.agent_id << {PLACE_BITS} | row.id"
    learn = f"""
        INSERT INTO {table}_fts(rowid, text) SELECT {at}, row.text WHERE {condition};
        INSERT INTO {table}_parts(rowid, text)
            SELECT {at}, indexed_parts(row.text) WHERE {condition} AND indexed_parts(row.text) IS NOT NULL;"""
    # 'delete' needs the text just as it was indexed: it is not there to be looked up.
    forget = f"""
        INSERT INTO {table}_fts({table}_fts, rowid, text) SELECT 'delete', {at}, row.text WHERE {condition};
        INSERT INTO {table}_parts({table}_parts, rowid, text)
            SELECT 'delete', {at}, indexed_parts(row.text)
            WHERE {condition} AND indexed_parts(row.text) IS NOT NULL;"""
    learn, forget = learn.replace("row.", "new."), forget.replace("row.", "old.")
    return (
        f"CREATE VIRTUAL TABLE {table}_fts USING fts5(text, content='', tokenize='{_TOKENIZER}')",
        # Every part is a word of its own there, never a phrase: no positions, no sizes, no folding.
        f"CREATE VIRTUAL TABLE {table}_parts USING fts5(text, content='', tokenize='ascii', detail=none, columnsize=0)",
        f"CREATE TRIGGER {table}_inserted AFTER INSERT ON {table} BEGIN {learn} END",
        f"CREATE TRIGGER {table}_updated AFTER UPDATE OF text ON {table} BEGIN {forget} {learn} END",
        f"CREATE TRIGGER {table}_deleted AFTER DELETE ON {table} BEGIN {forget} "
        f"DELETE FROM embedding WHERE store = '{table}' AND item_id = old.id; END",
    )


SPOKEN = "kind IN (" + ", ".join(f"'{kind}'" for kind in SPOKEN_KINDS) + ")"
"""SQL: a message that is conversation. Written like this everywhere, or SQLite does not use the indexes of it."""

_OWNER = "agent_id INTEGER NOT NULL REFERENCES agent(id) ON DELETE CASCADE"

# AUTOINCREMENT: an id is never used twice, so the vector index cannot take a new row for a deleted one.
_INITIAL_SCHEMA: tuple[str, ...] = (
    """CREATE TABLE agent (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        model TEXT NOT NULL,
        created_at TEXT NOT NULL,
        last_seen_at TEXT,
        warned INTEGER NOT NULL DEFAULT 0,
        rendered_context TEXT NOT NULL DEFAULT '',
        timers_paused_until TEXT
    )""",
    f"""CREATE TABLE step (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        {_OWNER},
        event_kind TEXT NOT NULL,
        started_at TEXT NOT NULL
    )""",
    "CREATE INDEX step_by_agent ON step(agent_id, id)",
    # The texts stand last: what a search looks up of a row is found without reading through them.
    f"""CREATE TABLE message (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        {_OWNER},
        step_id INTEGER REFERENCES step(id) ON DELETE SET NULL,
        role TEXT NOT NULL,
        kind TEXT NOT NULL,
        tokens INTEGER NOT NULL,
        created_at TEXT NOT NULL,
        text TEXT NOT NULL,
        content TEXT NOT NULL,
        token_ids BLOB
    )""",
    f"CREATE INDEX message_spoken ON message(agent_id, id) WHERE {SPOKEN}",
    f"CREATE INDEX message_spoken_by_time ON message(agent_id, created_at) WHERE {SPOKEN}",
    "CREATE INDEX message_by_step ON message(step_id)",
    # The messages of each day, in UTC: how many, how many of them were said, and between which ids. Counts and dates
    # of a million messages are read from here. After a deletion the ids may be wider than what is left, not narrower.
    f"""CREATE TABLE message_day (
        {_OWNER},
        day TEXT NOT NULL,
        messages INTEGER NOT NULL,
        spoken INTEGER NOT NULL,
        first_id INTEGER NOT NULL,
        last_id INTEGER NOT NULL,
        PRIMARY KEY (agent_id, day)
    ) WITHOUT ROWID""",
    f"""CREATE TRIGGER message_day_inserted AFTER INSERT ON message BEGIN
        INSERT INTO message_day
        VALUES (new.agent_id, substr(new.created_at, 1, 10), 1, new.{SPOKEN}, new.id, new.id)
        ON CONFLICT DO UPDATE SET messages = messages + 1, spoken = spoken + excluded.spoken,
            first_id = min(first_id, excluded.first_id), last_id = max(last_id, excluded.last_id);
    END""",
    f"""CREATE TRIGGER message_day_deleted AFTER DELETE ON message BEGIN
        UPDATE message_day SET messages = messages - 1, spoken = spoken - (old.{SPOKEN})
        WHERE agent_id = old.agent_id AND day = substr(old.created_at, 1, 10);
    END""",
    f"""CREATE TABLE queue (
        {_OWNER},
        position INTEGER NOT NULL,
        message_id INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE,
        PRIMARY KEY (agent_id, position)
    )""",
    "CREATE INDEX queue_by_message ON queue(message_id)",
    f"""CREATE TABLE block (
        {_OWNER},
        label TEXT NOT NULL,
        description TEXT NOT NULL,
        value TEXT NOT NULL,
        limit_tokens INTEGER NOT NULL,
        read_only INTEGER NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (agent_id, label)
    )""",
    f"""CREATE TABLE block_history (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        {_OWNER},
        label TEXT NOT NULL,
        value TEXT NOT NULL,
        author TEXT NOT NULL CHECK (author IN ('model', 'user', 'import')),
        step_id INTEGER REFERENCES step(id) ON DELETE SET NULL,
        created_at TEXT NOT NULL
    )""",
    "CREATE INDEX block_history_by_label ON block_history(agent_id, label, id)",
    "CREATE INDEX block_history_by_step ON block_history(step_id)",
    f"""CREATE TABLE summary (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        {_OWNER},
        text TEXT NOT NULL,
        evicted_messages INTEGER NOT NULL,
        created_at TEXT NOT NULL
    )""",
    "CREATE INDEX summary_by_agent ON summary(agent_id, id)",
    f"""CREATE TABLE passage (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        {_OWNER},
        text TEXT NOT NULL,
        source TEXT,
        tags TEXT NOT NULL DEFAULT '[]',
        created_at TEXT NOT NULL
    )""",
    "CREATE INDEX passage_by_source ON passage(agent_id, source)",
    # Finds an equal text without reading every passage, at 64 characters a row instead of a second copy of it
    # all.
    "CREATE INDEX passage_by_start ON passage(agent_id, substr(text, 1, 64))",
    f"""CREATE TABLE embedding (
        store TEXT NOT NULL CHECK (store IN ('message', 'passage')),
        item_id INTEGER NOT NULL,
        {_OWNER},
        embedder TEXT NOT NULL,
        vector BLOB NOT NULL,
        PRIMARY KEY (store, item_id, embedder)
    )""",
    "CREATE INDEX embedding_by_agent ON embedding(agent_id, store, embedder, item_id)",
    # How many vectors were ever added and how many taken away or replaced: whoever keeps a copy compares these.
    f"""CREATE TABLE embedding_changes (
        {_OWNER},
        store TEXT NOT NULL,
        embedder TEXT NOT NULL,
        added INTEGER NOT NULL,
        removed INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (agent_id, store, embedder)
    ) WITHOUT ROWID""",
    """CREATE TRIGGER embedding_inserted AFTER INSERT ON embedding BEGIN
        INSERT INTO embedding_changes (agent_id, store, embedder, added)
        VALUES (new.agent_id, new.store, new.embedder, 1) ON CONFLICT DO UPDATE SET added = added + 1;
    END""",
    """CREATE TRIGGER embedding_updated AFTER UPDATE ON embedding BEGIN
        UPDATE embedding_changes SET removed = removed + 1
        WHERE agent_id = old.agent_id AND store = old.store AND embedder = old.embedder;
    END""",
    """CREATE TRIGGER embedding_deleted AFTER DELETE ON embedding BEGIN
        UPDATE embedding_changes SET removed = removed + 1
        WHERE agent_id = old.agent_id AND store = old.store AND embedder = old.embedder;
    END""",
    f"""CREATE TABLE timer (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        {_OWNER},
        name TEXT NOT NULL,
        schedule TEXT NOT NULL,
        note TEXT NOT NULL,
        next_due_at TEXT NOT NULL,
        created_at TEXT NOT NULL,
        UNIQUE (agent_id, name)
    )""",
    f"""CREATE TABLE inference (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        {_OWNER},
        step_id INTEGER REFERENCES step(id) ON DELETE SET NULL,
        event TEXT NOT NULL,
        phase TEXT NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        reused_tokens INTEGER NOT NULL,
        evaluated_tokens INTEGER NOT NULL,
        generated_tokens INTEGER NOT NULL,
        read_seconds REAL NOT NULL,
        write_seconds REAL NOT NULL,
        created_at TEXT NOT NULL,
        prompt BLOB,
        completion TEXT NOT NULL
    )""",
    "CREATE INDEX inference_by_agent ON inference(agent_id, id)",
    "CREATE INDEX inference_by_step ON inference(step_id)",
    *_text_index("message", f"row.{SPOKEN}"),
    *_text_index("passage"),
)

_EDIT_HISTORY: tuple[str, ...] = (
    # Every change of a memory, numbered for each agent, each row sealed with the digest of all before it.
    f"""CREATE TABLE edit (
        {_OWNER},
        number INTEGER NOT NULL,
        kind TEXT NOT NULL CHECK (kind IN ('block', 'passages', 'summary', 'setting')),
        item TEXT NOT NULL,
        before TEXT,
        after TEXT,
        author TEXT NOT NULL CHECK (author IN ('model', 'user', 'import')),
        step_id INTEGER REFERENCES step(id),
        reverts INTEGER,
        created_at TEXT NOT NULL,
        digest BLOB NOT NULL,
        PRIMARY KEY (agent_id, number)
    ) WITHOUT ROWID""",
    "CREATE INDEX edit_by_item ON edit(agent_id, kind, item, number)",
    "CREATE INDEX edit_by_step ON edit(step_id)",
    # Nothing changes what was done but the end of the agent itself, whose row is gone by the time its edits go.
    """CREATE TRIGGER edit_is_final BEFORE UPDATE ON edit BEGIN
        SELECT RAISE(ABORT, 'history cannot be changed');
    END""",
    """CREATE TRIGGER edit_stays BEFORE DELETE ON edit WHEN EXISTS (SELECT 1 FROM agent WHERE id = old.agent_id) BEGIN
        SELECT RAISE(ABORT, 'history cannot be deleted');
    END""",
    # Passages that were deleted, until they are purged: an undone deletion brings them back under their ids.
    f"""CREATE TABLE deleted_passage (
        id INTEGER PRIMARY KEY,
        {_OWNER},
        text TEXT NOT NULL,
        source TEXT,
        tags TEXT NOT NULL,
        created_at TEXT NOT NULL
    )""",
    "CREATE INDEX deleted_passage_by_agent ON deleted_passage(agent_id, id)",
)

_ATTACHMENTS: tuple[str, ...] = (
    # What an agent may read of another's: a block by its label, or the archive for an empty one.
    f"""CREATE TABLE attachment (
        {_OWNER},
        owner_id INTEGER NOT NULL REFERENCES agent(id) ON DELETE CASCADE,
        label TEXT NOT NULL,
        PRIMARY KEY (agent_id, owner_id, label)
    ) WITHOUT ROWID""",
    "CREATE INDEX attachment_by_owner ON attachment(owner_id)",
)

_OLD_LIMIT_TOKENS = 300  # of a block that is gone: schema 1 kept no more of it than its text


def seal(digest: bytes, *fields: object) -> bytes:
    """The `digest` of an edit: SHA-256 over the one before it (b"" for the first) and the edit's fields as JSON."""
    return hashlib.sha256(digest + json.dumps(fields, ensure_ascii=False).encode()).digest()


def _move_block_history(database: UtilsDatabase) -> None:
    """Schema 1 kept what blocks said in a table of its own, without what else a block is made of."""
    blocks = {
        (agent_id, label): rest
        for agent_id, label, *rest in database.execute(
            "SELECT agent_id, label, description, limit_tokens, read_only, position FROM block"
        )
    }
    last: dict[tuple[int, str], str] = {}
    ends: dict[int, tuple[int, bytes]] = {}
    for agent_id, label, value, author, step_id, created_at in database.execute(
        "SELECT agent_id, label, value, author, step_id, created_at FROM block_history ORDER BY id"
    ).fetchall():
        description, limit_tokens, read_only, position = blocks.get((agent_id, label), ("", _OLD_LIMIT_TOKENS, 0, 0))
        after = json.dumps(
            {
                "description": description,
                "value": value,
                "limit_tokens": limit_tokens,
                "read_only": bool(read_only),
                "position": position,
            },
            ensure_ascii=False,
        )
        before = last.get((agent_id, label))
        number, digest = ends.get(agent_id, (0, b""))
        number, digest = number + 1, seal(digest, number + 1, "block", label, before, after, author, None, created_at)
        database.execute(
            "INSERT INTO edit VALUES (?, ?, 'block', ?, ?, ?, ?, ?, NULL, ?, ?)",
            (agent_id, number, label, before, after, author, step_id, created_at, digest),
        )
        ends[agent_id], last[agent_id, label] = (number, digest), after
    database.execute("DROP TABLE block_history")


_MIGRATION_NAMES = ("initial_schema", "edit_history", "attachments")


def unknown_migrations(connection: sqlite3.Connection) -> list[str]:
    """What was done to the file that this localmem has never heard of."""
    applied = connection.execute(
        "SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY id", (MIGRATION_SET,)
    )
    return [name for (name,) in applied if name not in _MIGRATION_NAMES]


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to SCHEMA_VERSION. Within a transaction of the caller it is all or nothing."""
    from sqlite_utils import Database as UtilsDatabase

    _migrations().apply(UtilsDatabase(connection, execute_plugins=False))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _migrations() -> Migrations:
    """Every change of the schema, in order. A change is a new function here and in `_MIGRATION_NAMES`, and
    one more for SCHEMA_VERSION; what stands is never edited."""
    from sqlite_utils import Migrations

    migrations = Migrations(MIGRATION_SET)

    @migrations()
    def initial_schema(database: UtilsDatabase) -> None:  # pyright: ignore[reportUnusedFunction]  # registers itself
        for statement in _INITIAL_SCHEMA:
            database.execute(statement)

    @migrations()
    def edit_history(database: UtilsDatabase) -> None:  # pyright: ignore[reportUnusedFunction]  # registers itself
        for statement in _EDIT_HISTORY:
            database.execute(statement)
        _move_block_history(database)

    @migrations()
    def attachments(database: UtilsDatabase) -> None:  # pyright: ignore[reportUnusedFunction]  # registers itself
        for statement in _ATTACHMENTS:
            database.execute(statement)

    return migrations
