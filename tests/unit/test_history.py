"""Undo and redo, of blocks, passages, the summary and settings."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from localmem.errors import LocalmemError
from localmem.memory.archival import Archival
from localmem.memory.history import History
from localmem.storage.agent_store import AgentStore, BlockRow, TimerRow
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution
from localmem.storage.embedder import HashEmbedder

NOW = datetime(2024, 1, 20, 12, tzinfo=UTC)
USER = Attribution("user", NOW)
MODEL = Attribution("model", NOW)
HUMAN = BlockRow("human", "The user.", "", 100, position=1)


@pytest.fixture
def database():
    with Database(":memory:") as opened:
        AgentStore(opened).create("ana", model="qwen", now=NOW)
        yield opened


@pytest.fixture
def store(database):
    return AgentStore(database)


@pytest.fixture
def archival(database):
    return Archival(database, 1, HashEmbedder(), None)


@pytest.fixture
def history(database, archival):
    return History(database, 1, archival)


def write(store, *values, label="human"):
    for value in values:
        store.put_block(1, replace(HUMAN, label=label, value=value), MODEL)


def value_of(store, label="human"):
    return next((block.value for block in store.blocks(1) if block.label == label), None)


def test_edits_are_undone_one_by_one_and_done_again(store, history):
    write(store, "a", "b", "c")

    assert [history.undo(at(n))[0].after["value"] for n in range(2)] == ["c", "b"]
    assert value_of(store) == "a"
    assert [edit.before["value"] for n in range(2) for edit in history.redo(at(9 + n))] == ["b", "c"]
    assert value_of(store) == "c"
    history.undo(at(20))
    assert value_of(store) == "b"


def at(minutes):
    return replace(USER, moment=NOW + timedelta(minutes=minutes))


def test_the_first_edit_undone_takes_the_block_away_and_redo_brings_it_back(store, history):
    write(store, "a")

    history.undo(USER)
    assert value_of(store) is None
    history.redo(USER)
    assert store.blocks(1) == [replace(HUMAN, value="a")]


def test_a_deleted_block_comes_back_whole(store, history):
    block = replace(HUMAN, value="a", read_only=True, limit_tokens=77)
    store.put_block(1, block, USER)
    store.delete_block(1, "human", at(1))

    history.undo(at(2))

    assert store.blocks(1) == [block]


def test_limit_description_and_flag_are_undone_too(store, history):
    write(store, "a")
    store.put_block(1, replace(HUMAN, value="a", limit_tokens=300, description="Eva."), at(1))

    history.undo(at(2))

    assert store.blocks(1) == [replace(HUMAN, value="a")]


def test_one_block_is_undone_beside_another(store, history):
    write(store, "a", "b")
    write(store, "kind", "rude", label="persona")

    history.undo(at(1), "block", "human")

    assert (value_of(store), value_of(store, "persona")) == ("a", "rude")
    history.undo(at(2), "block")
    assert value_of(store, "persona") == "kind"
    history.redo(at(3), "block", "human")
    assert (value_of(store), value_of(store, "persona")) == ("b", "kind")


def test_what_was_done_after_an_undo_ends_redo(store, history):
    write(store, "a", "b")
    history.undo(at(1))
    store.put_block(1, replace(HUMAN, value="c"), at(2))

    with pytest.raises(LocalmemError, match="nothing to redo"):
        history.redo(at(3))

    history.undo(at(4))
    assert value_of(store) == "a"


def test_nothing_to_undo_is_said(history):
    with pytest.raises(LocalmemError, match="nothing to undo"):
        history.undo(USER)
    with pytest.raises(LocalmemError, match="there is no edit 7"):
        history.revert(7, USER)


def test_what_an_agent_began_with_is_only_undone_by_its_number(store, history):
    store.put_block(1, HUMAN, Attribution("import", NOW))
    write(store, "a")

    history.undo(at(1))
    with pytest.raises(LocalmemError, match="nothing to undo"):
        history.undo(at(2))
    assert value_of(store) == ""

    history.revert(1, at(3))
    assert value_of(store) is None


def test_an_undo_is_undone_by_its_number(store, history):
    write(store, "a", "b")
    history.undo(at(1))

    history.revert(3, at(2))

    assert value_of(store) == "b"
    with pytest.raises(LocalmemError, match="taken back already"):
        history.revert(3, at(3))


def test_an_older_edit_is_not_undone_under_a_newer(store, history):
    write(store, "a", "b", "c")

    with pytest.raises(LocalmemError, match="human was changed since") as caught:
        history.revert(2, at(1))

    assert "edit 3" in caught.value.hint
    assert value_of(store) == "c"


def test_a_block_that_was_changed_past_the_log_is_not_overwritten(database, store, history):
    write(store, "a", "b")
    database.execute("UPDATE block SET value = 'tampered'")

    with pytest.raises(LocalmemError, match="was changed since"):
        history.undo(at(1))

    assert value_of(store) == "tampered"


def test_nothing_is_undone_on_a_history_that_was_tampered_with(database, store, history):
    write(store, "a", "b")
    database.execute("DROP TRIGGER edit_is_final")
    database.execute("UPDATE edit SET before = '{}' WHERE number = 2")

    with pytest.raises(LocalmemError, match="edit 2 is not as it was written"):
        history.undo(at(1))

    assert value_of(store) == "b"


def test_stored_passages_are_taken_out_and_put_back_with_their_vectors(archival, history):
    kept = archival.insert("The boat is blue.", by=MODEL)
    archival.insert_many([f"Chapter {n}." for n in range(150)], source="book.md", tags=["t"], by=at(1))
    before = archival.list(page_size=200).items

    history.undo(at(2), "passages")
    assert archival.list(page_size=200).items == (kept,)
    assert archival.deleted_count() == 150
    history.redo(at(3), "passages")

    assert archival.list(page_size=200).items == before
    assert archival.deleted_count() == 0
    assert archival.stale_count() == 0
    assert archival.search("Chapter 77.").items[0].text == "Chapter 77."


def test_a_deletion_is_undone_whatever_was_stored_since(archival, history):
    first = archival.insert("The boat is blue.", by=at(1))
    archival.delete([first.id], at(2))
    archival.insert("The sea is green.", by=at(3))

    history.revert(2, at(4))

    assert [passage.text for passage in archival.list().items] == ["The boat is blue.", "The sea is green."]


def test_what_was_purged_does_not_come_back(archival, history):
    first = archival.insert("The boat is blue.", by=at(1))
    archival.delete([first.id], at(2))

    assert archival.purge() == 1
    with pytest.raises(LocalmemError, match="purged"):
        history.undo(at(3))

    assert archival.is_empty


def test_passages_of_another_agent_are_not_touched(database, archival, history):
    AgentStore(database).create("bea", model="qwen", now=NOW)
    other = Archival(database, 2, None, None)
    mine, theirs = archival.insert("mine", by=at(1)), other.insert("theirs", by=at(1))
    archival.delete([mine.id, theirs.id], at(2))
    assert other.count() == 1

    other.delete([theirs.id], at(3))
    assert archival.purge() == 1
    assert other.restore([mine.id, theirs.id], at(4)) == 1
    assert [passage.text for passage in other.list().items] == ["theirs"]
    with pytest.raises(LocalmemError, match="nothing to undo"):
        history.undo(at(5), "block")


def test_a_summary_is_undone_and_still_stands_for_as_many_messages(store, history):
    store.add_summary(1, "- Ana sails.", 4, at(1))
    store.add_summary(1, "- Eva flies.", 9, at(2))

    history.undo(at(3), "summary")

    assert (store.current_summary(1).text, store.current_summary(1).evicted_messages) == ("- Ana sails.", 9)
    history.undo(at(4), "summary")
    assert store.current_summary(1).text == ""


def test_settings_are_undone(store, history):
    timer = TimerRow("tea", "0 16 * * *", "drink", NOW, NOW)
    store.put_timer(1, timer, at(1))
    store.put_timer(1, replace(timer, note="drink more"), at(2))
    store.delete_timer(1, "tea", at(3))
    store.set_model(1, "smol", at(4))
    store.pause_timers(1, NOW, at(5))

    history.undo(at(6))
    assert store.get("ana").timers_paused_until is None
    history.undo(at(7))
    assert store.get("ana").model == "qwen"
    history.undo(at(8))
    assert [kept.note for kept in store.timers(1)] == ["drink more"]
    history.undo(at(9))
    assert [(kept.note, kept.next_due_at) for kept in store.timers(1)] == [("drink", NOW)]
    history.undo(at(10))
    assert store.timers(1) == []


def test_the_window_shows_what_was_undone(store, history):
    write(store, "a", "b")
    store.set_rendered_context(1, "b")

    history.undo(at(1))

    assert store.get("ana").rendered_context == ""
