"""One SQLite file: the only truth about every agent (MemGPT's recall storage, archival storage and all
state).

Knows the schema, the pragmas, transactions and what SQLite's errors mean to a person. Knows nothing of
agents: the queries stand beside what they serve, in `agent_store`, `memory.recall` and `memory.archival`.

Every moment is stored as UTC ISO-8601 text with microseconds and `+00:00`, so text order is time order.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localmem.errors import DatabaseBusy, SchemaTooNew, StorageError
from localmem.kernel.messages import SPOKEN_KINDS
from localmem.memory.search import PLACE_BITS, indexed_parts

if TYPE_CHECKING:
    from sqlite_utils import Database as UtilsDatabase
    from sqlite_utils import Migrations

logger = logging.getLogger(__name__)

MEMORY = ":memory:"
SCHEMA_VERSION = 1
APPLICATION_ID = 0x6C6D656D  # "lmem": tells our file from any other SQLite file
BUSY_TIMEOUT_MS = 5_000
_MIGRATION_SET = "localmem"
_TOKENIZER = "porter unicode61 remove_diacritics 2"  # 2: also strips marks that 1 leaves on, as in "ặ"
_CACHE_KB = 32_768  # SQLite's own 2 MB would be filled by one common word's rows

Params = Sequence[Any]  # Any: whatever sqlite3 can bind


class Database:
    """An open SQLite file, or `:memory:`; safe to share between threads. Text is stored as `storable` has it.

    Threads take turns: a transaction holds `lock` from its begin to its end. Raises StorageError when the
    file cannot be used (it is then left as it was), SchemaTooNew when a newer localmem wrote it, DatabaseBusy
    when another process kept it locked for longer than five seconds.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.lock = threading.RLock()
        self.rollbacks = 0
        """How often something was undone: caches that may have read it compare this and start afresh."""
        self._depth = 0
        if not self.in_memory:
            _create_private(self.path)
        with self._translated():
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    @property
    def in_memory(self) -> bool:
        return str(self.path) == MEMORY

    @property
    def in_transaction(self) -> bool:
        return self._depth > 0

    def execute(self, sql: str, params: Params = ()) -> sqlite3.Cursor:
        """The cursor of one statement; for reading prefer `rows`, which fetches before another thread
        writes.
        """
        with self.lock, self._translated():
            return self._run(sql, params)

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        """One statement for many rows, all or nothing."""
        with self.transaction(), self._translated():
            self._connection.executemany(sql, (_bindable(row) for row in rows))

    def rows(self, sql: str, params: Params = ()) -> list[sqlite3.Row]:
        """Every row of a query."""
        with self.lock, self._translated():
            return self._run(sql, params).fetchall()

    def row(self, sql: str, params: Params = ()) -> sqlite3.Row | None:
        """The first row of a query, or None."""
        with self.lock, self._translated():
            first: sqlite3.Row | None = self._run(sql, params).fetchone()
            return first

    def scalar(self, sql: str, params: Params = ()) -> Any:  # noqa: ANN401  # the type is the query's
        """The first column of the first row, or None."""
        first = self.row(sql, params)
        return None if first is None else first[0]

    @contextmanager
    def transaction(self) -> Generator[None]:
        """All or nothing. An inner transaction joins the outer one: nothing is on disk before the outermost
        ends.

        An exception undoes its own block and goes on; when it passes the outermost block, everything is
        undone. So a caller that handles an inner failure keeps what it wrote itself, and never half of what
        failed.
        """
        with self.lock:
            self._begin()
            try:
                yield
            except BaseException:
                self._undo()
                raise
            self._end()

    def close(self) -> None:
        """Close the file; SQLite folds the write-ahead log into it. A second call does nothing."""
        with self.lock:
            self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        # IMMEDIATE: a transaction that starts as a reader can fail with "busy" half-way, past any waiting.
        self.execute("BEGIN IMMEDIATE" if self._depth == 0 else f"SAVEPOINT level_{self._depth}")
        self._depth += 1

    def _end(self) -> None:
        try:
            self.execute("COMMIT" if self._depth == 1 else f"RELEASE level_{self._depth - 1}")
        except BaseException:
            self._undo()
            raise
        self._depth -= 1

    def _undo(self) -> None:
        self._depth -= 1
        self.rollbacks += 1
        if not self._connection.in_transaction:
            return  # a full disk makes SQLite roll everything back by itself
        with self._translated():
            if self._depth == 0:
                self._connection.execute("ROLLBACK")
            else:
                self._connection.execute(f"ROLLBACK TO level_{self._depth}")
                self._connection.execute(f"RELEASE level_{self._depth}")

    def _run(self, sql: str, params: Params) -> sqlite3.Cursor:
        # SQLite may have rolled back by itself; without this, each statement after that would commit alone.
        if self._depth > 0 and not self._connection.in_transaction:
            raise StorageError(f"the transaction on {self.path} was rolled back; nothing of it was kept")
        return self._connection.execute(sql, _bindable(params))

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            ours = _storage_error(error, self.path)
            if ours is None:
                raise
            raise ours from error

    def _prepare(self) -> None:
        self._connection.row_factory = sqlite3.Row
        is_new = self._check_file()  # only reads: a file that is not ours must stay as it is
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        self._connection.create_function("indexed_parts", 1, indexed_parts, deterministic=True)
        if is_new or self.scalar("PRAGMA user_version") < SCHEMA_VERSION:
            self._migrate()

    def _check_file(self) -> bool:
        version = self.scalar("PRAGMA user_version")
        tables = {row["name"] for row in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return True
        if self.scalar("PRAGMA application_id") != APPLICATION_ID:
            raise StorageError(
                f"{self.path} is an SQLite file of another program",
                "Choose another path for localmem's database.",
            )
        applied = self.rows(
            "SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY id", (_MIGRATION_SET,)
        )
        unknown = [row["name"] for row in applied if row["name"] not in _MIGRATION_NAMES]
        if version > SCHEMA_VERSION or unknown:
            raise SchemaTooNew(
                f"{self.path} was written by a newer localmem "
                f"(schema {version}; this one knows up to {SCHEMA_VERSION})",
                "Upgrade localmem: pip install --upgrade localmem. The file was not changed.",
            )
        return False

    def _migrate(self) -> None:
        from sqlite_utils import Database as UtilsDatabase

        # The lock on the file makes a second process wait; it then finds nothing pending.
        with self.transaction():
            _migrations().apply(UtilsDatabase(self._connection, execute_plugins=False))
            self.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def storable(text: str) -> str:
    """`text` as SQLite and UTF-8 can keep it: lone surrogates and NULs become U+FFFD, surrogate pairs one
    character.

    >>> storable("a\\ud83d\\ude00b\\udc00")
    'a😀b\ufffd'
    """
    if "\0" in text:  # SQLite's own string functions stop there, and the rest could not be searched
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def utc_text(moment: datetime) -> str:
    """A moment as it is stored; a naive one is taken as local time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def utc_moment(text: str) -> datetime:
    """A stored moment, timezone-aware, in UTC."""
    return datetime.fromisoformat(text)


def _bindable(params: Params) -> Params:
    return [storable(value) if isinstance(value, str) else value for value in params]


def _create_private(path: Path) -> None:
    """An empty file that only its owner may read, when there is none; SQLite gives its side files the same
    mode.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if not path.parent.is_dir():
            raise StorageError(f"{path.parent} is not a folder", "Choose another path for the database.") from None
    except OSError as error:
        raise StorageError(
            f"cannot create the database {path}: {error.strerror}",
            "Check the folder's permissions and the free space, or choose another one.",
        ) from error


_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR}


