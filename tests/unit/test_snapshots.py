"""Snapshots on disk: what is found is what was saved, or nothing, whatever happened to the folder."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localmem.backend.snapshots import Snapshot, SnapshotStore, forget
from localmem.errors import BackendError

IDS = (1, 2, 3, 4, 5, 6, 7, 8)
PARAMETERS: dict[str, str | int] = {"n_ctx": 2048, "type_k": "f16", "build": "0.3.36"}


class Payload:
    """Stands in for llama.cpp's file: the ids as JSON, then filling up to `size_bytes`."""

    def __init__(self, ids: tuple[int, ...], size_bytes: int = 200) -> None:
        self.content = json.dumps(list(ids)).encode().ljust(size_bytes)
        self.written: list[Path] = []

    def write(self, path: Path) -> int:
        self.written.append(path)
        return path.write_bytes(self.content)


class Reader:
    """Loads such a file, and remembers what it was given."""

    def __init__(self) -> None:
        self.read: list[Path] = []

    def __call__(self, path: Path) -> list[int]:
        self.read.append(path)
        return json.loads(path.read_bytes())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


@pytest.fixture
def store(folder: Path, model: Path) -> SnapshotStore:
    return open_store(folder, model)


def open_store(
    folder: Path, model: Path, *, parameters: Mapping[str, str | int] = PARAMETERS, limit_bytes: int = 1 << 20
) -> SnapshotStore:
    return SnapshotStore(folder, model=model, parameters=parameters, limit_bytes=limit_bytes)


def save(store: SnapshotStore, owner: str = "ana", ids: tuple[int, ...] = IDS, size_bytes: int = 200) -> bool:
    return store.save(owner, ids, Payload(ids, size_bytes).write)


def found(store: SnapshotStore, ids: tuple[int, ...] = IDS) -> Snapshot:
    snapshot = store.best(ids, least=1)
    assert snapshot is not None
    return snapshot


def owners(store: SnapshotStore, *ids: tuple[int, ...]) -> list[str]:
    return [snapshot.owner for snapshot in (store.best(each, least=1) for each in ids) if snapshot is not None]


def names(folder: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(suffix) and path.name != "models.json")


def payload(folder: Path) -> Path:
    (name,) = names(folder, ".kv")
    return folder / name


def note(folder: Path) -> Path:
    (name,) = names(folder, ".json")
    return folder / name


def age(path: Path, *, hours: float) -> None:
    then = time.time() - hours * 3600
    os.utime(path, (then, then))


def overwrite_unnoticed(path: Path) -> None:
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# What is found


def test_saved_snapshot_is_found_and_loaded_by_another_process_of_the_same_model(folder: Path, model: Path):
    assert save(open_store(folder, model))
    later = open_store(folder, model)
    snapshot = later.best((*IDS, 9, 10), least=8)
    assert snapshot is not None
    assert (snapshot.owner, snapshot.ids) == ("ana", IDS)
    assert later.load(snapshot, Reader()) == IDS


def test_the_snapshot_with_the_longest_common_beginning_is_best(store: SnapshotStore):
    save(store, "short", (1, 2, 3))
    save(store, "long", (1, 2, 3, 4, 9))
    save(store, "other", (2, 3, 4, 5))
    assert owners(store, (1, 2, 3, 4, 5), (2, 3, 7)) == ["long", "other"]


def test_of_equally_long_beginnings_the_smaller_snapshot_is_best(store: SnapshotStore):
    save(store, "large", (1, 2, 3, 4, 5, 6))
    save(store, "small", (1, 2, 3))
    assert found(store, (1, 2, 3, 7)).owner == "small"


@pytest.mark.parametrize(("least", "is_found"), [(0, True), (4, True), (5, False)])
def test_snapshot_is_found_from_the_least_common_beginning_on(store: SnapshotStore, least: int, is_found: bool):
    save(store, ids=(1, 2, 3, 4, 9))
    assert (store.best((1, 2, 3, 4, 5), least=least) is not None) == is_found


def test_nothing_in_common_is_not_found(store: SnapshotStore):
    save(store)
    assert store.best((9, 9), least=0) is None


def test_looking_reads_no_payload_and_each_note_once(store: SnapshotStore, folder: Path):
    save(store)
    first = found(store)
    overwrite_unnoticed(note(folder))
    overwrite_unnoticed(payload(folder))
    assert found(store) == first


