"""Main context (MemGPT, section 2.1): what the model sees, in one order, with one sum.

system instructions and functions | working context | recursive summary | FIFO queue | the answer's beginning

The order is also the order of change, rarest first, so that an appended message costs its own tokens and no more.
The working context stands as it was last rendered: an edit is in the queue as a call and its result, so the block
itself need not be read again in the user's turn. A flush renders it afresh.
"""

from __future__ import annotations

from collections.abc import Sequence

from localmem.calls.prompt import Prompt, TurnEncoder, join
from localmem.kernel.messages import Message

SUMMARY_HEADER = "Summary of the conversation before this point (the messages are in recall memory):\n"


class MainContext:
    """The window's content. It knows tokens, not storage.

    `static` are the ids of the prefix that never changes: system instructions, functions, example conversation.
    """

    def __init__(self, encoder: TurnEncoder, static: tuple[int, ...]) -> None:
        self.encoder = encoder
        self._static = static
        self._context: tuple[int, ...] = ()
        self._summary: tuple[int, ...] = ()
        self._answer = encoder.answer()
        self._turns: list[tuple[int, ...]] = []
        self.context_text = ""
        self.summary_text = ""
        self.queue: list[Message] = []

    def set_static(self, encoder: TurnEncoder, static: tuple[int, ...]) -> None:
        """Other functions or instructions: the prefix changes, the turns keep their ids."""
        self.encoder = encoder
        self._static = static

    def set_context(self, text: str) -> None:
        """Show the working context as `text`."""
        self.context_text = text
        self._context = self.encoder.turn("system", text) if text else ()

    def set_summary(self, text: str) -> None:
        """Put the recursive summary into slot 0; an empty one takes no tokens."""
        self.summary_text = text
        self._summary = self.encoder.turn("system", SUMMARY_HEADER + text) if text else ()

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
        return len(self._static)

    @property
    def fixed_tokens(self) -> int:
        """Everything but summary and queue."""
        return len(self._static) + len(self._context) + len(self._answer)

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
        parts: Sequence[tuple[str, Sequence[int]]] = (
            ("system", self._static),
            ("working_context", self._context),
            ("summary", self._summary),
            ("queue", [token for turn in self._turns for token in turn]),
            ("answer", self._answer),
        )
        return join(parts)
