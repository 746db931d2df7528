"""Any edits, undos and redos: memory is always what a model of it in the test says."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from localmem.errors import LocalmemError
from localmem.memory.archival import Archival
from localmem.memory.history import History
from localmem.storage.agent_store import AgentStore, BlockRow
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution
from localmem.storage.embedder import HashEmbedder

NOW = datetime(2024, 1, 20, 12, tzinfo=UTC)
LABELS = ("human", "persona", "work")


class Timeline:
    """What undo and redo should come to: the states of one thing, and where in them it is."""

    def __init__(self, state):
        self.states, self.at = [state], 0

    @property
    def state(self):
        return self.states[self.at]

    def change(self, state):
        if state != self.state:
            self.states[self.at + 1 :] = [state]
            self.at += 1

    def move(self, steps):
        """False, and no change, past either end."""
        inside = 0 <= self.at + steps < len(self.states)
        self.at += steps if inside else 0
        return inside


@pytest.mark.parametrize("seed", range(20))
def test_memory_is_what_its_edits_and_undos_come_to(seed):
    chance = random.Random(seed)
    with Database(":memory:") as database:
        store = AgentStore(database)
        store.create("ana", model="qwen", now=NOW)
        archival = Archival(database, 1, HashEmbedder(16), None)
        history = History(database, 1, archival)
        blocks = {label: Timeline(None) for label in LABELS}
        passages = Timeline(())
        for number in range(250):
            by = Attribution(chance.choice(("user", "model")), NOW + timedelta(seconds=number))
            label = chance.choice(LABELS)
            match chance.choice(("write", "write", "delete", "undo", "undo", "redo", "store", "drop", "out", "back")):
                case "write":
                    value = chance.choice(("", "a", "b\nc", "é 🎉"))
                    store.put_block(1, BlockRow(label, "", value, chance.choice((50, 60))), by)
                    blocks[label].change(next(block for block in store.blocks(1) if block.label == label))
                case "delete":
                    store.delete_block(1, label, by)
                    blocks[label].change(None)
                case "undo":
                    assert done(lambda: history.undo(by, "block", label)) == blocks[label].move(-1)  # noqa: B023
                case "redo":
                    assert done(lambda: history.redo(by, "block", label)) == blocks[label].move(1)  # noqa: B023
                case "store":
                    texts = [f"text {number} {n}" for n in range(chance.choice((1, 3, 70)))]
                    stored = archival.insert_many(texts, by=by)
                    passages.change((*passages.state, *(passage.id for passage in stored)))
                case "drop":
                    gone = chance.sample(passages.state, min(len(passages.state), 2))
                    archival.delete(gone, by)
                    passages.change(tuple(passage for passage in passages.state if passage not in gone))
                case "out":
                    assert done(lambda: history.undo(by, "passages")) == passages.move(-1)  # noqa: B023
                case _:
                    assert done(lambda: history.redo(by, "passages")) == passages.move(1)  # noqa: B023
            assert {block.label: block for block in store.blocks(1)} == {
                label: timeline.state for label, timeline in blocks.items() if timeline.state is not None
            }
            assert tuple(p.id for p in archival.list(page_size=10_000).items) == passages.state
        history.check()
        assert archival.stale_count() == 0


def done(change):
    try:
        return bool(change())
    except LocalmemError as error:
        if "nothing to" not in error.message:
            raise
        return False


def test_undo_comes_back_to_where_it_began():
    with Database(":memory:") as database:
        store = AgentStore(database)
        store.create("ana", model="qwen", now=NOW)
        history = History(database, 1, Archival(database, 1, None, None))
        first = BlockRow("human", "The user.", "Ana", 100)
        for number in range(100):
            store.put_block(1, replace(first, value=f"Ana {number}"), Attribution("model", NOW))
        for _ in range(99):
            history.undo(Attribution("user", NOW))
        assert store.blocks(1) == [replace(first, value="Ana 0")]
        for _ in range(99):
            history.redo(Attribution("user", NOW))
        assert store.blocks(1) == [replace(first, value="Ana 99")]
