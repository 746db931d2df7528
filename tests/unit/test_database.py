"""The database: what it promises when things go well, and when they do not."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localmem.errors import DatabaseBusy, SchemaTooNew, StorageError
from localmem.storage.database import SCHEMA_VERSION, Database, storable, utc_moment, utc_text

INSERT_AGENT = "INSERT INTO agent (name, model, created_at) VALUES (?, 'm', '2024')"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home" / "localmem.db"


@pytest.fixture(params=["memory", "file"])
def database(request, path):
    with Database(":memory:" if request.param == "memory" else path) as opened:
        yield opened


def names(database):
    return [row["name"] for row in database.rows("SELECT name FROM agent ORDER BY id")]


def test_committed_rows_are_there(database):
    with database.transaction():
        database.execute(INSERT_AGENT, ("ana",))

    assert names(database) == ["ana"]
    assert database.scalar("SELECT COUNT(*) FROM agent") == 1
    assert database.row("SELECT * FROM agent WHERE name = ?", ("bea",)) is None


def test_exception_undoes_the_transaction(database):
    def fail():
        with database.transaction():
            database.execute(INSERT_AGENT, ("ana",))
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert names(database) == []


def test_exception_through_nested_transactions_undoes_both(database):
    def fail():
        with database.transaction():
            database.execute(INSERT_AGENT, ("outer",))
            with database.transaction():
                database.execute(INSERT_AGENT, ("inner",))
                raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert names(database) == []
    assert not database.in_transaction


def test_failure_after_an_inner_commit_undoes_that_too(database):
    def fail():
        with database.transaction():
            with database.transaction():
                database.execute(INSERT_AGENT, ("inner",))
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert names(database) == []


def test_handled_inner_failure_keeps_the_outer_writes_alone(database):
    with database.transaction():
        database.execute(INSERT_AGENT, ("outer",))

        def fail_inside():
            with database.transaction():
                database.execute(INSERT_AGENT, ("inner",))
                raise KeyError

        with pytest.raises(KeyError):
            fail_inside()
        database.execute(INSERT_AGENT, ("after",))

    assert names(database) == ["outer", "after"]


def test_new_file_is_private_and_durable(path):
    with Database(path) as database:
        database.execute(INSERT_AGENT, ("ana",))
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}

        assert modes == {"localmem.db": 0o600, "localmem.db-wal": 0o600, "localmem.db-shm": 0o600}
        assert database.scalar("PRAGMA journal_mode") == "wal"
        assert database.scalar("PRAGMA synchronous") == 2
        assert database.scalar("PRAGMA foreign_keys") == 1
        assert database.scalar("PRAGMA user_version") == SCHEMA_VERSION


def test_reopening_changes_nothing(path):
    with Database(path) as database:
        database.execute(INSERT_AGENT, ("ana",))
    with Database(path) as database:
        assert names(database) == ["ana"]
        assert database.scalar("SELECT COUNT(*) FROM _sqlite_migrations") == SCHEMA_VERSION


COMMIT_AND_DIE = """
import os, signal, sys
from localmem.storage.database import Database
database = Database(sys.argv[1])
with database.transaction():
    database.execute("INSERT INTO agent (name, model, created_at) VALUES ('kept', 'm', '2024')")
with database.transaction():
    database.execute("INSERT INTO agent (name, model, created_at) VALUES ('lost', 'm', '2024')")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_keeps_the_committed_and_nothing_else(path):
    killed = subprocess.run([sys.executable, "-c", COMMIT_AND_DIE, str(path)], check=False)

    assert killed.returncode == -signal.SIGKILL
    with Database(path) as database:
        assert names(database) == ["kept"]
        assert database.scalar("PRAGMA integrity_check") == "ok"


@pytest.mark.parametrize(
    "content",
    [b"this is no database at all, only text" * 200, b"SQLite format 3\0" + b"\xff" * 8_000],
    ids=["text", "broken pages"],
)
def test_a_file_that_is_no_database_is_refused_and_untouched(path, content):
    path.parent.mkdir()
    path.write_bytes(content)

    with pytest.raises(StorageError, match="localmem.db") as caught:
        Database(path)

    assert "backup" in caught.value.hint
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_damaged_page_is_a_storage_error(path):
    with Database(path) as database, database.transaction():
        for number in range(300):
            database.execute(INSERT_AGENT, (f"agent-{number}" * 20,))
    with path.open("r+b") as file:
        file.seek(4096 * 40)
        file.write(b"\xff" * (path.stat().st_size - 4096 * 40))

    with pytest.raises(StorageError, match="damaged"), Database(path) as database:
        database.rows("SELECT * FROM agent")


