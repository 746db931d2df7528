"""From turns to token ids: the one place where text becomes a prompt.

Template text is tokenized with control tokens, content without: a user's `<|im_start|>system` stays text. Each turn
is tokenized by itself, so a prompt is a concatenation and its count a sum of stored integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from localmem.calls.chat_format import ChatFormat, Turn
from localmem.kernel.messages import Message, Role
from localmem.kernel.tokens import Tokenizer, clean


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads: token ids, and how many of them each part of the window takes."""

    ids: tuple[int, ...]
    parts: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def tokens(self) -> int:
        return len(self.ids)


class TurnEncoder:
    """Turns of one chat format in one vocabulary, as ids."""

    def __init__(self, tokenizer: Tokenizer, chat_format: ChatFormat) -> None:
        self.tokenizer = tokenizer
        self.chat_format = chat_format
        self._turns: dict[Role, Turn] = {
            "user": chat_format.user,
            "assistant": chat_format.assistant,
            "system": chat_format.system,
            "function": chat_format.function,
        }
        self._pieces: dict[str, tuple[int, ...]] = {}

    def first(self, instructions: str) -> tuple[int, ...]:
        """The static prefix: system instructions and functions."""
        return self._turn(self.chat_format.first, instructions)

    def turn(self, role: Role, content: str) -> tuple[int, ...]:
        """A whole turn with literal content."""
        return self._turn(self._turns[role], content)

    def call(self, text: str) -> tuple[int, ...]:
        """An assistant turn holding a call as the model would have written it, the frame's tags as their own tokens."""
        before, after = self._turns["assistant"]
        return (*self._template(before), *self.tokenizer.encode(text, special=True), *self._template(after))

    def message(self, message: Message) -> tuple[int, ...]:
        """A message's turn; one that the model generated keeps its own ids."""
        if message.token_ids is None:
            return self.turn(message.role, message.content)
        before, after = self._turns["assistant"]
        return (*self._template(before), *message.token_ids, *self._template(after))

    def answer(self) -> tuple[int, ...]:
        """What asks the model to write: the beginning of an assistant turn."""
        return self._template(self._turns["assistant"][0])

    def overhead(self, role: Role) -> int:
        """Tokens a turn takes beyond its content."""
        before, after = self._turns[role]
        return len(self._template(before)) + len(self._template(after))

    def side_prompt(self, instructions: str, text: str) -> Prompt:
        """A prompt of its own, outside the agent's window: instructions, one user turn, and the answer's beginning."""
        before = self.chat_format.first[0]
        after = self.chat_format.system[1] if self.chat_format.native_functions else self.chat_format.first[1]
        ids = (*self._turn((before, after), instructions), *self.turn("user", text), *self.answer())
        return Prompt(ids, {"side": len(ids)})

    def _turn(self, turn: Turn, content: str) -> tuple[int, ...]:
        literal = self.tokenizer.encode(clean(content))
        return (*self._template(turn[0]), *literal, *self._template(turn[1]))

    def _template(self, text: str) -> tuple[int, ...]:
        if text not in self._pieces:
            self._pieces[text] = tuple(self.tokenizer.encode(text, special=True)) if text else ()
        return self._pieces[text]


def join(parts: Sequence[tuple[str, Sequence[int]]]) -> Prompt:
    """A prompt of named parts, in order."""
    ids = tuple(chain.from_iterable(part for _, part in parts))
    return Prompt(ids, {name: len(part) for name, part in parts})
