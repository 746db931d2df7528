"""Every SQL statement, seen before SQLite runs it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable


def watch_statements(watch: Callable[[str], None]) -> None:
    """Have `watch` called with every statement before SQLite runs it, on every connection opened from now on."""
    connect = sqlite3.connect

    def watched(*arguments: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)  # type: ignore[arg-type]
        connection.set_trace_callback(watch)
        return connection

    sqlite3.connect = watched  # type: ignore[assignment]


def shape(sql: str) -> str:
    """A statement without what it is filled with, on one line."""
    return " ".join(re.sub(r"'(?:[^']|'')*'|x'[0-9a-f]*'|-?\b\d+(?:\.\d+)?\b|(?<=sqlite_utils_)\w+", "?", sql).split())[
        :200
    ]
