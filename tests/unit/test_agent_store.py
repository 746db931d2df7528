"""Agents, their queue, blocks, summaries, timers and inferences, in real SQLite."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from localmem.errors import AgentNotFound, LocalmemError
from localmem.kernel.messages import Message
from localmem.memory.archival import Archival
from localmem.memory.recall import Recall
from localmem.storage.agent_store import KEPT_PROMPTS, AgentStore, BlockRow, InferenceRow, TimerRow
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution, EditLog
from localmem.storage.embedder import HashEmbedder

NOW = datetime(2024, 1, 20, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
USER = Attribution("user", NOW)


@pytest.fixture
def database():
    with Database(":memory:") as opened:
        yield opened


@pytest.fixture
def store(database):
    return AgentStore(database)


@pytest.fixture
def ana(store):
    return store.create("ana", model="qwen", now=NOW)


@pytest.fixture
def message_ids(database, ana):
    recall = Recall(database, ana.id, None, None)
    return [recall.insert(Message("user", "user_message", text, text, NOW)).id for text in "abcde"]


def inference(agent_id, prompt):
    return InferenceRow(agent_id, None, "user_message", "step", 30, 20, 10, 5, 0.5, 0.25, NOW, "{}", prompt)


def test_created_agent_is_found(store, ana):
    assert store.get("ana") == ana
    assert (ana.model, ana.created_at, ana.last_seen_at, ana.warned) == ("qwen", NOW, None, False)
    assert store.list() == [ana]


def test_a_taken_name_is_refused(store, ana):
    with pytest.raises(LocalmemError, match="already"):
        store.create("ana", model="qwen", now=NOW)


@pytest.mark.parametrize("name", ["", "a b", "../x", "é", "a" * 65, ".", "..", "a\n", "a\0", "\udc00"])
def test_a_name_that_is_none_is_refused(store, name):
    with pytest.raises(LocalmemError, match="cannot be the name"):
        store.create(name, model="qwen", now=NOW)


def test_a_wrong_name_hints_at_near_ones(store, ana):
    with pytest.raises(AgentNotFound) as caught:
        store.get("anna")

    assert "ana" in caught.value.hint


def test_state_of_an_agent_is_kept(store, ana):
    store.set_model(ana.id, "smol", USER)
    store.touch(ana.id, LATER)
    store.set_warned(ana.id, True)
    store.set_rendered_context(ana.id, "<persona>\udc00")
    store.pause_timers(ana.id, LATER, USER)

    assert store.get("ana") == replace(
        ana,
        model="smol",
        last_seen_at=LATER,
        warned=True,
        rendered_context="<persona>\ufffd",
        timers_paused_until=LATER,
    )
    store.pause_timers(ana.id, None, USER)
    assert store.get("ana").timers_paused_until is None


def test_deleting_an_agent_leaves_nothing_of_it_and_all_of_others(database, store, ana):
    bea = store.create("bea", model="qwen", now=NOW)
    for agent in (ana, bea):
        recall = Recall(database, agent.id, HashEmbedder(), None)
        message = recall.insert(Message("user", "user_message", "my dog", "my dog", NOW))
        recall.search("dog")
        Archival(database, agent.id, HashEmbedder(), None).insert("a dog", by=USER)
        step = store.add_step(agent.id, "user_message", NOW)
        store.append_to_queue(agent.id, message.id)
        store.put_block(agent.id, BlockRow("human", "", "x", 100), replace(USER, step_id=step))
        store.add_summary(agent.id, "s", 1, USER)
        store.put_timer(agent.id, TimerRow("t", "* * * * *", "", NOW, NOW), USER)
        store.add_inference(replace(inference(agent.id, "p"), step_id=step))
    before = {table: rows_of(database, table, bea.id) for table in TABLES}

    store.delete("ana")

    assert {table: rows_of(database, table, ana.id) for table in TABLES} == dict.fromkeys(TABLES, 0)
    assert {table: rows_of(database, table, bea.id) for table in TABLES} == before
    assert 0 not in before.values()
    assert database.scalar("SELECT COUNT(*) FROM message_fts WHERE message_fts MATCH 'dog'") == 1
    assert database.scalar("SELECT COUNT(*) FROM passage_fts WHERE passage_fts MATCH 'dog'") == 1


TABLES = (
    "message queue block edit summary passage embedding timer step inference".split()  # noqa: SIM905
)


def rows_of(database, table, agent_id):
    return database.scalar(f"SELECT COUNT(*) FROM {table} WHERE agent_id = ?", (agent_id,))


def test_queue_keeps_its_order(store, ana, message_ids):
    for message_id in message_ids:
        store.append_to_queue(ana.id, message_id)
    store.remove_from_queue(ana.id, message_ids[:2])
    store.append_to_queue(ana.id, message_ids[0])

    assert store.queue_ids(ana.id) == [*message_ids[2:], message_ids[0]]


def test_queue_is_replaced_whole(store, ana, message_ids):
    store.append_to_queue(ana.id, message_ids[0])

    store.replace_queue(ana.id, message_ids[:1:-1])

    assert store.queue_ids(ana.id) == message_ids[:1:-1]


def test_blocks_come_in_their_order_with_their_history(database, store, ana):
    human = BlockRow("human", "the user", "Ana", 100, position=1)
    persona = BlockRow("persona", "the agent", "kind", 200, read_only=True, position=0)
    store.put_block(ana.id, human, Attribution("import", NOW))
    store.put_block(ana.id, persona, Attribution("import", NOW))
    renamed = replace(human, value="Ana, has a dog")
    store.put_block(ana.id, renamed, Attribution("model", LATER))
    store.put_block(ana.id, replace(renamed, limit_tokens=300), Attribution("user", LATER))

    assert store.blocks(ana.id) == [persona, replace(renamed, limit_tokens=300)]
    human_edits = EditLog(database).edits(ana.id, kind="block", item="human")
    assert [
        (edit.after["value"], edit.after["limit_tokens"], edit.author, edit.created_at) for edit in human_edits
    ] == [
        ("Ana, has a dog", 300, "user", LATER),
        ("Ana, has a dog", 100, "model", LATER),
        ("Ana", 100, "import", NOW),
    ]
    assert [edit.before for edit in human_edits] == [*[edit.after for edit in human_edits[1:]], None]
    assert [edit.item for edit in EditLog(database).edits(ana.id, limit=3)] == ["human", "human", "persona"]


def test_a_deleted_block_keeps_its_history(database, store, ana):
    store.put_block(ana.id, BlockRow("human", "", "Ana", 100), Attribution("user", NOW))

    assert store.delete_block(ana.id, "human", USER)
    assert not store.delete_block(ana.id, "human", USER)
    assert store.blocks(ana.id) == []
    assert [edit.after and edit.after["value"] for edit in EditLog(database).edits(ana.id)] == [None, "Ana"]


def test_the_last_summary_is_current_and_earlier_ones_are_kept(store, ana):
    assert store.current_summary(ana.id) is None

    store.add_summary(ana.id, "first", 4, USER)
    second = store.add_summary(ana.id, "second\0", 9, USER)

    assert store.current_summary(ana.id) == second
    assert [summary.text for summary in store.summaries(ana.id)] == ["first", "second\ufffd"]


def test_timers(store, ana):
    store.put_timer(ana.id, TimerRow("tea", "0 16 * * *", "drink", LATER, NOW), USER)
    first = store.put_timer(ana.id, TimerRow("walk", "0 9 * * *", "dog", NOW, NOW), USER)
    store.put_timer(ana.id, TimerRow("tea", "0 17 * * *", "more tea", LATER, LATER), USER)

    assert [timer.name for timer in store.timers(ana.id)] == ["walk", "tea"]
    assert store.timers(ana.id)[1].note == "more tea"
    assert store.timers(ana.id)[0] == first
    store.set_timer_due(ana.id, "walk", LATER + timedelta(days=1))
    assert [timer.name for timer in store.timers(ana.id)] == ["tea", "walk"]
    assert store.delete_timer(ana.id, "tea", USER)
    assert not store.delete_timer(ana.id, "tea", USER)


def test_inference_comes_back_as_it_was(store, ana):
    row = inference(ana.id, "a prompt with é and \0")

    row_id = store.add_inference(row)

    assert store.inference(ana.id, row_id) == replace(row, id=row_id, prompt="a prompt with é and \ufffd")
    assert store.inference(ana.id + 1, row_id) is None


def test_only_the_newest_prompts_are_kept(store, ana):
    bea = store.create("bea", model="qwen", now=NOW)
    of_bea = store.add_inference(inference(bea.id, "bea's"))
    for number in range(KEPT_PROMPTS + 3):
        store.add_inference(inference(ana.id, f"prompt {number}"))

    kept = store.inferences(ana.id, KEPT_PROMPTS + 10)
    assert len(kept) == KEPT_PROMPTS + 3
    assert [row.prompt for row in kept[:2]] == [f"prompt {KEPT_PROMPTS + 2}", f"prompt {KEPT_PROMPTS + 1}"]
    assert [row.prompt for row in kept[KEPT_PROMPTS - 1 :]] == ["prompt 3", None, None, None]
    assert store.inference(bea.id, of_bea).prompt == "bea's"
