"""JSON lines written as they come, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

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
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            yield made

    def append(self, value: object) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            # What was cut off must not take the next line with it.
            file.write("\n" * self._cut_off + json.dumps(value, ensure_ascii=False) + "\n")
        self._cut_off = False
