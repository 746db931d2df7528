"""Journals of the benchmarks here: their records are JSON objects as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localmem.bench.journal import Journal as AnyJournal

Record = dict[str, Any]
"""JSON."""

Journal = AnyJournal[Record]


def open_journal(path: Path | None) -> Journal:
    """The journal at `path`; None keeps records in memory only."""
    return AnyJournal(path, read=dict, write=dict)