def _storage_error(error: sqlite3.Error, path: Path) -> StorageError | None:
    """What the user should know about an SQLite error; None when it is a mistake in our own code."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte: extended codes refine it
    if code in _BUSY:
        return DatabaseBusy(f"another process is writing to {path}", "Wait for it to finish, or close it.")
    if code in _DAMAGED:
        return StorageError(
            f"{path} is damaged or is not an SQLite database ({error})",
            "Restore a backup, or move the file aside to start with an empty one.",
        )
    if code == sqlite3.SQLITE_FULL:
        return StorageError(f"no space left to write {path}; nothing was changed", "Free some disk space and retry.")
    if code in _UNWRITABLE:
        return StorageError(
            f"cannot read or write {path} ({error})",
            "Check the permissions of the file and its folder, and the disk.",
        )
    return None


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

_MIGRATION_NAMES = frozenset({"initial_schema"})


def _migrations() -> Migrations:
    """Every change of the schema, in order. A change is a new function here and in `_MIGRATION_NAMES`, and
    one more for SCHEMA_VERSION; what stands is never edited."""
    from sqlite_utils import Migrations

    migrations = Migrations(_MIGRATION_SET)

    @migrations()
    def initial_schema(database: UtilsDatabase) -> None:  # pyright: ignore[reportUnusedFunction]  # registers itself
        for statement in _INITIAL_SCHEMA:
            database.execute(statement)

    return migrations
