"""JSON lines written as they come, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from localmem.storage.private import make_private_folder, open_private

Record = TypeVar("Record")


class JsonLines:
    """A file of one JSON value a line, only ever added to. `path` None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._cut_off = False

    def read(self, record: Callable[[Any], Record]) -> Iterator[Record]:  # Any: JSON
        """The values, in order, as `record` makes them. A line that was cut off as it was written, or that `record`
        cannot take (of another version), is passed over: what it held is made again."""
        if self.path is None or not self.path.is_file():
            return
        text = self.path.read_text(encoding="utf-8", errors="replace")
        self._cut_off = not text.endswith("\n")
        for line in text.split("\n"):
            try:
                made = record(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
            yield made

    def append(self, value: object) -> None:
        if self.path is None:
            return
        make_private_folder(self.path.parent)
        with open_private(self.path, "ab") as file:
            # What was cut off must not take the next line with it.
            file.write(("\n" * self._cut_off + json.dumps(value, ensure_ascii=False) + "\n").encode())
        self._cut_off = False


class Journal(Generic[Record]):
    """A run's records by their key, as they come. `path` None keeps them in memory only."""

    def __init__(
        self,
        path: Path | None,
        *,
        read: Callable[[Any], Record],  # Any: JSON
        write: Callable[[Record], object],
    ) -> None:
        """`write` makes of a record what JSON holds, `read` a record of that."""
        self._lines = JsonLines(path)
        self._write = write
        self._known: dict[str, Record] = dict(self._lines.read(lambda line: (str(line[0]), read(line[1]))))

    def known(self, key: str) -> Record | None:
        return self._known.get(key)

    def add(self, key: str, record: Record) -> Record:
        """Keep a record; gives it."""
        self._known[key] = record
        self._lines.append([key, self._write(record)])
        return record

    def put_away(self) -> None:
        """All of it has been told: the next run measures anew. What was answered stays to be read, beside it."""
        self._known.clear()
        if self._lines.path is not None and self._lines.path.is_file():
            self._lines.path.replace(self._lines.path.with_suffix(".done.jsonl"))

    def forget(self) -> None:
        """Begin again."""
        self._known.clear()
        if self._lines.path is not None:
            self._lines.path.unlink(missing_ok=True)
