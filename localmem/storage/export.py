"""One agent as one file: everything it remembers, its history, and a digest of each part.

The file is a zip archive of a manifest and one JSON Lines member a table. `write_export` writes it, `Export` reads it,
and reads nothing of a file whose parts are not what the manifest says: other members than those there can be, sizes or
digests that do not fit, rows that are no rows of their table. Nothing is ever unpacked to a path.

Of what is a cache nothing is written: indexes, the KV cache, and the token ids of what was generated. The text is all
that is needed, and ids from a file could stand for control tokens.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from localmem.errors import LocalmemError
from localmem.storage.database import Database, Query
from localmem.storage.in_place import put_in_place
from localmem.storage.private import make_private_folder, open_private

FORMAT = 1
SUFFIX = ".localmem"
MANIFEST = "manifest.json"

MOST_BYTES = 16_000_000_000  # of an agent unpacked: a million messages with their vectors are some 4 GB
_MOST_MANIFEST_BYTES = 1_000_000
_MOST_LINE_BYTES = 64_000_000
_CHUNK_BYTES = 1_000_000
_LARGEST_RATIO = 200  # unpacked over packed, where the file is large: text is packed some 4 times
_SMALL_BYTES = 50_000_000

# What zipfile raises over a damaged file: NotImplementedError, which is a RuntimeError, of a format of the future.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, EOFError)

Column = Literal["integer", "real", "text", "blob", "integer?", "text?"]
Row = Mapping[str, Any]  # Any: what SQLite and JSON can both hold, and bytes
Progress = Callable[[int], None]

TABLES: Mapping[str, Mapping[str, Column]] = {
    "agent": {
        "name": "text",
        "model": "text",
        "created_at": "text",
        "last_seen_at": "text?",
        "warned": "integer",
        "rendered_context": "text",
        "timers_paused_until": "text?",
    },
    "step": {"id": "integer", "event_kind": "text", "started_at": "text"},
    "message": {
        "id": "integer",
        "step_id": "integer?",
        "role": "text",
        "kind": "text",
        "tokens": "integer",
        "created_at": "text",
        "text": "text",
        "content": "text",
    },
    "queue": {"position": "integer", "message_id": "integer"},
    "block": {
        "label": "text",
        "description": "text",
        "value": "text",
        "limit_tokens": "integer",
        "read_only": "integer",
        "position": "integer",
    },
    "summary": {"id": "integer", "text": "text", "evicted_messages": "integer", "created_at": "text"},
    "passage": {"id": "integer", "text": "text", "source": "text?", "tags": "text", "created_at": "text"},
    "deleted_passage": {"id": "integer", "text": "text", "source": "text?", "tags": "text", "created_at": "text"},
    "edit": {
        "number": "integer",
        "kind": "text",
        "item": "text",
        "before": "text?",
        "after": "text?",
        "author": "text",
        "step_id": "integer?",
        "reverts": "integer?",
        "created_at": "text",
        "digest": "blob",
    },
    "timer": {"name": "text", "schedule": "text", "note": "text", "next_due_at": "text", "created_at": "text"},
    "inference": {
        "step_id": "integer?",
        "event": "text",
        "phase": "text",
        "prompt_tokens": "integer",
        "reused_tokens": "integer",
        "evaluated_tokens": "integer",
        "generated_tokens": "integer",
        "read_seconds": "real",
        "write_seconds": "real",
        "created_at": "text",
        "completion": "text",
    },
    "embedding": {"store": "text", "item_id": "integer", "embedder": "text", "vector": "blob"},
}
"""What is written of each table, in an order in which it can be read back: what is referred to stands first."""

_ORDER = {
    "queue": "position",
    "block": "label",
    "edit": "number",
    "timer": "name",
    "embedding": "store, item_id, embedder",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One table in the file: its rows, its size in bytes, and the sha256 of those."""

    rows: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the file says it is."""

    agent: str
    created_at: datetime
    members: Mapping[str, Member]

    @property
    def rows(self) -> int:
        return sum(member.rows for member in self.members.values())


def write_export(database: Database, agent_id: int, path: Path, *, progress: Progress | None = None) -> Manifest:
    """Write the agent to `path`, which is there whole or not at all. Raises LocalmemError when it cannot be written."""
    part = path.with_name(f"{path.name}.part")
    try:
        make_private_folder(path.parent)
        part.unlink(missing_ok=True)
        with open_private(part, "xb") as file:
            manifest = _write(database, agent_id, file, progress)
        put_in_place(part, path)
    except OSError as error:
        raise LocalmemError(
            f"cannot write {path}: {error.strerror}", "Choose a folder that can be written to and has room."
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return manifest


def _write(database: Database, agent_id: int, file: IO[bytes], progress: Progress | None) -> Manifest:
    members: dict[str, Member] = {}
    done = 0
    with database.moment() as query, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        name = next(query("SELECT name FROM agent WHERE id = ?", (agent_id,)))["name"]
        for table, columns in TABLES.items():
            digest, size, rows = hashlib.sha256(), 0, 0
            with archive.open(f"{table}.jsonl", "w", force_zip64=True) as member:
                for row in _rows(query, agent_id, table, columns):
                    line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
                    member.write(line)
                    digest.update(line)
                    size, rows, done = size + len(line), rows + 1, done + 1
                    if progress is not None:
                        progress(done)
            members[table] = Member(rows, size, digest.hexdigest())
        manifest = Manifest(name, datetime.now(UTC), members)
        archive.writestr(MANIFEST, _manifest_text(manifest))
    return manifest


def _rows(query: Query, agent_id: int, table: str, columns: Mapping[str, Column]) -> Iterator[dict[str, Any]]:
    names = ", ".join(columns)
    key = "id" if table == "agent" else "agent_id"
    order = _ORDER.get(table, "id")
    for row in query(f"SELECT {names} FROM {table} WHERE {key} = ? ORDER BY {order}", (agent_id,)):
        yield {
            name: base64.b64encode(row[name]).decode() if kind == "blob" else row[name]
            for name, kind in columns.items()
        }


def _manifest_text(manifest: Manifest) -> str:
    members = {
        table: {"rows": member.rows, "bytes": member.size, "sha256": member.sha256}
        for table, member in manifest.members.items()
    }
    told = {
        "localmem": FORMAT,
        "agent": manifest.agent,
        "created_at": manifest.created_at.isoformat(),
        "members": members,
    }
    return json.dumps(told, ensure_ascii=False, indent=1)


class Export:
    """An export file, open and checked whole. Raises LocalmemError for one that is not what it says it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except FileNotFoundError:
            raise LocalmemError(f"there is no file {path}", "localmem agents export writes one.") from None
        except OSError as error:
            raise LocalmemError(f"cannot read {path}: {error.strerror}", "Check its permissions.") from error
        except _ZIP_ERRORS as error:
            raise self._refusal(f"it is no export of an agent, or is cut short ({error})") from error
        try:
            self.manifest = self._read_manifest()
            self._check_members()
        except BaseException:
            self._archive.close()
            raise

    def close(self) -> None:
        self._archive.close()

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rows(self, table: str) -> Iterator[Row]:
        """The rows of a table, in the order they were written."""
        columns = TABLES[table]
        for number, line in enumerate(self._lines(table), 1):
            yield self._row(line, columns, f"{table}, row {number}")

    def _refusal(self, why: str) -> LocalmemError:
        return LocalmemError(
            f"{self.path} is refused: {why}", "Nothing was read from it. Export the agent again, or use another copy."
        )

    def _read_manifest(self) -> Manifest:
        infos = self._archive.infolist()
        names = [info.filename for info in infos]
        expected = {MANIFEST, *(f"{table}.jsonl" for table in TABLES)}
        if len(set(names)) != len(names) or set(names) != expected:
            odd = sorted(set(names) ^ expected)[:1] or names[:1]
            raise self._refusal(f"its parts are not those of an export ({odd[0]!r})")
        if any(info.flag_bits & 0x1 for info in infos):
            raise self._refusal("a part of it is encrypted")
        unpacked, packed = sum(info.file_size for info in infos), self.path.stat().st_size
        if unpacked > MOST_BYTES or (unpacked > _SMALL_BYTES and unpacked > _LARGEST_RATIO * packed):
            raise self._refusal(f"it would unpack to {unpacked:,} bytes")
        with self._opened(MANIFEST) as file:
            text = self._read(file, _MOST_MANIFEST_BYTES + 1)
        if len(text) > _MOST_MANIFEST_BYTES:
            raise self._refusal("its manifest is too long")
        return self._parsed_manifest(text)

    def _parsed_manifest(self, text: bytes) -> Manifest:
        try:
            told = json.loads(text)
            if told["localmem"] != FORMAT:
                raise LocalmemError(
                    f"{self.path} is of format {told['localmem']!r}; this localmem reads {FORMAT}",
                    "Upgrade localmem: pip install --upgrade localmem.",
                )
            members = {
                table: Member(int(member["rows"]), int(member["bytes"]), str(member["sha256"]))
                for table, member in told["members"].items()
            }
            manifest = Manifest(str(told["agent"]), datetime.fromisoformat(told["created_at"]), members)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._refusal("its manifest cannot be read") from error
        if set(members) != set(TABLES) or any(member.rows < 0 or member.size < 0 for member in members.values()):
            raise self._refusal("its manifest does not fit its parts")
        return manifest

    def _check_members(self) -> None:
        """Read every part through once, never more of it than the manifest says there is."""
        for table, member in self.manifest.members.items():
            digest, size = hashlib.sha256(), 0
            with self._opened(f"{table}.jsonl") as file:
                while chunk := self._read(file, _CHUNK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
                    if size > member.size:
                        break
            if size != member.size or digest.hexdigest() != member.sha256:
                raise self._refusal(f"its part {table!r} is damaged")

    def _lines(self, table: str) -> Iterator[bytes]:
        rows = 0
        with self._opened(f"{table}.jsonl") as file:
            while line := self._read_line(file):
                if len(line) > _MOST_LINE_BYTES:
                    raise self._refusal(f"a row of {table} is too long")
                rows += 1
                yield line
        if rows != self.manifest.members[table].rows:
            raise self._refusal(f"{table} has {rows} rows, its manifest says {self.manifest.members[table].rows}")

    def _row(self, line: bytes, columns: Mapping[str, Column], where: str) -> Row:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._refusal(f"{where} is not JSON") from error
        if not isinstance(row, dict) or set(row) != set(columns):  # pyright: ignore[reportUnknownArgumentType]
            raise self._refusal(f"{where} has not the columns of its table")
        return {name: self._value(row[name], kind, f"{where}, {name}") for name, kind in columns.items()}

    def _value(self, value: object, kind: Column, where: str) -> object:
        if value is None and kind.endswith("?"):
            return None
        match kind.removesuffix("?"):
            case "integer" if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62:
                return value
            case "real" if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
                return float(value)
            case "text" if isinstance(value, str):
                return value
            case "blob" if isinstance(value, str):
                try:
                    return base64.b64decode(value, validate=True)
                except ValueError as error:
                    raise self._refusal(f"{where} is not base64") from error
            case _:
                raise self._refusal(f"{where} is no {kind.removesuffix('?')}")

    def _opened(self, name: str) -> IO[bytes]:
        with self._refusing():
            return self._archive.open(name)

    def _read(self, file: IO[bytes], size: int) -> bytes:
        with self._refusing():
            return file.read(size)

    def _read_line(self, file: IO[bytes]) -> bytes:
        with self._refusing():
            return file.readline(_MOST_LINE_BYTES + 1)

    @contextmanager
    def _refusing(self) -> Generator[None]:
        """What zipfile and zlib raise over a damaged part is a refusal."""
        try:
            yield
        except (OSError, *_ZIP_ERRORS) as error:
            raise self._refusal(f"a part of it cannot be read ({error})") from error