def test_a_note_that_was_replaced_is_read_again(folder: Path, model: Path):
    reading, writing = open_store(folder, model), open_store(folder, model)
    save(writing)
    assert found(reading).ids == IDS
    save(writing, ids=(1, 2, 3, 4))
    assert found(reading).ids == (1, 2, 3, 4)


@pytest.mark.parametrize(
    "parameters",
    [{}, {**PARAMETERS, "n_ctx": 4096}, {**PARAMETERS, "type_k": "q8_0"}, {**PARAMETERS, "more": 1}, {"n_ctx": 2048}],
)
def test_other_parameters_find_nothing_and_lie_side_by_side(
    folder: Path, model: Path, parameters: dict[str, str | int]
):
    save(open_store(folder, model))
    other = open_store(folder, model, parameters=parameters)
    assert other.best(IDS, least=1) is None
    save(other)
    assert len(names(folder, ".kv")) == 2


def test_another_model_finds_nothing(folder: Path, model: Path, tmp_path: Path):
    save(open_store(folder, model))
    another = tmp_path / "another.gguf"
    another.write_bytes(b"Weights")
    other = open_store(folder, another)
    assert other.best(IDS, least=1) is None
    save(other, "bea", (7, 8, 9))
    assert other.best(IDS, least=1) is None
    assert found(other, (7, 8, 9)).owner == "bea"


def test_a_snapshot_of_other_parameters_is_not_loaded(folder: Path, model: Path):
    store = open_store(folder, model)
    save(store)
    reader = Reader()
    other = open_store(folder, model, parameters={**PARAMETERS, "type_k": "q8_0"})
    assert other.load(found(store), reader) == ()
    assert not reader.read


def test_model_replaced_while_it_runs_saves_and_finds_nothing(store: SnapshotStore, model: Path):
    save(store)
    beside = model.with_name("new.gguf")
    beside.write_bytes(b"weights of another model")
    beside.replace(model)
    assert store.best(IDS, least=1) is None
    assert not save(store, "bea", (7, 8))


def test_missing_model_saves_and_finds_nothing(folder: Path, tmp_path: Path):
    store = open_store(folder, tmp_path / "gone.gguf")
    assert not save(store)
    assert store.best(IDS, least=1) is None


def test_looking_does_not_hash_the_model_and_saving_remembers_it(store: SnapshotStore, folder: Path, model: Path):
    assert store.best(IDS, least=1) is None
    assert not folder.exists()
    save(store)
    (remembered,) = json.loads((folder / "models.json").read_bytes()).values()
    assert remembered["known"] == hashlib.sha256(model.read_bytes()).hexdigest()


def test_limit_zero_saves_and_finds_nothing(folder: Path, model: Path):
    off = open_store(folder, model, limit_bytes=0)
    assert not save(off)
    assert not folder.exists()
    save(open_store(folder, model))
    assert off.best(IDS, least=1) is None


@given(owner=st.text(st.characters(exclude_categories=())))
def test_owner_may_have_any_characters(tmp_path_factory: pytest.TempPathFactory, owner: str):
    root = tmp_path_factory.mktemp("owners")
    (root / "model.gguf").write_bytes(b"weights")
    store = open_store(root / "snapshots", root / "model.gguf")
    assert save(store, owner)
    assert found(open_store(root / "snapshots", root / "model.gguf")).owner == owner


# What is saved


def test_a_newer_snapshot_replaces_the_owners_older_one(store: SnapshotStore, folder: Path):
    save(store)
    assert save(store, ids=(1, 2, 9))
    assert found(store).ids == (1, 2, 9)
    assert (len(names(folder, ".json")), len(names(folder, ".kv")), names(folder, ".part")) == (1, 1, [])


def test_what_is_held_already_is_not_written_again(store: SnapshotStore, folder: Path):
    save(store)
    age(payload(folder), hours=5)
    again = Payload(IDS)
    assert store.save("ana", IDS, again.write)
    assert not again.written
    assert payload(folder).stat().st_mtime > time.time() - 3600


def test_no_ids_are_not_saved(store: SnapshotStore):
    assert not save(store, ids=())


