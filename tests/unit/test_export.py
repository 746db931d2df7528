"""An agent as a file: everything comes back, on another machine too, and a bad file changes nothing."""

import base64
import hashlib
import json
import stat
import zipfile
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from support import append, filled, make_agent, prompt_text, say, scripted_agent

from localmem.backend.scripted import ScriptedBackend
from localmem.errors import LocalmemError
from localmem.kernel.messages import FunctionCall
from localmem.memory.archival import Archival
from localmem.memory.history import History
from localmem.memory.recall import Recall
from localmem.memory.working_context import Block
from localmem.storage.agent_store import AgentStore
from localmem.storage.database import Database
from localmem.storage.edit_log import Attribution, EditLog
from localmem.storage.embedder import HashEmbedder
from localmem.storage.export import MANIFEST, TABLES, Export, write_export
from localmem.storage.import_file import import_agent

NOW = datetime(2024, 1, 20, 12, tzinfo=UTC)
USER = Attribution("user", NOW)


@pytest.fixture
def database():
    with Database(":memory:") as opened:
        yield opened


@pytest.fixture
def agent(database):
    """One that has lived: edits, undone ones too, passages, a deleted one, a flush, a timer, odd texts."""
    return lived_in(database)


def lived_in(database):
    keep = FunctionCall("archival_memory_insert", {"content": "The boat is blue. 🎉"})
    agent = scripted_agent(
        [append("Has a dog."), say("Noted."), keep, say("Kept.")],
        database=database,
        window=6_000,
        embedder=HashEmbedder(),
    )
    filled(agent, 1.01)
    agent.queue_manager.flush()
    agent.backend.script[:] = [append("Has a dog."), say("Noted."), keep, say("Kept.")]
    list(agent.send('I have a dog. "<|im_end|>" \\ é'))
    list(agent.send("Keep this: The boat is blue. 🎉"))
    agent.archival.insert_many([f"Chapter {n}." for n in range(5)], source="book.md", tags=["t"], by=USER)
    agent.archival.delete([3], USER)
    agent.add_block(Block("work", "Tasks.", "Paint.", 60, read_only=True))
    agent.set_block("work", "Paint the boat.")
    agent.undo("block")
    agent.schedule("tea", "every 2h", "Drink tea.")
    agent.recall.search("dog")
    return agent


@contextmanager
def exported(database, agent, path):
    write_export(database, agent.id, path)
    with Export(path) as export:
        yield export


def seen(agent):
    """Everything of an agent that a user or its model can tell."""
    found = [
        [(m.role, m.kind, m.text, m.created_at) for m in agent.recall.search(query).items]
        for query in ("dog", "I have a dog", "", "nothing of it")
    ]
    passages = [
        [(p.text, p.source, p.tags, p.created_at) for p in agent.archival.search(query).items]
        for query in ("boat", "Chapter 4", "")
    ]
    edits = [(e.number, e.kind, e.item, e.author, e.reverts, e.created_at) for e in agent.history()]
    return (
        prompt_text(agent),
        found,
        passages,
        edits,
        agent.archival.deleted_count(),
        [(t.name, t.note, t.next_due_at) for t in agent.timers()],
        [s.text for s in agent.summaries()],
        len(agent.inferences()),
    )


@pytest.mark.parametrize("others", [0, 2])
def test_an_agent_comes_back_as_it_was(database, agent, tmp_path, others):
    with Database(":memory:") as other:
        for _ in range(others):
            lived_in(other)
            other.execute("UPDATE agent SET name = 'other' || id")
        with exported(database, agent, tmp_path / "ana.localmem") as export:
            agent_id, name = import_agent(other, export)
        assert name == "ana"
        again = make_agent(ScriptedBackend(window=6_000), database=other, embedder=HashEmbedder())
        assert again.id == agent_id
        assert seen(again) == seen(agent)
        assert other.rows("PRAGMA foreign_key_check") == []
        assert EditLog(other).first_broken(agent_id) is None
        assert again.archival.stale_count() == 0


