"""What an agent may read of another's: nothing, until it is attached; then to read, and never to write."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import make_agent, prompt_text, replies, say, scripted_agent

from localmem import runtime
from localmem.backend.scripted import ScriptedBackend
from localmem.config import load_settings
from localmem.errors import AgentNotFound, ContextTooSmall, InvalidArguments, LocalmemError
from localmem.kernel.agent import Agent
from localmem.kernel.budget import Budget
from localmem.kernel.messages import FunctionCall
from localmem.memory.working_context import Block
from localmem.storage.agent_store import AgentStore
from localmem.storage.attachments import Attachments
from localmem.storage.database import Database
from localmem.storage.embedder import HashEmbedder
from localmem.storage.export import Export, write_export

NOW = datetime(2024, 1, 20, 12, tzinfo=UTC)


@pytest.fixture
def database() -> Iterator[Database]:
    with Database(":memory:") as opened:
        yield opened


def an_agent(database: Database, name: str, **options: object) -> Agent:
    return scripted_agent(database=database, name=name, embedder=HashEmbedder(), **options)


@pytest.fixture
def ana(database: Database) -> Agent:
    """The owner: a fact about the user, a block of her own, two passages."""
    agent = an_agent(database, "ana")
    agent.set_block("human", "Sails a boat called Nora.")
    agent.add_block(Block("work", "Her tasks.", "Paint the hull.", 100))
    agent.archival.insert("The boat was built in Faro.", source="log")
    agent.archival.insert("The sails are red.")
    return agent


@pytest.fixture
def bea(database: Database, ana: Agent) -> Agent:
    agent = an_agent(database, "bea")
    agent.archival.insert("Bea once saw a boat.")
    return agent


def search(agent: Agent, query: str) -> str:
    """What the model is told when it searches."""
    call = FunctionCall("archival_memory_search", {"query": query, "page": 1})
    agent.backend.script[:] = [call, say("Well.")]
    return next(step.result.text for step in agent.send(f"Look up {query}.") if step.call == call)


def test_nothing_is_shared_that_is_not_attached(bea: Agent):
    assert "Nora" not in prompt_text(bea)
    assert "Faro" not in search(bea, "boat")
    assert [passage.text for passage in bea.archival.search("boat").items] == ["Bea once saw a boat."]
    assert bea.attached() == []


def test_an_attached_block_stands_in_the_window_and_no_other(bea: Agent):
    bea.attach("ana", "human")
    assert "[ana/human] The user., read-only\nSails a boat called Nora." in prompt_text(bea)
    assert "Paint the hull" not in prompt_text(bea)
    assert [one.name for one in bea.attached()] == ["ana/human"]
    assert bea.working_context["ana/human"] == "Sails a boat called Nora."
    assert "Faro" not in search(bea, "boat")


def test_what_the_owner_changes_is_seen_at_the_next_event(ana: Agent, bea: Agent):
    bea.attach("ana", "human")
    ana.set_block("human", "Sold the boat.")
    list(bea.send("Hello."))
    assert "Sold the boat." in prompt_text(bea)
    assert "Nora" not in prompt_text(bea)
    ana.undo("block", "human")
    list(bea.send("Hello again."))
    assert "Nora" in prompt_text(bea)


def test_an_attached_block_is_changed_by_its_owner_alone(bea: Agent, ana: Agent):
    bea.attach("ana", "human")
    call = FunctionCall("core_memory_append", {"label": "ana/human", "content": "Likes cats."})
    bea.backend.script[:] = [call, say("Well.")]
    step = next(iter(bea.send("I like cats.")))
    assert not step.result.ok
    assert "read-only" in step.result.text
    with pytest.raises(InvalidArguments, match="'ana/human' is ana's, and is changed there"):
        bea.set_block("ana/human", "Likes cats.")
    assert ana.working_context["human"] == "Sails a boat called Nora."
    grammar = bea.grammar().lark(lambda text: bea.backend.tokenizer.encode(text, special=True))
    assert "ana/human" not in grammar


def test_an_attached_archive_is_searched_with_its_own_and_says_whose_it_is(bea: Agent):
    bea.attach("ana")
    found = bea.archival.search("boat")
    assert {(passage.text, passage.owner) for passage in found.items} == {
        ("Bea once saw a boat.", ""),
        ("The boat was built in Faro.", "ana"),
    }
    assert found.total == 2
    told = search(bea, "boat")
    assert " of ana log] The boat was built in Faro." in told
    assert "] Bea once saw a boat." in told
    assert "Nora" not in prompt_text(bea).split("Look up")[0]


def test_pages_go_through_all_archives(ana: Agent, bea: Agent):
    for number in range(7):
        ana.archival.insert(f"Ana sailed the boat, day {number}.")
        bea.archival.insert(f"Bea rowed the boat, day {number}.")
    bea.attach("ana")
    pages = [bea.archival.search("boat", page=page, page_size=4) for page in range(4)]
    texts = [passage.text for page in pages for passage in page.items]
    assert pages[0].total == len(texts) == len(set(texts)) == 16
    assert {passage.owner for passage in pages[0].items} == {"", "ana"}


def test_only_its_own_archive_is_written_counted_and_undone(ana: Agent, bea: Agent):
    bea.attach("ana")
    bea.archival.insert("Bea likes boats.")
    assert (ana.archival.count(), bea.archival.count(), bea.archival.found_in()) == (2, 2, 4)
    assert "in 4 passages" in search(bea, "zebra")
    theirs = ana.archival.search("Faro").items[0]
    assert bea.archival.delete([theirs.id]) == 0
    bea.undo("passages")
    assert ana.archival.count() == 2
    assert [passage.text for passage in bea.archival.list().items] == ["Bea once saw a boat."]


def test_an_agent_with_nothing_of_its_own_can_search_what_is_attached(database: Database, ana: Agent):
    cleo = an_agent(database, "cleo")
    assert cleo.archival.is_empty
    cleo.attach("ana")
    assert not cleo.archival.is_empty
    assert "Faro" in search(cleo, "boat")


def test_attachments_are_not_followed_further(database: Database, bea: Agent):
    bea.attach("ana", "human")
    bea.attach("ana")
    cleo = an_agent(database, "cleo")
    cleo.attach("bea", "human")
    cleo.attach("bea")
    assert "Nora" not in prompt_text(cleo)
    assert [passage.text for passage in cleo.archival.search("boat").items] == ["Bea once saw a boat."]


def test_what_is_detached_is_gone(bea: Agent):
    bea.attach("ana", "human")
    bea.attach("ana")
    bea.detach("ana", "human")
    bea.detach("ana")
    assert "Nora" not in prompt_text(bea)
    assert bea.archival.search("Faro").total == 0
    with pytest.raises(LocalmemError, match="ana/human is not attached"):
        bea.detach("ana", "human")


def test_attaching_can_be_undone_and_done_again(bea: Agent):
    bea.attach("ana", "human")
    bea.attach("ana")
    assert [edit.item for edit in bea.history("setting")[:2]] == ["attached ana", "attached ana/human"]
    bea.undo()
    assert bea.archival.search("Faro").total == 0
    bea.undo()
    assert "Nora" not in prompt_text(bea)
    bea.redo()
    assert "Nora" in prompt_text(bea)
    bea.redo()
    assert bea.archival.search("Faro").total == 1
    bea.detach("ana")
    bea.undo()
    assert [one.name for one in bea.attached()] == ["ana", "ana/human"]


@pytest.mark.parametrize(
    ("owner", "label", "error", "said"),
    [
        ("nobody", "human", AgentNotFound, "no agent is named 'nobody'"),
        ("ana", "cats", LocalmemError, "ana has no block 'cats'"),
        ("bea", "human", LocalmemError, "cannot be attached to itself"),
    ],
)
def test_what_cannot_be_attached_is_said(bea: Agent, owner: str, label: str, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        bea.attach(owner, label)
    assert (bea.attached(), bea.history("setting")) == ([], [])


def test_nothing_is_attached_twice(bea: Agent):
    bea.attach("ana", "human")
    with pytest.raises(LocalmemError, match="ana/human is attached already"):
        bea.attach("ana", "human")


def test_a_block_that_leaves_no_room_is_not_attached(database: Database, ana: Agent):
    ana.add_block(Block("long", "Much.", "", 5_000))
    small = make_agent(ScriptedBackend(window=6_000), database=database, name="small", budget=Budget(6_000, 400))
    with pytest.raises(ContextTooSmall):
        small.attach("ana", "long")
    assert small.attached() == []
    assert list(small.working_context) == ["persona", "human"]
    assert replies(small.send("Hello.")) == ["All right."]


def test_what_is_attached_goes_with_its_owner(database: Database, ana: Agent, bea: Agent):
    bea.attach("ana", "human")
    bea.attach("ana")
    AgentStore(database).delete("ana")
    list(bea.send("Hello."))
    assert "Nora" not in prompt_text(bea)
    assert bea.archival.search("Faro").total == 0
    bea.undo("setting")
    assert bea.attached() == []


def test_a_block_that_its_owner_no_longer_has_is_not_shown(ana: Agent, bea: Agent):
    bea.attach("ana", "work")
    ana.undo("block", "work")
    list(bea.send("Hello."))
    assert "ana/work" not in prompt_text(bea)
    ana.redo("block", "work")
    list(bea.send("Hello."))
    assert "ana/work" in prompt_text(bea)


def test_an_agent_that_is_opened_again_reads_the_same(database: Database, bea: Agent):
    bea.attach("ana", "human")
    bea.attach("ana")
    ids = bea.main_context.prompt().ids
    again = an_agent(database, "bea")
    assert again.main_context.prompt().ids == ids
    assert again.archival.search("Faro").total == 1


def test_an_export_holds_nothing_of_others(database: Database, bea: Agent, tmp_path: Path):
    bea.attach("ana", "human")
    bea.attach("ana")
    write_export(database, bea.id, tmp_path / "bea.localmem")
    with Export(tmp_path / "bea.localmem") as export:
        told = str([[*export.rows("block")], [*export.rows("passage")]])
    assert "Nora" not in told
    assert "Faro" not in told


def test_a_restored_agent_is_attached_as_before(database: Database, ana: Agent, bea: Agent, tmp_path: Path):
    bea.attach("ana", "human")
    ana.attach("bea")
    settings = load_settings(flags={"home": tmp_path}, environ={})
    write_export(database, ana.id, tmp_path / "ana.localmem")
    with Export(tmp_path / "ana.localmem") as export:
        runtime.restore_agent(database, "ana", export, settings)
    attachments, store = Attachments(database), AgentStore(database)
    assert [one.name for one in attachments.of(store.get("bea").id)] == ["ana/human"]
    assert [one.name for one in attachments.of(store.get("ana").id)] == ["bea"]
    list(bea.send("Hello."))
    assert "Nora" in prompt_text(bea)