def test_files_are_private_from_the_first_byte_on(store: SnapshotStore, folder: Path):
    folder.mkdir(mode=0o755)
    modes: list[int] = []

    def write(path: Path) -> int:
        modes.append(stat.S_IMODE(path.stat().st_mode))
        return path.write_bytes(b"[1]")

    mask = os.umask(0)
    store.save("ana", (1,), write)
    os.umask(mask)
    modes += [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()]
    assert set(modes) == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not any(b"ana" in os.fsencode(path.name) for path in folder.iterdir())


def test_the_snapshots_used_longest_ago_leave_until_the_folder_is_within_its_limit(folder: Path, model: Path):
    other = open_store(folder, model, parameters={"n_ctx": 512}, limit_bytes=1 << 20)
    save(other, "oldest", (9,), 3000)
    age(payload(folder), hours=9)
    store = open_store(folder, model, limit_bytes=15_000)
    save(store, "read again", (1,), 3000)
    save(store, "old", (2,), 3000)
    age(found(store, (1,)).path, hours=8)
    age(found(store, (2,)).path, hours=7)
    assert store.load(found(store, (1,)), Reader()) == (1,)
    save(store, "new", (3,), 6000)
    assert owners(other, (9,)) == []
    save(store, "newest", (4,), 3000)
    assert owners(store, (1,), (2,), (3,), (4,)) == ["read again", "new", "newest"]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 15_000


def test_what_was_just_written_never_leaves(folder: Path, model: Path):
    store = open_store(folder, model, limit_bytes=2000)
    save(store, "old", (1,), 1200)
    os.utime(payload(folder), (time.time() + 9999, time.time() + 9999))  # a clock that was set back
    assert save(store, "new", (2,), 1200)
    assert owners(store, (1,), (2,)) == ["new"]


def test_larger_than_the_limit_is_not_kept_and_said_once(folder: Path, model: Path, caplog: pytest.LogCaptureFixture):
    store = open_store(folder, model, limit_bytes=2000)
    save(store)
    assert not save(store, ids=(1, 2), size_bytes=2000)
    assert not save(store, ids=(1, 2), size_bytes=2000)
    assert found(store).ids == IDS
    assert names(folder, ".part") == []
    assert len(caplog.records) == 1


