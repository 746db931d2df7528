"""Working context (MemGPT, section 2.1): small blocks that stay in the window and that only functions change.

Pure: blocks in, blocks out; who keeps them is told through `save`. Limits are in the model's tokens. An edit is
checked before it is made, so a refused one leaves the block byte for byte as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from localmem.errors import BlockNotFound, InvalidArguments, Unconfirmed, WorkingContextFull
from localmem.kernel.tokens import Tokenizer, clean, count, fits

PERSONA = "persona"
"""The block that is the agent itself: what the user wants of it stands there."""

LARGEST_DROP = 0.5
"""The share of a block's tokens that one edit of the model may take away before it is asked whether it means it."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block; `limit` is in tokens. `owner` is the agent it is another's of, whose label stands behind its name."""

    label: str
    description: str
    value: str = ""
    limit: int = 300
    read_only: bool = False
    owner: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The facts it holds, one a line."""
        return tuple(line for line in self.value.split("\n") if line.strip())


class WorkingContext(Mapping[str, str]):
    """An agent's blocks by label, in order; reading one gives its text."""

    def __init__(self, blocks: Iterable[Block], tokenizer: Tokenizer, save: Callable[[Block], None]) -> None:
        self._blocks = {block.label: block for block in blocks}
        self._tokenizer = tokenizer
        self._save = save
        self._used: dict[str, int] = {}  # counted once a value: every step and every message asks
        self._most: int | None = None

    def __getitem__(self, label: str) -> str:
        return self._blocks[label].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(self._blocks.values())

    def block(self, label: str) -> Block:
        """Raises BlockNotFound, naming the labels there are."""
        if label not in self._blocks:
            raise BlockNotFound(f"there is no block {label!r}; the blocks are {', '.join(self._blocks)}")
        return self._blocks[label]

    def used(self, label: str) -> int:
        """Tokens the block's text takes."""
        if label not in self._used:
            self._used[label] = count(self._tokenizer, self.block(label).value)
        return self._used[label]

    def room(self, label: str) -> int:
        """Tokens that still fit into the block."""
        return max(0, self.block(label).limit - self.used(label))

    def append(self, label: str, content: str) -> bool:
        """Add a line; False when a line of the block already says all of it, in that order."""
        block = self._writable(label)
        addition = clean(content).strip()
        if not addition:
            raise InvalidArguments("content is empty; write the fact to remember")
        if any(says(line, addition) for line in block.lines):
            return False
        self._put(block, f"{block.value}\n{addition}" if block.value.strip() else addition)
        return True

    def replace(self, label: str, old: str, new: str, *, confirmed: bool = True) -> bool:
        """Change the one place that reads `old` into `new`; an empty `new` deletes it. False when they are the same.

        Raises Unconfirmed, and changes nothing, when that takes more than LARGEST_DROP of the block away and is not
        `confirmed`.
        """
        block = self._writable(label)
        if not old:
            raise InvalidArguments("old_content is empty; copy the text to change from the block")
        if old.strip() == clean(new).strip():
            return False
        value = _with_line_replaced(block.value, old, clean(new).strip())
        if value is None:
            found = block.value.count(old)
            if found != 1:
                problem = "is not in" if found == 0 else f"stands {found} times in"
                raise InvalidArguments(f"{old!r} {problem} {label!r}, which reads:\n{block.value}")
            value = block.value.replace(old, clean(new).strip())
        value = "\n".join(line for line in value.split("\n") if line.strip())
        if not confirmed:
            self._check_drop(block, value)
        self._put(block, value)
        return True

    def _check_drop(self, block: Block, value: str) -> None:
        """Raises Unconfirmed where `value` is much less than the block holds."""
        held = "\n".join(dict.fromkeys(block.lines))  # a line that stands there twice is lost once
        before = count(self._tokenizer, held)
        after = count(self._tokenizer, value) if len(value) < len(held) else before
        if before - after > LARGEST_DROP * before:
            kept = f"only {value!r} of it" if value else "nothing of it"
            raise Unconfirmed(
                f"that would leave {kept} in {block.label!r}, which reads:\n{block.value}\nNothing has changed yet. "
                "If you mean it, make the same call again"
            )

    def set(self, label: str, value: str) -> None:
        """Rewrite a whole block. For people: it may write a read-only block too."""
        self._put(self.block(label), clean(value).strip())

    def add(self, block: Block) -> None:
        """Add a block, or change one's description, limit and flag. Raises WorkingContextFull if its text is over."""
        self._put(block, clean(block.value).strip())

    def render(self) -> str:
        """The blocks as they stand in the window."""
        return self._text(None)

    def most_tokens(self) -> int:
        """Tokens the rendering takes when every block is full; one written in another vocabulary may be over-full."""
        if self._most is None:
            empty = count(self._tokenizer, self._text(""))
            self._most = empty + sum(max(block.limit, self.used(block.label)) for block in self.blocks)
        return self._most

    def _text(self, value: str | None) -> str:
        parts = ["Core memory, always before you:"]
        for block in self.blocks:
            flag = ", read-only" if block.read_only else ""
            shown = block.value or "(empty)" if value is None else value
            parts.append(f"[{block.label}] {block.description}{flag}\n{shown}")
        return "\n".join(parts)

    def _writable(self, label: str) -> Block:
        block = self.block(label)
        if block.read_only:
            raise InvalidArguments(f"block {label!r} is read-only")
        return block

    def _put(self, block: Block, value: str) -> None:
        if block.owner:
            raise InvalidArguments(f"block {block.label!r} is {block.owner}'s, and is changed there")
        if not fits(self._tokenizer, value, block.limit):
            size = count(self._tokenizer, value[: block.limit * 64])
            raise WorkingContextFull(
                f"block {block.label!r} would be full: {size} of {block.limit} tokens; shorten a line with "
                "core_memory_replace first, or store the text with archival_memory_insert"
            )
        changed = replace(block, value=value)
        self._save(changed)
        self._blocks[block.label] = changed
        self._used.pop(block.label, None)
        self._most = None


def _with_line_replaced(text: str, old: str, new: str) -> str | None:
    """`text` with its line `old` replaced, also where another line holds it as a part; None if no line is `old`.

    A line that stands twice is replaced once and dropped after that.
    """
    lines = text.split("\n")
    if old not in lines:
        return None
    first = lines.index(old)
    return "\n".join([*lines[:first], new, *(line for line in lines[first + 1 :] if line != old)])


def says(line: str, addition: str) -> bool:
    """Whether `line` holds every word of `addition` in the same order.

    >>> says("Big news: we moved to Porto last weekend.", "We moved to Porto.")
    True
    """
    words = iter(_words(line))
    return all(word in words for word in _words(addition))


def _words(text: str) -> list[str]:
    """The words of a text; a text of none (emoji, signs) is one word of its own."""
    return re.findall(r"\w+", text.casefold()) or [text.strip()]
