"""Nobody else on the machine may read what is remembered, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import append, say

import localmem
from localmem.backend.scripted import ScriptedBackend
from localmem.bench.journal import JsonLines
from localmem.config import load_settings
from localmem.storage.database import Database
from localmem.storage.embedder import HashEmbedder
from localmem.storage.export import write_export
from localmem.storage.private import make_private_folder, open_private, write_private
from localmem.storage.vector_index import VectorIndex


@pytest.fixture
def no_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}


@pytest.mark.usefixtures("no_mask")
def test_everything_an_agent_leaves_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(VectorIndex.__init__.__kwdefaults__, "exact_limit", 8)  # else only thousands make an index
    home = tmp_path / "above" / "home"
    settings = load_settings(flags={"home": home, "window": 16_384, "embedder": "hash"}, environ={})
    backend = ScriptedBackend([append("Has a dog."), say("Noted.")])
    with localmem.open("ana", settings=settings, backend=backend, embedder=HashEmbedder()) as agent:
        list(agent.send("I have a dog."))
        agent.archival.insert_many([f"Passage {number}." for number in range(20)])
        agent.archival.search("passage")
        while_open = modes(home)
    with Database(settings.database) as database:
        write_export(database, 1, home / "kept" / "ana" / "x.localmem")
    JsonLines(home / "bench" / "x.jsonl").append({"a": 1})

    found = {**while_open, **modes(tmp_path)}
    assert {"localmem.db-wal", "locks/ana.owner.json"} <= set(while_open)
    assert any("/index/" in name for name in found)
    assert {name: mode for name, mode in found.items() if mode not in ("0o600", "0o700")} == {}


@pytest.mark.usefixtures("no_mask")
def test_what_is_there_already_stays_as_it_is(tmp_path: Path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").write_text("x")
    make_private_folder(tmp_path / "open" / "new" / "newer")
    write_private(tmp_path / "open" / "file", "y")
    with open_private(tmp_path / "open" / "new" / "made", "ab") as file:
        file.write(b"z")
    assert modes(tmp_path) == {
        "open": "0o777",
        "open/file": "0o666",
        "open/new": "0o700",
        "open/new/newer": "0o700",
        "open/new/made": "0o600",
    }
    assert (tmp_path / "open" / "file").read_text() == "y"


def test_a_file_where_a_folder_is_to_be_is_an_os_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(OSError):  # noqa: PT011  # of one of two kinds
            make_private_folder(path)
