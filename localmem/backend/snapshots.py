"""KV-cache sequences on disk: what a model has read of a window, so that reopening an agent does not read it again.

A snapshot is two files: the payload, which is llama.cpp's own sequence file, and a note, JSON, which says what the
payload holds and what it may be used with. llama.cpp trusts what is in its file, so a payload is handed to it only when
its size and sha256 are those of the note, and a note counts only for the very model and context parameters it names.

    KEY.json            the note; KEY is a hash of owner, model and parameters
    KEY-DIGEST.kv       the payload; named by its content, so that renaming the note switches from one to the next
    *.part              being written

Everything here is a cache: what is missing, damaged, stale or unwritable is a miss. Knows files and ids; what writes
and reads a payload is passed in.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from localmem.backend.kv_cache import common_prefix
from localmem.errors import BackendError
from localmem.models import remembered_sha256
from localmem.storage.private import make_private_folder

logger = logging.getLogger(__name__)

FORMAT = 1
"""Of notes and file names. Another format's snapshots are not used; they leave as the oldest do."""

MEMORY_NAME = "models.json"  # the sha256 of each model's file: see models.remembered_sha256
LEFTOVER_SECONDS = 3600  # nothing is written for so long: what is unfinished after it belongs to a dead process
_NOTE_LIMIT_BYTES = 1 << 24  # a note takes 7 bytes a token; more than this was not written here

_NOTE_NAME = re.compile(r"([0-9a-f]{32})\.json")
_PAYLOAD_NAME = re.compile(r"([0-9a-f]{32})-[0-9a-f]{16}\.kv")
_PART_NAME = re.compile(rf"(?:[0-9a-f]{{32}}|{re.escape(MEMORY_NAME)})\.[a-z0-9_]+\.part")  # as mkstemp names them


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One sequence on disk: llama.cpp's file, whose it is, and the ids it holds."""

    path: Path
    owner: str
    ids: tuple[int, ...]


