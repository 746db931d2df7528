"""A flag that stops running work soon: raised from any thread or signal handler, seen even inside llama.cpp."""

from __future__ import annotations


class Cancellation:
    """Raised by `cancel`, looked at by whatever is running, lowered by whoever starts the next piece of work.

    `flag` is two bytes, a C string that is empty until the flag is raised: llama.cpp's workers can look at it in the
    middle of a decode without asking Python.
    """

    def __init__(self) -> None:
        self.flag = bytearray(2)

    def cancel(self) -> None:
        self.flag[0] = 1

    def clear(self) -> None:
        self.flag[0] = 0

    @property
    def cancelled(self) -> bool:
        return self.flag[0] != 0
