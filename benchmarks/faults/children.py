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
