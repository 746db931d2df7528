"""Main context (MemGPT, section 2.1): what the model sees, in one order, with one sum.

system instructions and functions | working context | examples | recursive summary | FIFO queue | the answer's beginning

The order is nearly the order of change, rarest first, so that an appended message costs its own tokens and no more.
The examples stand behind the working context because the model was measured to follow them better from there.
The working context stands as it was last rendered: an edit is in the queue as a call and its result, so the block
itself need not be read again in the user's turn. A flush renders it afresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localmem.calls.prompt import Prompt, TurnEncoder, join
from localmem.kernel.messages import Message

SUMMARY_HEADER = (
    'Summary of the conversation before this point, "I" being the user (the messages are in recall memory):\n'
)


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the program itself has to say: instructions with functions, and the example conversation, as ids."""

    encoder: TurnEncoder
    instructions: tuple[int, ...]
    examples: tuple[int, ...] = ()


class MainContext:
    """The window's content. It knows tokens, not storage."""

    def __init__(self, prefix: Prefix) -> None:
        self._prefix = prefix
        self._context: tuple[int, ...] = ()
        self._summary: tuple[int, ...] = ()
        self._answer = prefix.encoder.answer()
        self._turns: list[tuple[int, ...]] = []
        self.context_text = ""
        self.summary_text = ""
        self.queue: list[Message] = []

    @property
    def encoder(self) -> TurnEncoder:
        return self._prefix.encoder

    def set_prefix(self, prefix: Prefix) -> None:
        """Other functions or instructions: the prefix changes, the turns keep their ids."""
        self._prefix = prefix

    def set_context(self, text: str) -> None:
        """Show the working context as `text`."""
        self.context_text = text
        self._context = self._context_turn(text)

    def set_summary(self, text: str) -> None:
        """Put the recursive summary into slot 0; an empty one takes no tokens."""
        self.summary_text = text
        self._summary = self._summary_turn(text)

    def measure(self, message: Message) -> int:
        """Tokens the message takes in the window, its turn included."""
        return len(self.encoder.message(message))

    def append(self, message: Message) -> None:
        self.queue.append(message)
        self._turns.append(self.encoder.message(message))

    def evict(self, start: int, stop: int) -> None:
        """Take messages `start` to `stop` (exclusive) out of the queue."""
        del self.queue[start:stop]
        del self._turns[start:stop]

    @property
    def preamble_tokens(self) -> int:
        """System instructions, functions and the example conversation."""
        return len(self._prefix.instructions) + len(self._prefix.examples)

    @property
    def static_tokens(self) -> int:
        """System instructions and functions: what every agent of a model begins with."""
        return len(self._prefix.instructions)

    @property
    def fixed_tokens(self) -> int:
        """Everything but summary and queue."""
        return self.preamble_tokens + len(self._context) + len(self._answer)

    @property
    def answer_tokens(self) -> int:
        return len(self._answer)

    @property
    def queue_tokens(self) -> int:
        return sum(len(turn) for turn in self._turns)

    @property
    def tokens(self) -> int:
        """The length of the prompt."""
        return self.fixed_tokens + len(self._summary) + self.queue_tokens

    def prompt(self) -> Prompt:
        """What the model reads to write an answer."""
        return join([*self._parts(self._turns, self._context, self._summary), ("answer", self._answer)])

    def read_until(self, stop: int) -> Prompt:
        """The window up to message `stop` (exclusive) of the queue."""
        return join(self._parts(self._turns[:stop], self._context, self._summary))

    def window(
        self, *, without: tuple[int, int] = (0, 0), context: str | None = None, summary: str | None = None
    ) -> Prompt:
        """What the next prompt begins with: everything but the answer's beginning.

        With arguments, as it would be: without messages from one to the other (exclusive) of the queue, with another
        rendering of the working context, with another summary.
        """
        turns = self._turns[: without[0]] + self._turns[without[1] :]
        shown = self._context if context is None else self._context_turn(context)
        told = self._summary if summary is None else self._summary_turn(summary)
        return join(self._parts(turns, shown, told))

    def _parts(
        self, turns: Sequence[tuple[int, ...]], context: tuple[int, ...], summary: tuple[int, ...]
    ) -> list[tuple[str, Sequence[int]]]:
        return [
            ("system", self._prefix.instructions),
            ("working_context", context),
            ("examples", self._prefix.examples),
            ("summary", summary),
            ("queue", [token for turn in turns for token in turn]),
        ]

    def _context_turn(self, text: str) -> tuple[int, ...]:
        return self.encoder.turn("system", text) if text else ()

    def _summary_turn(self, text: str) -> tuple[int, ...]:
        return self.encoder.turn("system", SUMMARY_HEADER + text) if text else ()