class SnapshotStore:
    """The snapshots of one model under one set of context parameters, in a folder shared with all others.

    `parameters` is everything beside the weights that decides whether a payload fits: n_ctx, cache types, flash
    attention, the library's version. `limit_bytes` is for the whole folder; 0 turns snapshots off. Several processes
    may use the folder; one store is for one caller at a time. Nothing here raises for the state of the disk.
    """

    def __init__(self, folder: Path, *, model: Path, parameters: Mapping[str, str | int], limit_bytes: int) -> None:
        self._folder = folder
        self._model = model
        self._model_file = _identity(model)
        self._parameters = dict(parameters)
        self._limit_bytes = limit_bytes
        self._sha256: str | None = None
        self._notes: dict[str, tuple[tuple[int, ...], _Note | None]] = {}  # by name: the file's identity, what it says
        self._refused: set[str] = set()  # damaged payloads, in case they cannot be deleted
        self._has_warned = False

    def best(self, ids: Sequence[int], *, least: int) -> Snapshot | None:
        """The snapshot that begins with most of `ids`, if that are at least `least` tokens; of equals the shortest.

        Reads notes only, and each only once. `load` says whether the payload is what its note says.
        """
        found = [(common_prefix(snapshot.ids, ids), -len(snapshot.ids), snapshot) for snapshot in self._snapshots()]
        shared, _, snapshot = max(found, key=lambda candidate: candidate[:2], default=(0, 0, None))
        return snapshot if shared >= max(least, 1) else None

    def load(self, snapshot: Snapshot, read: Callable[[Path], list[int]]) -> tuple[int, ...]:
        """The ids that `read` put into the KV cache, or () when the snapshot is gone, damaged or refused.

        After () the sequence may hold anything: the caller empties it. A damaged or refused snapshot is deleted.
        """
        match = _PAYLOAD_NAME.fullmatch(snapshot.path.name)
        note = self._own_note(match[1], self._model_sha256(compute=False)) if match else None
        if note is None or self._folder / note.payload_name != snapshot.path or note.ids != snapshot.ids:
            return ()  # replaced or evicted since it was found
        try:
            problem = _difference(snapshot.path, note) or _refusal(snapshot.path, note, read)
            if not problem:
                self._mark_used(snapshot.path)
                return note.ids
        except FileNotFoundError:
            return ()
        except (OSError, BackendError) as error:
            problem = str(error)
        if _identity(snapshot.path) is None:
            return ()  # llama.cpp gives no reason: it may have been evicted by another process in between
        logger.warning("A snapshot of what the model has read is deleted, and the text read again: %s", problem)
        self._refused.add(snapshot.path.name)
        self._delete(note.key, [snapshot.path.name])
        return ()

    def save(self, owner: str, ids: Sequence[int], write: Callable[[Path], int]) -> bool:
        """Keep what `write` writes as the owner's only snapshot; False when it could not be kept.

        `write` is given a path and returns the bytes it wrote, 0 for failure; it is not called when the owner's
        snapshot holds just these ids already. A kill at any point leaves the old snapshot, the new one or none. The
        oldest of the folder leave until it is within its limit. The first time on a machine, the model's file is
        hashed (about 1 s a GB).
        """
        if not self._limit_bytes or not ids:
            return False
        try:
            self._make_folder()
            sha256 = self._model_sha256(compute=True)
            if sha256 is None:
                return False
            key = _key(owner, sha256, self._parameters)
            self._remove_leftovers()
            kept = self._touch(key, tuple(ids), sha256) or self._write(key, owner, tuple(ids), sha256, write)
            self._evict(spared=key)
        except (OSError, BackendError) as error:
            self._warn_once("What the model has read cannot be kept for the next start: %s", error)
            return False
        return kept

    def _snapshots(self) -> Iterator[Snapshot]:
        """Every snapshot of this model and these parameters whose payload is there in its full size."""
        sha256 = self._model_sha256(compute=False) if self._limit_bytes else None
        if sha256 is None:
            return
        files = self._files()
        self._notes = {name: known for name, known in self._notes.items() if name in files}
        for name in files:
            match = _NOTE_NAME.fullmatch(name)
            note = self._own_note(match[1], sha256) if match else None
            if note is None or note.payload_name in self._refused:
                continue
            payload = files.get(note.payload_name)
            if payload is not None and payload.st_size == note.payload_bytes:
                yield Snapshot(self._folder / note.payload_name, note.owner, note.ids)

    def _own_note(self, key: str, sha256: str | None) -> _Note | None:
        """The note of that key, when it is sound and for this model and these parameters."""
        note = self._note(f"{key}.json")
        if note is None or (note.model_sha256, note.parameters) != (sha256, self._parameters):
            return None
        return note if note.key == key else None  # else it was copied from another name

    def _note(self, name: str) -> _Note | None:
        """What a note says, parsed once; None when it is gone, damaged or of another format."""
        path = self._folder / name
        identity = _identity(path)
        if identity is None:
            return None
        known = self._notes.get(name)
        if known is None or known[0] != identity:
            known = self._notes[name] = (identity, _read_note(path))
        return known[1]

    def _files(self) -> dict[str, os.stat_result]:
        """Our regular files in the folder, by name; what others put there, and links, are left alone."""
        found: dict[str, os.stat_result] = {}
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if any(pattern.fullmatch(entry.name) for pattern in (_NOTE_NAME, _PAYLOAD_NAME, _PART_NAME)):
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found[entry.name] = status
        return found

    def _model_sha256(self, *, compute: bool) -> str | None:
        """The model's sha256; None when it is unknown, or when its file is not the one that was there at the start.

        The weights that are mapped are those of the start, whatever lies under their name by now.
        """
        try:
            sha256 = self._sha256 or remembered_sha256(self._model, self._folder / MEMORY_NAME, compute=compute)
        except OSError:
            return None
        if self._model_file is None or self._model_file != _identity(self._model):
            return None
        self._sha256 = sha256
        return sha256

    def _make_folder(self) -> None:
        """Make the folder private: a snapshot holds the conversation."""
        make_private_folder(self._folder)
        if stat.S_IMODE(self._folder.stat().st_mode) & 0o077:
            self._folder.chmod(0o700)

    def _touch(self, key: str, ids: tuple[int, ...], sha256: str) -> bool:
        """Mark the owner's snapshot as used if it holds these ids already."""
        note = self._own_note(key, sha256)
        if note is None or note.ids != ids or note.payload_name in self._refused:
            return False
        payload = self._files().get(note.payload_name)
        if payload is None or payload.st_size != note.payload_bytes:
            return False
        self._mark_used(self._folder / note.payload_name)
        return True

    def _mark_used(self, payload: Path) -> None:
        """The oldest payload is evicted first. Notes are not touched, so that they stay parsed."""
        with suppress(OSError):  # a folder that may only be read
            os.utime(payload)

    def _write(self, key: str, owner: str, ids: tuple[int, ...], sha256: str, write: Callable[[Path], int]) -> bool:
        with self._temporary(key) as part:
            written_bytes = write(part)
            payload_bytes, payload_sha256 = _sync(part)
            # llama.cpp does not look at whether closing the file wrote what was still in its buffer.
            if not written_bytes or written_bytes != payload_bytes:
                raise BackendError(f"llama.cpp could not write it ({payload_bytes:,} bytes came to the disk)")
            note = _Note(owner, sha256, self._parameters, ids, payload_bytes, payload_sha256)
            text = _note_text(note)
            if payload_bytes + len(text) > self._limit_bytes:
                self._warn_once(
                    "A snapshot of %s bytes is larger than all snapshots may be together (%s bytes); it is not kept",
                    f"{payload_bytes:,}",
                    f"{self._limit_bytes:,}",
                )
                return False
            self._put_in_place(part, note, text)
        others = [name for name in self._groups().get(key, {}) if name not in (note.payload_name, f"{key}.json")]
        self._unlink(others)
        return True

    def _put_in_place(self, part: Path, note: _Note, text: bytes) -> None:
        """Payload first: until the note is renamed, the old note names the old payload."""
        payload = self._folder / note.payload_name
        self._refused.discard(payload.name)
        part.replace(payload)
        try:
            with self._temporary(note.key) as note_part:
                note_part.write_bytes(text)
                _sync(note_part)
                note_part.replace(self._folder / f"{note.key}.json")
        except BaseException:
            self._unlink([payload.name])
            raise

    @contextmanager
    def _temporary(self, key: str) -> Generator[Path]:
        """An empty private file in the folder, gone afterwards unless it was renamed."""
        handle, name = tempfile.mkstemp(prefix=f"{key}.", suffix=".part", dir=self._folder)
        os.close(handle)  # writing to it by name keeps its mode, 0600
        try:
            yield Path(name)
        finally:
            self._unlink([name])

    def _groups(self) -> dict[str, dict[str, os.stat_result]]:
        """Key -> the files of that snapshot."""
        groups: dict[str, dict[str, os.stat_result]] = {}
        for name, status in self._files().items():
            if not name.endswith(".part"):
                groups.setdefault(name[:32], {})[name] = status
        return groups

    def _remove_leftovers(self) -> None:
        """Remove what dead processes left unfinished: temporary files, payloads without note, notes without payload."""
        before = time.time() - LEFTOVER_SECONDS
        unfinished = {name: status for name, status in self._files().items() if name.endswith(".part")}
        for group in self._groups().values():
            if len({name.rpartition(".")[2] for name in group}) == 1:
                unfinished |= group
        self._unlink([name for name, status in unfinished.items() if status.st_mtime < before])

    def _evict(self, *, spared: str) -> None:
        """Delete the snapshots that were used longest ago until the folder is within its limit."""
        groups = self._groups()
        used_bytes = sum(status.st_size for group in groups.values() for status in group.values())
        for key, group in sorted(groups.items(), key=lambda item: _last_use(item[1])):
            if used_bytes <= self._limit_bytes:
                break
            if key != spared:
                self._delete(key, [name for name in group if name.endswith(".kv")])
                used_bytes -= sum(status.st_size for status in group.values())

    def _delete(self, key: str, payloads: Sequence[str]) -> None:
        self._unlink([f"{key}.json", *payloads])  # the note first: a note alone would be looked at again and again

    def _unlink(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                logger.debug("%s cannot be deleted: %s", name, error.strerror)

    def _warn_once(self, message: str, *values: object) -> None:
        logger.log(logging.DEBUG if self._has_warned else logging.WARNING, message, *values)
        self._has_warned = True


def forget(folder: Path, owner: str) -> int:
    """Delete every snapshot of an owner, of whatever model; gives how many there were."""
    names = [path.name for path in folder.glob("*.json") if _NOTE_NAME.fullmatch(path.name)]
    gone = 0
    for name in names:
        note = _read_note(folder / name)
        if note is not None and note.owner == owner:
            for path in folder.glob(f"{name.removesuffix('.json')}*"):
                path.unlink(missing_ok=True)
            gone += 1
    return gone


@dataclass(frozen=True, slots=True)
class _Note:
    """What a payload holds and may be used with."""

    owner: str
    model_sha256: str
    parameters: dict[str, str | int]
    ids: tuple[int, ...]
    payload_bytes: int
    payload_sha256: str

    @property
    def key(self) -> str:
        return _key(self.owner, self.model_sha256, self.parameters)

    @property
    def payload_name(self) -> str:
        return f"{self.key}-{self.payload_sha256[:16]}.kv"


_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]


