"""Processes of our own, forked so that what is imported is imported once."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def fork(run: Callable[[], None]) -> int:
    """The process id of a child that runs `run` and ends: with status 0, or with 1 and a traceback on stderr."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run()
            status = 0
        except BaseException:  # noqa: BLE001  # the child ends here whatever it was; the parent sees the status
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def fork_piped(run: Callable[[int], None]) -> tuple[int, int]:
    """The process id of a child that runs `run` with the writing end of a pipe, and the reading end."""
    reading, writing = os.pipe()

    def work() -> None:
        os.close(reading)
        run(writing)

    child = fork(work)
    os.close(writing)
    return child, reading


def output_of(run: Callable[[int], None]) -> bytes:
    """What `run` writes to the pipe it is given, in a process of its own. Raises RuntimeError when that fails."""
    child, pipe = fork_piped(run)
    with os.fdopen(pipe, "rb") as file:
        output = file.read()
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("a process failed by itself")
    return output


def tell(pipe: int, line: str) -> None:
    """Write a line, whole, before anything else is done."""
    os.write(pipe, line.encode())
