"""The log of edits: what it keeps, that nothing changes it, and that tampering shows."""

from datetime import UTC, datetime

import pytest

from localmem.errors import StorageError
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution, EditLog

NOW = datetime(2024, 1, 20, 12, tzinfo=UTC)
USER = Attribution("user", NOW)


@pytest.fixture(params=["new", "opened again"])
def database(request, tmp_path):
    path = tmp_path / "localmem.db"
    if request.param == "opened again":
        Database(path).close()
    with Database(path) as opened:
        store = AgentStore(opened)
        store.create("ana", model="qwen", now=NOW)
        store.create("bea", model="qwen", now=NOW)
        yield opened


@pytest.fixture
def log(database):
    return EditLog(database)


def test_each_agents_edits_are_numbered_from_one(log):
    assert log.record(1, "block", "human", None, {"value": "Ana"}, USER) == 1
    assert log.record(2, "block", "human", None, {"value": "Bea"}, USER) == 1
    assert log.record(1, "summary", "", None, {"text": "s"}, Attribution("model", NOW), reverts=1) == 2

    newest, oldest = log.edits(1)
    assert (newest.number, newest.kind, newest.author, newest.reverts, newest.after) == (
        *(2, "summary", "model", 1),
        {"text": "s"},
    )
    assert (oldest.item, oldest.before, oldest.after, oldest.created_at) == ("human", None, {"value": "Ana"}, NOW)
    assert [edit.after for edit in log.edits(2)] == [{"value": "Bea"}]


def test_edits_are_picked_by_kind_item_and_number(log):
    for item in ("human", "persona", "human"):
        log.record(1, "block", item, None, {}, USER)
    log.record(1, "setting", "model", None, {}, USER)

    assert [edit.number for edit in log.edits(1, kind="block")] == [3, 2, 1]
    assert [edit.number for edit in log.edits(1, kind="block", item="human", limit=1)] == [3]
    assert log.edit(1, 2) == log.edits(1, item="persona")[0]
    assert log.edit(1, 9) is None


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE edit SET after = '{}' WHERE number = 1",
        "DELETE FROM edit",
        "INSERT OR REPLACE INTO edit SELECT * FROM edit",
    ],
)
def test_nothing_changes_what_was_done(database, log, statement):
    log.record(1, "block", "human", None, {"value": "Ana"}, USER)
    before = log.edits(1)

    with pytest.raises(Exception, match="history cannot be"):
        database.execute(statement)

    assert log.edits(1) == before


def test_a_deleted_agents_edits_go_with_it(database, log):
    store = AgentStore(database)
    step = store.add_step(1, "user_message", NOW)
    log.record(1, "block", "human", None, {}, Attribution("model", NOW, step))
    log.record(2, "block", "human", None, {}, USER)

    store.delete("ana")

    assert log.edits(1) == []
    assert len(log.edits(2)) == 1


@pytest.mark.parametrize(
    "tampering",
    ['after = \'{"value": "Eva"}\'', "author = 'user'", "created_at = '2020'", "item = 'persona'", "reverts = 1"],
)
def test_tampering_shows(database, log, tampering):
    for text in "abc":
        log.record(1, "block", "human", None, {"value": text}, Attribution("model", NOW))
    assert log.first_broken(1) is None

    database.execute("DROP TRIGGER edit_is_final")
    database.execute(f"UPDATE edit SET {tampering} WHERE number = 2")

    assert log.first_broken(1) == 2


def test_a_missing_edit_shows(database, log):
    for text in "abc":
        log.record(1, "block", "human", None, {"value": text}, USER)
    database.execute("DROP TRIGGER edit_stays")
    database.execute("DELETE FROM edit WHERE number = 2")

    assert log.first_broken(1) == 3


def test_odd_texts_are_kept(log):
    log.record(1, "block", "human\udc00", None, {"value": "a\0b 🎉 \udc00 \"'"}, USER)

    assert log.edits(1)[0].after == {"value": "a\0b 🎉 \ufffd \"'"}
    assert log.first_broken(1) is None


def test_an_edit_is_undone_with_what_it_belongs_to(database, log):
    def fail():
        with database.transaction():
            log.record(1, "block", "human", None, {}, USER)
            raise StorageError("no room")

    with pytest.raises(StorageError):
        fail()

    assert log.edits(1) == []
