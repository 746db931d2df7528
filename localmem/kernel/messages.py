"""What flows through the machine: messages, function calls, results and steps.

Pure values. A `Message` is one entry of the FIFO queue and one row of recall storage: `text` is what people and
searches read, `content` is what the model reads (stamped, and cut when it is very long).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "function"]

Kind = Literal[
    "user_message",  # what the user typed
    "reply",  # a send_message call: what the agent said
    "call",  # any other function call
    "result",  # what came of a call
    "login",
    "system_message",
    "document",
    "timer",
    "heartbeat",
    "memory_pressure",
    "summary",
]

SPOKEN_KINDS: tuple[Kind, ...] = ("user_message", "reply")
"""The kinds that are conversation. Searches read only these: a stored result of an earlier search, found again,
would crowd out what was really said."""

OPENS_EXCHANGE: tuple[Kind, ...] = ("user_message", "login", "system_message", "document", "timer", "memory_pressure")
"""The kinds that begin something: what follows one, up to the next, came of it."""

SEARCHES = ("conversation_search", "conversation_search_date", "archival_memory_search")
"""The functions that read from memory; after one the processor always runs again, for it is to be read."""

SAVING = ("core_memory_append", "core_memory_replace", "archival_memory_insert")
"""The functions that write to memory."""


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the queue and of recall storage.

    `tokens` counts the whole rendered turn, its template tokens included, in the model's own vocabulary.
    `token_ids` are the ids as the model generated them: text that is encoded again need not give the same ids, and
    the KV cache would be lost (None for everything the model did not generate).
    """

    role: Role
    kind: Kind
    text: str
    content: str
    created_at: datetime
    tokens: int = 0
    token_ids: tuple[int, ...] | None = None
    id: int | None = None


def newest_exchange(queue: Sequence[Message]) -> int:
    """Where the exchange begins that began last; 0 where none did."""
    return max((i for i, message in enumerate(queue) if message.kind in OPENS_EXCHANGE), default=0)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """What the model asked for. `thought` is shown to nobody but the curious."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON from a model
    thought: str = ""
    request_heartbeat: bool = False


FAILURE = "Error: "
"""Begins the text of every result that is not ok, so that the model can tell, and so can the queue."""


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """What came of a call; `text` is read by the model. An `unconfirmed` one is carried out when it comes again."""

    ok: bool
    text: str
    unconfirmed: bool = False

    @property
    def could_run(self) -> bool:
        """Whether the call was one that can be carried out: it was, or the model is asked whether it means it."""
        return self.ok or self.unconfirmed


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of one inference: tokens and wall seconds.

    prompt_tokens = reused_tokens (already in the KV cache) + evaluated_tokens (read now).
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    evaluated_tokens: int = 0
    generated_tokens: int = 0
    read_seconds: float = 0.0
    write_seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.reused_tokens + other.reused_tokens,
            self.evaluated_tokens + other.evaluated_tokens,
            self.generated_tokens + other.generated_tokens,
            self.read_seconds + other.read_seconds,
            self.write_seconds + other.write_seconds,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the processor: the call it made, what came of it, what it cost."""

    call: FunctionCall | None
    result: FunctionResult
    usage: Usage
    id: int = 0

    @property
    def reply(self) -> str | None:
        """What this step said to the user, or None."""
        if self.call is not None and self.call.name == "send_message" and self.result.ok:
            return str(self.call.arguments.get("message", ""))
        return None