def full_disk(path: Path) -> int:
    path.write_bytes(b"the first half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refusing_library(path: Path) -> int:
    path.write_bytes(b"the first half")
    raise BackendError("no")


def silent_failure(path: Path) -> int:
    path.write_bytes(b"the first half")
    return 0


def lost_buffer(path: Path) -> int:
    """llama.cpp counts what it gave to the C library, which may fail to write the last of it as the file is closed."""
    return path.write_bytes(b"the first half") * 2


def vanished(path: Path) -> int:
    path.unlink()
    return 5


@pytest.mark.parametrize("write", [full_disk, refusing_library, silent_failure, lost_buffer, vanished])
def test_failed_write_leaves_the_old_snapshot_and_is_said_once(
    store: SnapshotStore, folder: Path, write: Callable[[Path], int], caplog: pytest.LogCaptureFixture
):
    save(store)
    before = sorted(folder.iterdir())
    assert not store.save("ana", (1, 2), write)
    assert not store.save("bea", (1, 2), write)
    assert sorted(folder.iterdir()) == before
    assert store.load(found(store), Reader()) == IDS
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_interrupt_while_saving_passes_and_leaves_the_old_snapshot(store: SnapshotStore, folder: Path):
    save(store)
    before = sorted(folder.iterdir())

    def interrupted(path: Path) -> int:
        path.write_bytes(b"the first half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save("ana", (1, 2), interrupted)
    assert sorted(folder.iterdir()) == before
    assert store.load(found(store), Reader()) == IDS


def test_folder_that_is_a_file_is_a_miss_and_said_once(
    store: SnapshotStore, folder: Path, caplog: pytest.LogCaptureFixture
):
    folder.write_bytes(b"not a folder")
    assert store.best(IDS, least=1) is None
    assert not save(store)
    assert not save(store)
    assert folder.read_bytes() == b"not a folder"
    assert len(caplog.records) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_may_only_be_read_still_serves_its_snapshots(store: SnapshotStore, folder: Path):
    save(store)
    folder.chmod(0o500)
    payload(folder).chmod(0o400)
    assert not save(store, ids=(1, 2))
    assert store.load(found(store), Reader()) == IDS
    folder.chmod(0o700)


# What others leave in the folder


def test_old_leftovers_are_removed_and_new_ones_are_not(store: SnapshotStore, folder: Path):
    save(store)
    key = note(folder).stem
    dead, lonely_note, lonely_payload = f"{key}.abc_123.part", f"{'a' * 32}.json", f"{'b' * 32}-{'0' * 16}.kv"
    alive = [f"{key}.xyz.part", f"{'c' * 32}.json", f"{'d' * 32}-{'0' * 16}.kv"]
    foreign = ["notes.txt", "README.part", f"{'A' * 32}.json", "x.kv"]
    ours = {path.name for path in folder.iterdir()}
    created = [folder / name for name in (dead, lonely_note, lonely_payload, *foreign, *alive)]
    assert [path.write_bytes(b"{}") for path in created]
    [age(path, hours=2) for path in created[: -len(alive)]]
    save(store)
    assert {path.name for path in folder.iterdir()} == ours | set(foreign) | set(alive)


def test_a_snapshot_however_old_is_no_leftover(store: SnapshotStore, folder: Path):
    save(store)
    age(payload(folder), hours=9999)
    age(note(folder), hours=9999)
    save(store, "bea", (7,))
    assert found(store).owner == "ana"


def test_links_and_folders_with_our_names_are_left_alone(store: SnapshotStore, folder: Path, tmp_path: Path):
    save(store)
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    age(outside, hours=2)
    note_link, part_link = folder / f"{'e' * 32}.json", folder / f"{'e' * 32}.x.part"
    note_link.symlink_to(outside)
    part_link.symlink_to(outside)
    (folder / f"{'f' * 32}.json").mkdir()
    assert found(store).ids == IDS
    save(store, "bea", (7,))
    assert note_link.is_symlink()
    assert part_link.is_symlink()
    assert outside.read_bytes() == b"mine"


def test_payload_that_became_a_link_is_not_followed(store: SnapshotStore, folder: Path, tmp_path: Path):
    save(store)
    snapshot, elsewhere = found(store), tmp_path / "elsewhere"
    payload(folder).rename(elsewhere)
    snapshot.path.symlink_to(elsewhere)
    assert store.best(IDS, least=1) is None
    reader = Reader()
    assert store.load(snapshot, reader) == ()
    assert not reader.read
    assert elsewhere.exists()


def test_payload_that_became_a_pipe_does_not_block(store: SnapshotStore):
    save(store)
    snapshot = found(store)
    snapshot.path.unlink()
    os.mkfifo(snapshot.path)
    assert store.load(snapshot, Reader()) == ()


@pytest.mark.parametrize("gone", ["payload", "note", "both", "folder"])
def test_what_vanishes_between_looking_and_loading_is_a_silent_miss(
    store: SnapshotStore, folder: Path, gone: str, caplog: pytest.LogCaptureFixture
):
    save(store)
    snapshot = found(store)
    taken = {"payload": [payload(folder)], "note": [note(folder)], "both": [payload(folder), note(folder)]}
    [path.unlink() for path in taken.get(gone, folder.iterdir())]
    assert store.load(snapshot, Reader()) == ()
    assert store.best(IDS, least=1) is None
    assert not caplog.records
    assert save(store)
    assert store.load(found(store), Reader()) == IDS


def test_what_vanishes_while_it_is_read_is_a_silent_miss(store: SnapshotStore, caplog: pytest.LogCaptureFixture):
    save(store)

    def read(path: Path) -> list[int]:
        path.unlink()
        return []

    assert store.load(found(store), read) == ()
    assert not caplog.records


def test_snapshot_replaced_between_looking_and_loading_is_a_miss(folder: Path, model: Path):
    looking, writing = open_store(folder, model), open_store(folder, model)
    save(writing)
    snapshot = found(looking)
    save(writing, ids=(1, 2, 3))
    reader = Reader()
    assert looking.load(snapshot, reader) == ()
    assert not reader.read
    assert looking.load(replace(snapshot, path=found(looking).path), reader) == ()


# Damage


def first_bit(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def last_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 128])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "first bit": first_bit,
    "last bit": last_bit,
    "truncated": lambda content: content[:-1],
    "longer": lambda content: content + b"x",
    "empty": lambda _: b"",
    "random": lambda content: os.urandom(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_payload_is_never_read_and_is_deleted(
    store: SnapshotStore, folder: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
):
    save(store)
    snapshot, reader = found(store), Reader()
    snapshot.path.write_bytes(damage(snapshot.path.read_bytes()))
    assert store.load(snapshot, reader) == ()
    assert store.load(snapshot, reader) == ()
    assert not reader.read
    assert names(folder, "") == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert save(store)
    assert store.load(found(store), reader) == IDS


def reads_other_ids(_: Path) -> list[int]:
    return [9, 9]


def reads_nothing(_: Path) -> list[int]:
    return []


def reading_fails(_: Path) -> list[int]:
    raise BackendError("no")


@pytest.mark.parametrize("read", [reads_other_ids, reads_nothing, reading_fails])
def test_payload_the_library_refuses_is_deleted_and_said(
    store: SnapshotStore, folder: Path, read: Callable[[Path], list[int]], caplog: pytest.LogCaptureFixture
):
    save(store)
    assert store.load(found(store), read) == ()
    assert names(folder, "") == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def sealed(fields: dict[str, object]) -> dict[str, object]:
    """The note with the checksum of whatever ids it has now."""
    ids = fields["ids"]
    assert isinstance(ids, list)
    packed = b"".join(int(token).to_bytes(4, "little") for token in ids)
    return fields | {"ids_sha256": hashlib.sha256(packed).hexdigest()}


WRONG_NOTES: dict[str, Callable[[dict[str, object]], object]] = {
    "other ids": lambda note: note | {"ids": [1, 2, 3]},
    "no ids": lambda note: sealed(note | {"ids": []}),
    "ids are text": lambda note: note | {"ids": "12345678"},
    "an id is a float": lambda note: note | {"ids": [1.0, *IDS[1:]]},
    "an id is true": lambda note: note | {"ids": [True, *IDS[1:]]},
    "an id is negative": lambda note: note | {"ids": [-1, *IDS[1:]]},
    "an id is huge": lambda note: note | {"ids": [1 << 40, *IDS[1:]]},
    "other owner": lambda note: note | {"owner": "bea"},
    "owner is null": lambda note: note | {"owner": None},
    "owner is no escape": lambda note: note | {"owner": "\\u12"},
    "owner is not ascii": lambda note: note | {"owner": "ä"},
    "other format": lambda note: note | {"format": 2},
    "format is true": lambda note: note | {"format": True},
    "other model": lambda note: note | {"model_sha256": "0" * 64},
    "model is a path": lambda note: note | {"model_sha256": "../../model"},
    "other parameters": lambda note: note | {"parameters": {**PARAMETERS, "type_k": "q8_0"}},
    "parameters are a list": lambda note: note | {"parameters": []},
    "other payload": lambda note: note | {"payload_sha256": "0" * 64},
    "payload is a path": lambda note: note | {"payload_sha256": "../" * 21 + "x"},
    "other size": lambda note: note | {"payload_bytes": 199},
    "negative size": lambda note: note | {"payload_bytes": -1},
    "size is text": lambda note: note | {"payload_bytes": "200"},
    "a field more": lambda note: note | {"more": 1},
    "a field less": lambda note: {key: value for key, value in note.items() if key != "ids_sha256"},
    "a list": lambda note: [note],
    "null": lambda _: None,
}


@pytest.mark.parametrize("change", WRONG_NOTES.values(), ids=WRONG_NOTES)
def test_note_that_is_not_true_is_not_used(
    store: SnapshotStore, folder: Path, change: Callable[[dict[str, object]], object]
):
    save(store)
    snapshot, reader = found(store), Reader()
    note(folder).write_text(json.dumps(change(json.loads(note(folder).read_bytes()))))
    assert store.best(IDS, least=1) is None
    assert store.load(snapshot, reader) == ()
    assert not reader.read
    assert save(store)
    assert store.load(found(store), reader) == IDS


def test_note_whose_ids_are_not_those_of_the_payload_is_found_out_when_it_is_read(store: SnapshotStore, folder: Path):
    save(store)
    note(folder).write_text(json.dumps(sealed(json.loads(note(folder).read_bytes()) | {"ids": [1, 2, 3]})))
    assert store.load(found(store, (1, 2, 3)), Reader()) == ()
    assert store.best(IDS, least=1) is None


def test_note_under_another_name_is_not_used(store: SnapshotStore, folder: Path):
    save(store)
    note(folder).rename(folder / f"{'a' * 32}.json")
    assert store.best(IDS, least=1) is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 10_000, b" " * (1 << 24) + b"{}"])