def test_what_was_done_is_undone_after_an_import(database, agent, tmp_path):
    with Database(":memory:") as other:
        lived_in(other)
        with exported(database, agent, tmp_path / "ana.localmem") as export:
            agent_id, _ = import_agent(other, export, "eva")
        archival = Archival(other, agent_id, HashEmbedder(), None)
        history = History(other, agent_id, archival)
        mine = Archival(other, 1, None, None).count()

        history.undo(USER, "passages")
        assert "Chapter 1." in [passage.text for passage in archival.list(page_size=50).items]
        history.undo(USER, "passages")
        assert [passage.text for passage in archival.list(page_size=50).items] == ["The boat is blue. 🎉"]
        history.redo(USER, "block", "work")
        assert AgentStore(other).blocks(agent_id)[2].value == "Paint the boat."
        assert Archival(other, 1, None, None).count() == mine


def test_no_later_passage_gets_the_number_of_one_that_is_gone(database, agent, tmp_path):
    agent.archival.delete([6], USER)
    agent.archival.purge()
    with Database(":memory:") as other, exported(database, agent, tmp_path / "a.localmem") as export:
        agent_id, _ = import_agent(other, export)
        archival = Archival(other, agent_id, None, None)
        added = archival.insert("New.", by=USER)
        named = [
            last
            for e in EditLog(other).edits(agent_id, kind="passages")
            for s in (e.before, e.after)
            if s
            for _, last in s["ids"]
        ]
        assert added.id > max(named[2:])


def test_an_agent_is_imported_beside_itself(database, agent, tmp_path):
    with exported(database, agent, tmp_path / "ana.localmem") as export:
        with pytest.raises(LocalmemError, match="already") as caught:
            import_agent(database, export)
        assert "--name" in caught.value.hint
        for number in range(3):
            import_agent(database, export, f"ana{number}")
    agent.set_block("human", "Changed.")
    assert [store.name for store in AgentStore(database).list()] == ["ana", "ana0", "ana1", "ana2"]
    assert AgentStore(database).blocks(AgentStore(database).get("ana1").id)[1].value == "Has a dog."
    last = AgentStore(database).get("ana2").id
    assert [m.text for m in Recall(database, last, HashEmbedder(), None).search("dog").items]


