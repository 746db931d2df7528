"""A file that takes another's place in one step: a kill or a power cut leaves the old one or the new one, whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def put_in_place(part: Path, path: Path) -> Path:
    """Rename the finished file; when this returns, a power cut takes neither it nor its name. Raises OSError."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())  # a name may reach the disk before what it names, which is then an empty file
    part.replace(path)
    with suppress(OSError):  # Windows, and some network disks, cannot do it for a folder
        _sync_folder(path.parent)
    return path


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