def test_note_that_is_no_note_is_not_used(store: SnapshotStore, folder: Path, content: bytes):
    save(store)
    note(folder).write_bytes(content)
    assert store.best(IDS, least=1) is None


@given(data=st.data())
def test_whatever_a_note_becomes_only_what_was_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    root = tmp_path_factory.mktemp("notes")
    (root / "model.gguf").write_bytes(b"weights")
    store = open_store(root / "snapshots", root / "model.gguf")
    save(store)
    path = note(root / "snapshots")
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(content)
    snapshot = store.best(IDS, least=1)
    loaded = store.load(snapshot, Reader()) if snapshot else ()
    assert loaded in ((), IDS)


# A kill

KILLED = """
import json, os, shutil, sys
from pathlib import Path
from localmem.backend.snapshots import SnapshotStore

root = Path(sys.argv[1])
old, new = (1, 2, 3, 4), (1, 2, 3, 4, 5, 6)

def store(folder):
    return SnapshotStore(folder, model=root / "model.gguf", parameters={"n_ctx": 512}, limit_bytes=1000)

def writer(ids):
    return lambda path: path.write_bytes(json.dumps(ids).encode().ljust(300))

def save_and_die(folder, point):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        seen += 1
        if seen == point:
            os._exit(9)
    killed = store(folder)
    sys.addaudithook(hook)
    killed.save("ana", new, writer(new))
    os._exit(0)

def after_a_kill(point):
    folder = root / str(point)
    assert store(folder).save("bea", (9,), writer((9,))) and store(folder).save("ana", old, writer(old))
    child = os.fork()
    if not child:
        save_and_die(folder, point)
    _, status = os.waitpid(child, 0)
    reopened = store(folder)
    found = reopened.best(new, least=1)
    loaded = reopened.load(found, lambda path: json.loads(path.read_bytes())) if found else ()
    saved_again = reopened.save("ana", (1, 2), writer((1, 2))) and reopened.best((1, 2), least=2) is not None
    return os.waitstatus_to_exitcode(status), loaded, saved_again

outcomes = []
while not outcomes or outcomes[-1][0] == 9:
    outcomes.append(after_a_kill(len(outcomes) + 1))
json.dump(outcomes, sys.stdout)
"""


