"""What was found out about large files, kept as long as their size and time of change stay what they were."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

logger = logging.getLogger(__name__)

Identity = tuple[int, int]
"""Size in bytes, and time of change in nanoseconds."""


class FileMemory:
    """A text for each of some files, in a small JSON file: absolute path -> size, time of change, text.

    A memory that is damaged counts as empty; one that cannot be written is no error.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, file: Path) -> str | None:
        """What is known of the file as it is now. Raises OSError when it cannot be looked at."""
        entry = self._read().get(_name(file))
        return entry.known if entry is not None and (entry.size_bytes, entry.mtime_ns) == identity(file) else None

    def put(self, file: Path, known: str, as_of: Identity) -> None:
        """Keep what was found out of the file as it was; not if it was written to since. Raises OSError as `get`."""
        if identity(file) == as_of:
            size_bytes, mtime_ns = as_of
            entry = _Entry(size_bytes=size_bytes, mtime_ns=mtime_ns, known=known)
            self._write(self._read() | {_name(file): entry})

    def _read(self) -> dict[str, _Entry]:
        try:
            return _ENTRIES.validate_json(self._path.read_bytes()) if self._path.is_file() else {}
        except (OSError, ValidationError) as error:
            logger.debug("%s is not used: %s", self._path.name, type(error).__name__)
            return {}

    def _write(self, entries: Mapping[str, _Entry]) -> None:
        """Replace the file in one step, so that another process reads the old one or the new one."""
        try:
            handle, beside = tempfile.mkstemp(prefix=f"{self._path.name}.", suffix=".part", dir=self._path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_ENTRIES.dump_json(dict(entries), indent=1))
                Path(beside).replace(self._path)
            finally:
                with suppress(FileNotFoundError):  # renamed
                    Path(beside).unlink()
        except OSError as error:
            logger.debug("%s cannot be written: %s", self._path.name, error.strerror)


def identity(file: Path) -> Identity:
    """What changes when a file is written to. Raises OSError."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _name(file: Path) -> str:
    # A path need not be valid Unicode, and JSON must be.
    return str(file.absolute()).encode("unicode_escape").decode("ascii")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size_bytes: int
    mtime_ns: int
    known: str


_ENTRIES = TypeAdapter(dict[str, _Entry])