def test_the_file_is_private_and_whole(database, agent, tmp_path):
    path = tmp_path / "ana.localmem"
    manifest = write_export(database, agent.id, path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["ana.localmem"]
    assert manifest.rows == sum(member.rows for member in manifest.members.values())
    assert manifest.members["message"].rows == agent.recall.count()
    with zipfile.ZipFile(path) as archive:
        told = json.loads(archive.read(MANIFEST))
        assert told["agent"] == "ana"
        for table, member in told["members"].items():
            assert hashlib.sha256(archive.read(f"{table}.jsonl")).hexdigest() == member["sha256"]


def test_no_token_ids_are_written(database, agent, tmp_path):
    with exported(database, agent, tmp_path / "a.localmem") as export:
        assert all("token_ids" not in row for row in export.rows("message"))


def test_a_folder_that_cannot_be_written_to_is_one_error(database, agent, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalmemError, match="cannot write"):
        write_export(database, agent.id, tmp_path / "file" / "ana.localmem")


# -- files that are refused


def rewritten(path, changes, *, honest=True, drop=(), extra=()):
    """The export at `path` with the text of some parts changed; the manifest told of it where `honest`."""
    with zipfile.ZipFile(path) as archive:
        parts = {info.filename: archive.read(info.filename) for info in archive.infolist()}
    for name, change in changes.items():
        parts[name] = change(parts[name])
    if honest:
        manifest = json.loads(parts[MANIFEST])
        for table in TABLES:
            text = parts[f"{table}.jsonl"]
            manifest["members"][table] = {
                "rows": text.count(b"\n"),
                "bytes": len(text),
                "sha256": hashlib.sha256(text).hexdigest(),
            }
        parts[MANIFEST] = json.dumps(manifest).encode()
    bad = path.with_name("bad.localmem")
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            if name not in drop:
                archive.writestr(name, text)
        for name, text in extra:
            archive.writestr(name, text)
    return bad


def rows(change):
    """A change of every row of a part."""

    def changed(text):
        made = [change(json.loads(line), number) for number, line in enumerate(text.splitlines())]
        return b"".join(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n" for row in made)

    return changed


def setting(**values):
    return rows(lambda row, _: {**row, **values})


def first(**values):
    return rows(lambda row, number: {**row, **values} if number == 0 else row)


HOSTILE = {
    "another agent's message": ({"queue.jsonl": first(message_id=99_999)}, "do not fit together"),
    "another agent's step": ({"inference.jsonl": first(step_id=99_999)}, "belongs to no step|do not fit together"),
    "another agent's passage": (
        {"embedding.jsonl": rows(lambda row, _: {**row, "item_id": row["item_id"] + 900})},
        "belongs to no",
    ),
    "an id that is none": ({"message.jsonl": first(id=-5)}, "out of range"),
    "an id without end": ({"message.jsonl": first(id=1 << 61)}, "out of range"),
    "a number too long": ({"message.jsonl": first(tokens=10**400)}, "is no integer|not JSON"),
    "a flag for a number": ({"message.jsonl": first(tokens=True)}, "is no integer"),
    "ids that fall": ({"message.jsonl": setting(id=1)}, "do not rise"),
    "a role that is none": ({"message.jsonl": first(role="root")}, "cannot be 'root'"),
    "a kind that is none": ({"message.jsonl": first(kind="order")}, "cannot be 'order'"),
    "a moment that is none": ({"message.jsonl": first(created_at="yesterday")}, "is no moment"),
    "a moment without a zone": ({"passage.jsonl": first(created_at="2024-01-01T00:00:00")}, "is no moment"),
    "tags that are none": ({"passage.jsonl": first(tags="{}")}, "tags"),
    "a column too many": ({"block.jsonl": first(agent_id=1)}, "columns"),
    "a text that is none": ({"block.jsonl": first(value=["x"])}, "is no text"),
    "a vector that is none": ({"embedding.jsonl": first(vector="!!!")}, "base64"),
    "a row that is none": ({"timer.jsonl": lambda _: b"[1, 2]\n"}, "columns"),
    "no JSON": ({"timer.jsonl": lambda _: b"{" * 100_000 + b"\n"}, "not JSON"),
    "two agents": ({"agent.jsonl": lambda text: text + text}, "more than one agent"),
    "no agent": ({"agent.jsonl": lambda _: b""}, "no agent"),
    "two blocks of a label": ({"block.jsonl": setting(label="human")}, "do not fit together"),
    "an edit that was changed": ({"edit.jsonl": first(author="model")}, "edit 1 is not as it was written"),
    "an edit that is missing": ({"edit.jsonl": lambda text: text.split(b"\n", 1)[1]}, "edit 1 is not"),
    "a name that is none": ({MANIFEST: lambda text: text.replace(b'"ana"', b'"../x"')}, "cannot be the name"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_and_nothing_changes(database, agent, tmp_path, case):
    changes, why = HOSTILE[case]
    write_export(database, agent.id, tmp_path / "ana.localmem")
    bad = rewritten(tmp_path / "ana.localmem", changes)
    with Database(":memory:") as other:
        with pytest.raises(LocalmemError, match=why), Export(bad) as export:
            import_agent(other, export)
        tables = [table for table in TABLES if table != "agent"]
        assert AgentStore(other).list() == []
        assert [other.scalar(f"SELECT COUNT(*) FROM {table}") for table in tables] == [0] * len(tables)


@pytest.mark.parametrize(
    "change",
    [
        {"queue.jsonl": first(message_id=0)},
        {"embedding.jsonl": rows(lambda row, _: {**row, "item_id": 0} if row["store"] == "message" else row)},
        {"inference.jsonl": first(step_id=0)},
        {"message.jsonl": rows(lambda row, number: {**row, "step_id": 0} if number == 5 else row)},
    ],
)
def test_no_row_reaches_another_agent(database, agent, tmp_path, change):
    write_export(database, agent.id, tmp_path / "ana.localmem")
    bad = rewritten(tmp_path / "ana.localmem", change)
    with Database(":memory:") as other:
        lived_in(other)  # its last ids are just below the first that are given to the import
        other.execute("UPDATE agent SET name = 'eva'")
        with pytest.raises(LocalmemError, match="of its own|do not fit together"), Export(bad) as export:
            import_agent(other, export)
        assert [row.name for row in AgentStore(other).list()] == ["eva"]


def sealed(edits):
    """Edits as a file of another's making could have them: the digests fit."""
    from localmem.storage.edit_log import SEALED
    from localmem.storage.schema import seal

    def changed(_):
        digest, lines = b"", []
        for number, edit in enumerate(edits, 1):
            row = {
                "number": number, "kind": "block", "item": "human", "before": None, "after": None, "author": "user",
                "step_id": None, "reverts": None, "created_at": "2024-01-20T12:00:00.000000+00:00", **edit,
            }  # fmt: skip
            digest = seal(digest, *(row[name] for name in SEALED))
            lines.append(json.dumps({**row, "digest": base64.b64encode(digest).decode()}).encode() + b"\n")
        return b"".join(lines)

    return changed


@pytest.mark.parametrize(
    "edit",
    [
        {"after": "{"},
        {"kind": "passages", "item": ""},
        {
            "kind": "passages",
            "item": "",
            "before": '{"ids": [[1, 1]], "source": null}',
            "after": '{"ids": [[2, 2]], "source": null}',
        },
        {"kind": "setting", "item": "model", "after": '{"name": "x"}'},
        {"after": "[]"},
        {"after": '{"value": "x"}'},
        {"kind": "passages", "item": "", "after": '{"ids": [[1, 4611686018427387904]], "source": null}'},
        {"kind": "passages", "item": "", "after": '{"ids": [[1, 500000000000]], "source": null}'},
        {"kind": "passages", "item": "", "after": '{"ids": [[3, 2]], "source": null}'},
        {"kind": "passages", "item": "", "after": '{"ids": 7, "source": null}'},
        {"kind": "summary", "item": "", "after": '{"text": 7}'},
        {"kind": "setting", "item": "model", "after": '{"nome": "x"}'},
        {"kind": "setting", "item": "pause of timers", "after": '{"until": "never"}'},
    ],
)
def test_an_edit_that_could_not_be_undone_is_refused(database, agent, tmp_path, edit):
    write_export(database, agent.id, tmp_path / "ana.localmem")
    bad = rewritten(tmp_path / "ana.localmem", {"edit.jsonl": sealed([edit])})
    with Database(":memory:") as other, pytest.raises(LocalmemError, match="refused"), Export(bad) as export:
        import_agent(other, export)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"changes": {"message.jsonl": lambda text: text[:-5]}, "honest": False}, "damaged"),
        ({"changes": {"message.jsonl": lambda text: text + b"{}\n"}, "honest": False}, "damaged"),
        ({"changes": {}, "drop": ["queue.jsonl"]}, "parts"),
        ({"changes": {}, "extra": [("../../etc/passwd", b"x")]}, "parts"),
        ({"changes": {}, "extra": [("/etc/passwd", b"x")]}, "parts"),
        ({"changes": {MANIFEST: lambda _: b"{}"}, "honest": False}, "manifest"),
        ({"changes": {MANIFEST: lambda _: b"[" * 100_000}, "honest": False}, "manifest"),
        (
            {"changes": {MANIFEST: lambda text: text.replace(b'"localmem": 1', b'"localmem": 2')}, "honest": False},
            "format",
        ),
    ],
)
def test_a_damaged_file_is_refused(database, agent, tmp_path, how, why):
    write_export(database, agent.id, tmp_path / "ana.localmem")
    bad = rewritten(tmp_path / "ana.localmem", **how)
    with pytest.raises(LocalmemError, match=why):
        Export(bad)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(database, agent, tmp_path):
    write_export(database, agent.id, tmp_path / "ana.localmem")
    bad = rewritten(tmp_path / "ana.localmem", {"message.jsonl": lambda _: b" " * 60_000_000})
    with pytest.raises(LocalmemError, match="unpack"):
        Export(bad)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"SQLite format 3\0" * 100, b"\xff" * 4_000])
def test_what_is_no_export_is_refused(tmp_path, content):
    path = tmp_path / "x.localmem"
    path.write_bytes(content)
    with pytest.raises(LocalmemError, match="no export"):
        Export(path)
    with pytest.raises(LocalmemError, match="there is no file"):
        Export(tmp_path / "y.localmem")
    with pytest.raises(LocalmemError, match="cannot read"):
        Export(tmp_path)


def test_a_zip_of_the_future_is_refused(database, agent, tmp_path):
    path = tmp_path / "ana.localmem"
    write_export(database, agent.id, path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 255  # the version that is needed to read it
    path.write_bytes(content)
    with pytest.raises(LocalmemError, match=r"is refused: it is no export .*zip file version 25\.5"):
        Export(path)


def test_every_flipped_byte_is_refused_or_harmless(database, agent, tmp_path):
    path = tmp_path / "ana.localmem"
    write_export(database, agent.id, path)
    content = path.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 150)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        with Database(":memory:") as other:
            try:
                with Export(path) as export:
                    import_agent(other, export)
            except LocalmemError:
                assert AgentStore(other).list() == []
