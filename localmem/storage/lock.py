"""One process runs an agent at a time: two would interleave their queues.

The lock is the operating system's, through `filelock`, so it vanishes with its process, however that ends.
Beside it lies a small file that says who holds it; that one may be left over, and is only read when the lock
is really held.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from localmem.errors import DatabaseBusy, StorageError
from localmem.storage.private import make_private_folder, write_private


class AgentLock:
    """A held lock: `release` it, or use it as a context manager. Releasing twice does nothing."""

    def __init__(self, lock: FileLock, owner_path: Path) -> None:
        self._lock = lock
        self._owner_path = owner_path

    def release(self) -> None:
        """Let others have the agent."""
        if self._lock.is_locked:
            self._owner_path.unlink(missing_ok=True)
            self._lock.release()

    def __enter__(self) -> AgentLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def agent_lock(directory: Path, agent: str) -> AgentLock:
    """The lock of `agent`, held from now on.

    Raises DatabaseBusy at once when it is held, by another process or by this one; StorageError when the lock
    file cannot be written.
    """
    # is_singleton=False: a second request in this process must be refused too, not handed the same lock.
    lock = FileLock(directory / f"{agent}.lock", timeout=0, mode=0o600, is_singleton=False)
    owner_path = directory / f"{agent}.owner.json"
    try:
        make_private_folder(directory)
        lock.acquire()
        write_private(owner_path, json.dumps({"pid": os.getpid(), "command": _command()}))
    except Timeout as error:
        raise DatabaseBusy(
            f"agent {agent!r} is in use by {_owner(owner_path)}",
            "Close it there, or talk to another agent here.",
        ) from error
    except OSError as error:
        lock.release()
        raise StorageError(
            f"cannot lock agent {agent!r} in {directory}: {error.strerror or error}",
            "Check the folder's permissions and the free space.",
        ) from error
    return AgentLock(lock, owner_path)


def _command() -> str:
    """The program and its subcommand, such as "localmem chat". No further arguments: those may be private."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    subcommand = sys.argv[1] if len(sys.argv) > 1 else ""
    return f"{program} {subcommand}" if re.fullmatch(r"[a-z][a-z-]{0,19}", subcommand) else program


def _owner(owner_path: Path) -> str:
    try:
        owner = json.loads(owner_path.read_text(encoding="utf-8"))
        return f"process {owner['pid']} ({owner['command']})"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"  # it has the lock, and has not written its name yet
