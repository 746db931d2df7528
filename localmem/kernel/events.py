"""What can wake the agent (MemGPT, section 2.3), and how each event reads in plain text.

Pure values: `text` is put into the queue as it is. Only a `UserMessage` is the user speaking; everything else has the
system's voice, so that a reminder is never taken for something the user said.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from localmem.kernel.messages import Kind, Role


@dataclass(frozen=True, slots=True)
class UserMessage:
    """The user typed something."""

    text: str
    role: Role = "user"
    kind: Kind = "user_message"


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """The program around the agent has something to say."""

    text: str
    role: Role = "system"
    kind: Kind = "system_message"


@dataclass(frozen=True, slots=True)
class Login:
    """The user came back; `last_seen` is None the first time."""

    now: datetime
    last_seen: datetime | None
    role: Role = "system"
    kind: Kind = "login"

    @property
    def text(self) -> str:
        since = "for the first time" if self.last_seen is None else f"after {duration(self.now - self.last_seen)}"
        return f"The user logged in {since}. It is {moment(self.now)}."


@dataclass(frozen=True, slots=True)
class DocumentUploaded:
    """A document was put into archival storage."""

    name: str
    passages: int
    role: Role = "system"
    kind: Kind = "document"

    @property
    def text(self) -> str:
        return (
            f"The user uploaded {self.name!r}: {self.passages} passages in archival memory. "
            "Read it with archival_memory_search."
        )


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timed event came due, `missed` times more than this once."""

    name: str
    note: str
    now: datetime
    missed: int = 0
    role: Role = "system"
    kind: Kind = "timer"

    @property
    def text(self) -> str:
        missed = f" It came due {self.missed} more times while you were away." if self.missed else ""
        return f"Timer {self.name!r} fired at {moment(self.now)}: {self.note}{missed}"


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """The window is filling up: the model should save what matters."""

    used: int
    limit: int
    role: Role = "system"
    kind: Kind = "memory_pressure"

    @property
    def text(self) -> str:
        return (
            f"Memory pressure: {self.used} of {self.limit} tokens used. The oldest messages soon leave this window. "
            "Call nothing_to_save if core memory holds what matters. Else save what the user said that it lacks, with "
            "core_memory_append or archival_memory_insert."
        )


Event = UserMessage | SystemMessage | Login | DocumentUploaded | TimerFired | MemoryPressure


def moment(when: datetime) -> str:
    """A date and time in a few tokens: 'Sunday 2026-11-29 16:02'."""
    return when.strftime("%A %Y-%m-%d %H:%M")


def duration(span: timedelta) -> str:
    """A span as people say it, in its largest fitting unit: '3 days', '1 hour', 'a moment'."""
    seconds = max(0, int(span.total_seconds()))
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = seconds // size
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "a moment"
