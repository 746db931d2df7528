"""A run's records as they come, a line each, so that a run that was stopped goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localmem.bench.journal import JsonLines

Record = dict[str, Any]
"""JSON."""


def _keyed(record: Any) -> tuple[str, Record]:  # Any: JSON
    key, value = record
    return key, value


class Journal:
    """Records by their key. `path` None keeps them in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._lines = JsonLines(path)
        self._known: dict[str, Record] = dict(self._lines.read(_keyed))

    def known(self, key: str) -> Record | None:
        return self._known.get(key)

    def add(self, key: str, record: Record) -> Record:
        """Keep a record; gives it."""
        self._known[key] = record
        self._lines.append([key, record])
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
