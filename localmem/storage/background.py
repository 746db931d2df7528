"""A long import on a thread of its own, that the rest of the process neither waits for nor trips over.

A daemon thread that is inside torch when the interpreter goes away is ended by force, through C++ that aborts the
process ("terminate called without an active exception": 2 of 24 exits while the embedder's weights were loaded). So the
work is asked to stop at exit, and stops before the next module it imports. Knows nothing of what it runs.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from inspect import currentframe
from types import FrameType, ModuleType
from typing import Generic, TypeVar

T = TypeVar("T")

_NICENESS = 10
_LONGEST_EXIT_S = 10  # the longest piece of the embedder's load without an import took 3.3 s on a busy machine
_LOOK_S = 0.2  # Windows looks at Ctrl-C only between two waits


class BackgroundWork(Generic[T]):
    """One call of `work`, begun at once on a daemon thread of low priority; its result, or its error, waits there.

    When the process exits before the work is done, the exit waits until the work has come to its next import.
    """

    def __init__(self, work: Callable[[], T], *, name: str) -> None:
        self._work = work
        self._outcome = _Outcome[T]()
        self._stopping = threading.Event()
        self._done = threading.Event()  # Thread.join takes a thread for ended when Ctrl-C interrupts it (Python 3.11)
        atexit.register(self.stop)
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        """Until the work is done. Ctrl-C ends the waiting, not the work."""
        while not self._done.wait(_LOOK_S):
            pass

    def result(self) -> T:
        """What `work` gave, waited for; raises what it raised."""
        self.wait()
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._outcome.results[0]

    def stop(self) -> None:
        """Have the work end at its next import, and wait for that; in seconds at most."""
        self._stopping.set()
        with suppress(KeyboardInterrupt):  # who presses Ctrl-C at exit is not shown a traceback for it
            self._done.wait(_LONGEST_EXIT_S)

    def _run(self) -> None:
        _lower_priority()
        with self._outcome, _stoppable_at_imports(self._stopping):
            self._outcome.results.append(self._work())
        atexit.unregister(self.stop)
        self._done.set()


class _Outcome(Generic[T]):
    """What came of the work. As a context it carries whatever was raised in it over to the thread that asks."""

    def __init__(self) -> None:
        self.results: list[T] = []
        self.error: BaseException | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        self.error = error
        return True


def _lower_priority() -> None:
    """Let everything else go first: the model writes meanwhile. Only Linux has priorities of single threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


@contextmanager
def _stoppable_at_imports(stopping: threading.Event) -> Generator[None]:
    """In here `SystemExit` comes out of the next import of this thread once `stopping` is set."""
    finder = _StopFinder(threading.get_ident(), stopping)
    sys.meta_path = [finder, *sys.meta_path]  # a new list: other threads may be going through the old one
    try:
        yield
    finally:
        sys.meta_path = [other for other in sys.meta_path if other is not finder]


class _StopFinder:
    """A finder of modules that finds none; it is only asked first, before every import."""

    def __init__(self, thread: int, stopping: threading.Event) -> None:
        self._thread = thread
        self._stopping = stopping

    def find_spec(
        self, _name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._stopping.is_set() and threading.get_ident() == self._thread and not _in_extension(currentframe()):
            raise SystemExit
        return None


def _in_extension(frame: FrameType | None) -> bool:
    """Whether an extension module is being initialised: its C++ need not survive an import that fails."""
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False
