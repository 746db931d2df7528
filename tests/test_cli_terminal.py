"""`localmem chat` on a terminal: a real pseudo-terminal, the real small model."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import stat
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import COMMAND, QUICK, environment, localmem

pytestmark = [pytest.mark.model, pytest.mark.slow]

CTRL_C, CTRL_D, ENTER = b"\x03", b"\x04", b"\r"
PROMPT = b">"  # and a space, which the line editor may write by moving the cursor
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """A program on a pseudo-terminal, and all that it has written."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(command[0], command, variables | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"})
        termios.tcsetwinsize(self._fd, (24, 100))
        self.written = b""

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def wait_for(self, mark: bytes, *, timeout_s: float = 60) -> bytes:
        """What was written up to `mark`, and no longer shown by the next call."""
        end = time.monotonic() + timeout_s
        while mark not in self.written:
            assert time.monotonic() < end, f"{mark!r} never came; there was {self.written!r}"
            assert self._read(), f"the program ended without {mark!r}; there was {self.written!r}"
        before, found, self.written = self.written.partition(mark)
        return before + found

    def exit_code(self, *, timeout_s: float = 30) -> int:
        end = time.monotonic() + timeout_s
        while self._read():
            assert time.monotonic() < end, f"it did not end; there was {self.written!r}"
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def stop(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # it has ended, as it should
        os.close(self._fd)

    def _read(self) -> bool:
        """Take what is there; False at the end."""
        if not select.select([self._fd], [], [], 0.2)[0]:
            return True
        try:
            piece = os.read(self._fd, 65_536)
        except OSError:  # how Linux ends a pseudo-terminal
            return False
        self.written += _ESCAPES.sub(b"", piece)
        return bool(piece)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def terminal(home: Path, smollm_path: Path) -> Iterator[Terminal]:
    opened = Terminal([*COMMAND, *QUICK, "--calls"], environment(home, smollm_path.parent))
    yield opened
    opened.stop()


def test_conversation_on_a_terminal(terminal: Terminal, home: Path):
    assert b"Loading" in terminal.wait_for(b"window 4,096 tokens")
    terminal.wait_for(b"Ctrl-D ends")
    terminal.wait_for(PROMPT)
    terminal.type(b"Hello there!" + ENTER)
    terminal.wait_for(b"\n")
    terminal.wait_for(PROMPT)  # the reply, and the prompt again
    terminal.type(b"/memory" + ENTER)
    terminal.wait_for(b"[human] What you know about the user.")
    terminal.wait_for(PROMPT)
    terminal.type(CTRL_D)
    terminal.wait_for(b"from the cache")
    assert terminal.exit_code() == 0
    assert "Hello there!" in (home / "history").read_text()
    assert stat.S_IMODE((home / "history").stat().st_mode) == 0o600


def test_interrupt_stops_the_reply_and_not_the_program(terminal: Terminal):
    terminal.wait_for(PROMPT)
    terminal.type(b"Please tell me a very long story about the sea." + ENTER)
    terminal.wait_for(b"\n")
    time.sleep(1)  # it reads the window for seconds
    terminal.type(CTRL_C)
    terminal.wait_for(b"(stopped)")
    terminal.wait_for(PROMPT)
    time.sleep(2.1)  # sooner, another Ctrl-C would leave
    terminal.type(b"/help" + ENTER)
    terminal.wait_for(b"/context")
    terminal.wait_for(PROMPT)
    terminal.type(b"unsaid")
    terminal.wait_for(b"unsaid")
    terminal.type(CTRL_C)  # throws the line away
    terminal.wait_for(PROMPT)
    terminal.type(CTRL_C)
    terminal.wait_for(b"Ctrl-C again leaves")
    terminal.wait_for(PROMPT)
    terminal.type(CTRL_C)
    assert terminal.exit_code() == 0


def test_killed_program_keeps_what_the_model_has_read(terminal: Terminal, home: Path):
    terminal.wait_for(PROMPT)
    terminal.type(b"Hello there!" + ENTER)
    terminal.wait_for(b"\n")
    terminal.wait_for(PROMPT)
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.exit_code() == 128 + signal.SIGTERM
    assert list((home / "snapshots").glob("*.kv"))


def test_timed_event_comes_due_while_the_user_writes(terminal: Terminal, home: Path, smollm_path: Path):
    terminal.wait_for(PROMPT)
    terminal.type(b"draft")
    terminal.wait_for(b"draft")
    added = localmem(["schedule", "add", "tea", "every 1s", "Say that it is time for tea."], home=home)
    assert added.returncode == 0, added.stderr
    terminal.wait_for(b"\n", timeout_s=20)  # the prompt is left
    localmem(["schedule", "delete", "tea", "--yes"], home=home)
    terminal.wait_for(b"draft")
