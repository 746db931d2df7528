"""A run's records as they come, a line each, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""JSON."""


class Journal:
    """Records by their key. `path` None keeps them in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Record] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    key, record = json.loads(line)
                except ValueError:
                    continue  # a line that was cut off as it was written: it is measured again
                self._known[key] = record

    def known(self, key: str) -> Record | None:
        return self._known.get(key)

    def add(self, key: str, record: Record) -> Record:
        """Keep a record; gives it."""
        self._known[key] = record
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, record], ensure_ascii=False) + "\n")
        return record

    def put_away(self) -> None:
        """All of it has been told: the next run measures anew. What was answered stays to be read, beside it."""
        self._known.clear()
        if self._path is not None and self._path.is_file():
            self._path.replace(self._path.with_suffix(".done.jsonl"))

    def forget(self) -> None:
        """Begin again."""
        self._known.clear()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
