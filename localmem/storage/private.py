"""Files and folders that only their owner may read: what agents remember is nobody else's business.

Folders of the home, and the files in it that tell something of an agent, are made here, whatever the umask is. What is
there already stays as it is; `localmem doctor` says where others may read it, and mends that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO


def make_private_folder(path: Path) -> None:
    """Make the folder, and those above it that are missing. Raises OSError."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path, mode: str) -> IO[bytes]:
    """The file, opened as `mode` says: one of rb, wb, xb, ab. Raises OSError."""
    return open(path, mode, opener=_opener)  # Path.open takes no opener


def write_private(path: Path, text: str) -> None:
    """Write the file anew. Raises OSError."""
    with open_private(path, "wb") as file:
        file.write(text.encode())


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