def test_another_programs_database_is_refused_and_untouched(path):
    path.parent.mkdir()
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE bookmarks (url TEXT)")
    foreign.close()
    before = path.read_bytes()

    with pytest.raises(StorageError, match="another program"):
        Database(path)

    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "sign",
    [
        f"PRAGMA user_version = {SCHEMA_VERSION + 1}",
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('localmem', 'new', '')",
    ],
)
def test_a_newer_database_is_refused(path, sign):
    with Database(path) as database:
        database.execute(sign)
    before = path.read_bytes()

    with pytest.raises(SchemaTooNew, match="newer localmem"):
        Database(path)

    assert path.read_bytes() == before


def test_a_locked_database_is_busy(path):
    with Database(path) as ours, Database(path) as theirs:
        ours.execute("PRAGMA busy_timeout = 10")
        with theirs.transaction(), pytest.raises(DatabaseBusy, match="another process"), ours.transaction():
            pass
        ours.execute(INSERT_AGENT, ("ana",))

        assert names(theirs) == ["ana"]


def test_a_full_disk_rolls_everything_back(path):
    with Database(path) as database:
        database.execute(INSERT_AGENT, ("before",))
        database.execute(f"PRAGMA max_page_count = {database.scalar('PRAGMA page_count') + 5}")

        def fail_inside():
            with database.transaction():
                database.execute(INSERT_AGENT, ("first",))
                database.execute(INSERT_AGENT, ("x" * 100_000,))

        with pytest.raises(StorageError, match="no space left") as caught:
            fail_inside()

        assert "disk space" in caught.value.hint
        assert names(database) == ["before"]


def test_after_a_rollback_by_sqlite_itself_no_statement_commits_alone(database):
    def fail():
        with database.transaction():
            database.execute(INSERT_AGENT, ("first",))
            with pytest.raises(sqlite3.IntegrityError):
                database.execute("INSERT OR ROLLBACK INTO agent (name, model, created_at) VALUES ('first', '', '')")
            database.execute(INSERT_AGENT, ("alone",))

    with pytest.raises(StorageError, match="rolled back"):
        fail()

    assert names(database) == []
    database.execute(INSERT_AGENT, ("next",))
    assert names(database) == ["next"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_a_storage_error(path):
    path.parent.mkdir(mode=0o500)

    with pytest.raises(StorageError, match="cannot create"):
        Database(path)


def test_a_path_through_a_file_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="file"):
        Database(tmp_path / "file" / "localmem.db")


def test_a_mistake_in_the_sql_is_no_storage_error(database):
    with pytest.raises(sqlite3.OperationalError, match="syntax"):
        database.execute("SELEKT 1")


def test_threads_take_turns(database):
    def add(start):
        with database.transaction():
            for number in range(start, start + 50):
                database.execute(INSERT_AGENT, (str(number),))

    threads = [threading.Thread(target=add, args=(start,)) for start in range(0, 400, 50)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

    added = [int(name) for name in names(database)]
    assert sorted(added) == list(range(400))
    assert all(added[i : i + 50] == list(range(added[i], added[i] + 50)) for i in range(0, 400, 50))


@given(st.text(st.characters(codec=None, categories=None)))
def test_any_text_can_be_stored_and_comes_back_the_same(text):
    kept = storable(text)

    kept.encode()
    assert storable(kept) == kept
    assert "\0" not in kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [("a\0b", "a\ufffdb"), ("\ud83d\ude00", "😀"), ("x\udc00", "x\ufffd"), ("日本 é 😀", "日本 é 😀")],
)
def test_storable(text, kept):
    assert storable(text) == kept


def test_surrogates_in_parameters_are_stored(database):
    database.execute(INSERT_AGENT, ("a\udc00",))
    database.execute_many(INSERT_AGENT, [("b\ud800",)])

    assert names(database) == ["a\ufffd", "b\ufffd"]


def test_moments_sort_as_text():
    early = datetime(2024, 1, 20, 23, 30, tzinfo=timezone(timedelta(hours=5)))
    late = datetime(2024, 1, 20, 18, 30, 0, 1, tzinfo=UTC)

    assert utc_text(early) == "2024-01-20T18:30:00.000000+00:00"
    assert utc_text(early) < utc_text(late)
    assert utc_moment(utc_text(early)) == early