def test_a_kill_at_any_point_leaves_the_old_snapshot_the_new_one_or_none(model: Path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(model.parent)], capture_output=True, text=True, check=True, timeout=300
    )
    outcomes = json.loads(done.stdout)
    loaded = [tuple(ids) for _, ids, _ in outcomes]
    assert set(loaded) <= {(1, 2, 3, 4), (1, 2, 3, 4, 5, 6), ()}
    assert loaded[0] == (1, 2, 3, 4)
    assert loaded[-1] == (1, 2, 3, 4, 5, 6)
    assert all(saved_again for _, _, saved_again in outcomes)
    assert len(outcomes) > 10  # each file operation is a point


def test_the_folder_may_be_deleted_at_any_time(store: SnapshotStore, folder: Path):
    save(store)
    shutil.rmtree(folder)
    assert store.best(IDS, least=1) is None
    assert save(store)
    assert found(store).ids == IDS


def test_forgotten_owner_leaves_nothing_of_any_model_and_others_stay(folder: Path, model: Path, tmp_path: Path):
    second = tmp_path / "second.gguf"
    second.write_bytes(b"other weights")
    for path in (model, second):
        save(open_store(folder, path), "ana", IDS)
        save(open_store(folder, path), "ben", (9, *IDS))
    assert forget(folder, "ana") == 2
    assert len(names(folder, ".json")) == len(names(folder, ".kv")) == 2
    store = open_store(folder, model)
    assert owners(store, IDS, (9, *IDS)) == ["ben"]
    assert forget(tmp_path / "nowhere", "ana") == 0
