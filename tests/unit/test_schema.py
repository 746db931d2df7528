"""An older file becomes one of today: forward, whole or not at all, and with a copy of what it was."""

import logging
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, datetime

import pytest
from sqlite_utils import Database as UtilsDatabase

from localmem.errors import StorageError
from localmem.memory.archival import Archival
from localmem.memory.recall import Recall
from localmem.memory.search import indexed_parts
from localmem.storage import schema
from localmem.storage.agent_store import AgentStore, state_of
from localmem.storage.attachments import Attachments
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution, EditLog

NOW = datetime(2024, 1, 20, 12, tzinfo=UTC)
SCHEMA_1 = """
    INSERT INTO agent (name, model, created_at) VALUES ('ana', 'qwen', '2024-01-20T12:00:00.000000+00:00');
    INSERT INTO step (agent_id, event_kind, started_at) VALUES (1, 'user_message', '2024-01-20T12:00:00.000000+00:00');
    INSERT INTO block VALUES (1, 'human', 'The user.', 'Ana. é 🎉', 100, 1, 1);
    INSERT INTO block_history (agent_id, label, value, author, step_id, created_at) VALUES
        (1, 'human', '', 'user', NULL, '2024-01-20T12:00:00.000000+00:00'),
        (1, 'gone', 'old', 'import', NULL, '2024-01-20T12:01:00.000000+00:00'),
        (1, 'human', 'Ana. é 🎉', 'model', 1, '2024-01-20T12:02:00.000000+00:00');
    INSERT INTO message (agent_id, role, kind, tokens, created_at, text, content) VALUES
        (1, 'user', 'user_message', 4, '2024-01-20T12:00:00.000000+00:00', 'I am Ana.', 'I am Ana.');
    INSERT INTO queue VALUES (1, 0, 1);
    INSERT INTO passage (agent_id, text, created_at) VALUES
        (1, 'The boat is blue.', '2024-01-20T12:00:00.000000+00:00');
"""


@pytest.fixture
def path(tmp_path):
    """A file of schema 1, as the localmem of that schema left it."""
    path = tmp_path / "localmem.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("indexed_parts", 1, indexed_parts, deterministic=True)
        connection.execute("PRAGMA journal_mode = WAL")
        schema._migrations().apply(UtilsDatabase(connection, execute_plugins=False), stop_before="edit_history")
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.executescript(SCHEMA_1)
    return path


def test_an_older_file_keeps_everything(path):
    with Database(path) as database:
        assert database.scalar("PRAGMA user_version") == schema.SCHEMA_VERSION
        assert database.scalar("PRAGMA integrity_check") == "ok"
        assert database.rows("PRAGMA foreign_key_check") == []
        assert [message.text for message in Recall(database, 1, None, None).search("Ana").items] == ["I am Ana."]
        assert Archival(database, 1, None, None).search("boat").total == 1
        assert AgentStore(database).blocks(1)[0].value == "Ana. é 🎉"
        log = EditLog(database)
        edits = [(edit.item, edit.before and edit.before["value"], edit.after["value"]) for edit in log.edits(1)]
        assert edits == [("human", "", "Ana. é 🎉"), ("gone", None, "old"), ("human", None, "")]
        assert [(edit.author, edit.step_id) for edit in log.edits(1)] == [
            ("model", 1),
            ("import", None),
            ("user", None),
        ]
        assert log.edits(1)[0].after == {
            "description": "The user.",
            "value": "Ana. é 🎉",
            "limit_tokens": 100,
            "read_only": True,
            "position": 1,
        }
        assert log.first_broken(1) is None


def test_a_file_of_schema_2_keeps_everything_and_can_be_attached_to(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("indexed_parts", 1, indexed_parts, deterministic=True)
        schema._migrations().apply(UtilsDatabase(connection, execute_plugins=False), stop_before="attachments")
        connection.execute("PRAGMA user_version = 2")
        before = connection.execute("SELECT * FROM edit").fetchall()
    with Database(path) as database:
        assert database.scalar("PRAGMA user_version") == schema.SCHEMA_VERSION
        assert [tuple(row) for row in database.rows("SELECT * FROM edit")] == before
        bea = AgentStore(database).create("bea", model="qwen", now=NOW)
        Attachments(database).add(bea.id, "ana", "human", Attribution("user", NOW))
        [(owner, block)] = Attachments(database).blocks(bea.id)
        assert (owner, block.label, block.value) == ("ana", "ana/human", "Ana. é 🎉")
    assert path.with_name("localmem.db.schema-2").exists()


def test_what_is_moved_can_be_gone_on_from(path):
    with Database(path) as database:
        store = AgentStore(database)
        block = store.blocks(1)[0]
        assert EditLog(database).edits(1)[0].after == state_of(block)


def test_a_copy_of_the_older_file_is_kept(path, caplog):
    with caplog.at_level(logging.WARNING), Database(path):
        pass

    copy = path.with_name("localmem.db.schema-1")
    assert copy.name in caplog.text
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT COUNT(*) FROM block_history").fetchone() == (3,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert sorted(file.name for file in path.parent.iterdir()) == ["localmem.db", "localmem.db.schema-1"]


def test_a_new_file_and_one_of_today_are_not_copied(tmp_path):
    for _ in range(2):
        with Database(tmp_path / "localmem.db"):
            pass
    with Database(":memory:"):
        pass

    assert [file.name for file in tmp_path.iterdir()] == ["localmem.db"]


def test_a_failed_migration_leaves_the_file_as_it_was(path, monkeypatch):
    def fail(database):
        raise sqlite3.OperationalError("the lights went out")

    monkeypatch.setattr(schema, "_move_block_history", fail)
    with pytest.raises(sqlite3.OperationalError, match="lights"):
        Database(path)
    monkeypatch.undo()

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT COUNT(*) FROM block_history").fetchone() == (3,)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        assert "edit" not in tables
    with Database(path) as database:
        assert len(EditLog(database).edits(1)) == 3


def test_without_room_for_the_copy_nothing_is_changed(path, monkeypatch):
    def fail(*_: object, **__: object):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(Database, "_back_up", fail)
    with pytest.raises(StorageError, match="no space left"):
        Database(path)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