class _NoteFile(BaseModel):
    """A note as it lies on disk, where anyone may have written it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: int
    owner: str  # as unicode_escape: an owner need not be valid Unicode, and JSON must be
    model_sha256: _Sha256
    parameters: dict[str, bool | int | str]
    ids: Annotated[list[_TokenId], Field(min_length=1)]
    ids_sha256: _Sha256
    payload_bytes: Annotated[int, Field(gt=0)]
    payload_sha256: _Sha256

    def note(self) -> _Note:
        """Raises ValueError where the fields do not agree."""
        ids = tuple(self.ids)
        if self.format != FORMAT or self.ids_sha256 != _ids_sha256(ids):
            raise ValueError("another format, or ids that were changed")
        owner = self.owner.encode("ascii").decode("unicode_escape")
        return _Note(owner, self.model_sha256, self.parameters, ids, self.payload_bytes, self.payload_sha256)


def _read_note(path: Path) -> _Note | None:
    try:
        if path.stat().st_size > _NOTE_LIMIT_BYTES:
            return None
        return _NoteFile.model_validate_json(path.read_bytes()).note()
    except (OSError, ValueError) as error:
        logger.debug("The snapshot note %s is not used: %s", path.name, type(error).__name__)
        return None


def _note_text(note: _Note) -> bytes:
    file = _NoteFile(
        format=FORMAT,
        owner=note.owner.encode("unicode_escape").decode("ascii"),
        model_sha256=note.model_sha256,
        parameters=note.parameters,
        ids=list(note.ids),
        ids_sha256=_ids_sha256(note.ids),
        payload_bytes=note.payload_bytes,
        payload_sha256=note.payload_sha256,
    )
    return file.model_dump_json().encode()


def _key(owner: str, model_sha256: str, parameters: Mapping[str, str | int]) -> str:
    parts = json.dumps([FORMAT, owner, model_sha256, sorted(parameters.items())])
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def _ids_sha256(ids: Sequence[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()


def _identity(path: Path) -> tuple[int, ...] | None:
    """What changes when another file takes this one's name; None when there is no regular file."""
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _difference(path: Path, note: _Note) -> str:
    """How the payload differs from its note, "" when it does not. Raises OSError when it cannot be read."""
    # A link could lead to a file that grows or blocks; O_NONBLOCK lets a pipe be opened and then be refused.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return "it is not a regular file"
        if status.st_size != note.payload_bytes:
            return f"it has {status.st_size:,} bytes, and should have {note.payload_bytes:,}"
        same = hashlib.file_digest(file, "sha256").hexdigest() == note.payload_sha256
        return "" if same else "its content has changed"


def _refusal(path: Path, note: _Note, read: Callable[[Path], list[int]]) -> str:
    """Why `read` could not put the payload into the KV cache, "" when it is there."""
    ids = tuple(read(path))
    return "" if ids == note.ids else f"llama.cpp read {len(ids):,} tokens of it, and should read {len(note.ids):,}"


def _sync(path: Path) -> tuple[int, str]:
    """Bring the file to the disk; gives its size in bytes and its sha256."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def _last_use(group: Mapping[str, os.stat_result]) -> int:
    """When a payload of the group was last written or loaded, ns."""
    return max((status.st_mtime_ns for name, status in group.items() if name.endswith(".kv")), default=0)
