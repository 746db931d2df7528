"""One SQLite file: the only truth about every agent (MemGPT's recall storage, archival storage and all
state).

Knows the pragmas, transactions and what SQLite's errors mean to a person. Knows nothing of
agents: the queries stand beside what they serve, in `agent_store`, `memory.recall` and `memory.archival`.

Every moment is stored as UTC ISO-8601 text with microseconds and `+00:00`, so text order is time order.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from localmem.errors import DatabaseBusy, SchemaTooNew, StorageError
from localmem.memory.search import indexed_parts
from localmem.storage.in_place import put_in_place
from localmem.storage.private import make_private_folder, open_private
from localmem.storage.schema import APPLICATION_ID, SCHEMA_VERSION, migrate, unknown_migrations

logger = logging.getLogger(__name__)

MEMORY = ":memory:"
BUSY_TIMEOUT_MS = 5_000
_LEAST_FREE_BYTES = 65_536  # two steps of the write-ahead log's index
_CACHE_KB = 32_768  # SQLite's own 2 MB would be filled by one common word's rows

Params = Sequence[Any]  # Any: whatever sqlite3 can bind
Query = Callable[[str, Params], Iterator[sqlite3.Row]]
"""SQL and what it is filled with, to rows."""


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

    @contextmanager
    def moment(self) -> Generator[Query]:
        """A query whose rows are read as they are wanted, all of one moment, whatever is written meanwhile."""
        if self.in_memory:
            with self.transaction():
                yield lambda sql, params: iter(self.execute(sql, params))
            return
        with self._translated(), closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")
            yield lambda sql, params: iter(connection.execute(sql, _bindable(params)))

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
        self._connection.execute("PRAGMA recursive_triggers = ON")  # or REPLACE deletes past a trigger
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA fullfsync = ON")  # or macOS leaves it in the disk's own cache
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
        if version > SCHEMA_VERSION or unknown_migrations(self._connection):
            raise SchemaTooNew(
                f"{self.path} was written by a newer localmem "
                f"(schema {version}; this one knows up to {SCHEMA_VERSION})",
                "Upgrade localmem: pip install --upgrade localmem. The file was not changed.",
            )
        return False

    def _migrate(self) -> None:
        # The lock on the file makes a second process wait; it then finds nothing pending.
        with self.transaction():
            version = self.scalar("PRAGMA user_version")
            if 0 < version < SCHEMA_VERSION and not self.in_memory:
                self._back_up(version)
            migrate(self._connection)

    def _back_up(self, version: int) -> None:
        """A copy of the file as it is, beside it, before its schema is changed."""
        path = self.path.with_name(f"{self.path.name}.schema-{version}")
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)  # of a migration that was killed while it copied
        _create_private(part)
        # Another connection reads: this one holds the lock for writing, and has written nothing yet.
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)
        put_in_place(part, path)
        logger.warning(
            "%s was of schema %d and is brought to %d; as it was it is kept in %s",
            self.path,
            version,
            SCHEMA_VERSION,
            path.name,
        )


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


def is_moment(text: str) -> bool:
    """Whether `text` is a moment as it is stored."""
    try:
        return utc_text(utc_moment(text)) == text
    except (ValueError, OverflowError):
        return False


def _bindable(params: Params) -> Params:
    return [storable(value) if isinstance(value, str) else value for value in params]


def _create_private(path: Path) -> None:
    """An empty file that only its owner may read, when there is none; SQLite gives its side files the same
    mode.
    """
    try:
        make_private_folder(path.parent)
        open_private(path, "xb").close()
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


def _is_full(path: Path) -> bool:
    """Whether the disk has no room left: SQLite calls it an I/O error where the file that is to grow is mapped."""
    try:
        return shutil.disk_usage(path.parent).free < _LEAST_FREE_BYTES
    except OSError:
        return False


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
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path)):
        return StorageError(f"no space left to write {path}; nothing was changed", "Free some disk space and retry.")
    if code in _UNWRITABLE:
        return StorageError(
            f"cannot read or write {path} ({error})",
            "Check the permissions of the file and its folder, and the disk.",
        )
    return None
