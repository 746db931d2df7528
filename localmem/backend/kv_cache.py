"""What the KV cache holds, and how a prompt is made out of it with the least reading.

Three sequences share the cells: `main` is the window the agent runs on, `ahead` a window read in advance that main may
become, `side` a short-lived fork for work that must leave no trace. A fork copies no cells. Exact first: a token is
reused only where the same id stands at the same position, with the same ids before it. Moving cells past an evicted
part (`set_aside`, `attach`) is the one approximate way, and is asked for explicitly.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import Literal, Protocol

Sequence = Literal["main", "ahead", "side"]

_SOURCES: dict[Sequence, tuple[Sequence, ...]] = {
    "main": ("ahead",),
    "ahead": ("main",),
    "side": ("main", "ahead"),
}
"""What a sequence may be made from."""

_COMPARED = 256  # ids compared at once, in C

LEAST_MOVED = 64
"""A run of tokens shorter than this is read again rather than moved."""


class Memory(Protocol):
    """The cells of llama.cpp, sequences by number."""

    def truncate(self, sequence: int, length: int) -> bool:
        """Drop a sequence from position `length` on; False when the model cannot forget a part."""
        ...

    def fork(self, source: int, target: int, length: int) -> None:
        """Let the empty `target` begin with the first `length` tokens of `source`."""
        ...

    def shift(self, source: int, target: int, *, start: int, stop: int, by: int) -> None:
        """Move tokens `start` to `stop` (exclusive) out of `source` and into `target`, `by` positions on."""
        ...

    def compact(self, sequence: int) -> bool:
        """Move a sequence to the first cells; False when it was lost on the way."""
        ...


@dataclass(frozen=True, slots=True)
class Moved:
    """A run of tokens that waits outside main: it stood at `start`, and belongs at `at`."""

    ids: tuple[int, ...]
    start: int
    at: int


class KVCache:
    """The ids of each sequence, kept in step with `memory`; without one it only keeps count.

    `can_cut` is False for models whose state cannot be cut at a token: they reuse a sequence whole or not at all.
    """

    def __init__(self, memory: Memory | None = None, *, can_cut: bool = True) -> None:
        self._memory = memory
        self._can_cut = can_cut
        self._places: dict[Sequence, int] = {"main": 0, "ahead": 1, "side": 2}
        self._ids: dict[Sequence, list[int]] = {"main": [], "ahead": [], "side": []}

    def ids(self, sequence: Sequence) -> tuple[int, ...]:
        """What a sequence holds."""
        return tuple(self._ids[sequence])

    def length(self, sequence: Sequence) -> int:
        return len(self._ids[sequence])

    def place(self, sequence: Sequence) -> int:
        """Its number in llama.cpp."""
        return self._places[sequence]

    def reusable(self, prompt: Ids[int], sequence: Sequence) -> int:
        """How many of the prompt's ids `begin` would not have to read; the last one always is, for its logits."""
        return self._best(prompt, sequence)[1]

    def begin(self, prompt: Ids[int], sequence: Sequence) -> int:
        """Leave in `sequence` the longest beginning of the prompt that is in the cache, and give its length.

        Main takes over a window read ahead where that is longer. The two others fork main where that is longer.
        """
        source, length = self._best(prompt, sequence)
        if source != sequence:
            if sequence == "main":
                self._swap()
                self.drop("ahead")
                self._compact_main()
                length = min(length, self.length("main"))
            else:
                self._fork(source, sequence, length)
        self.truncate(sequence, length)
        return self.length(sequence)

    def extend(self, sequence: Sequence, ids: Ids[int]) -> None:
        """Note that `ids` were read at the end of a sequence."""
        self._ids[sequence].extend(ids)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forget a sequence from `length` on; where the model cannot forget a part, all of it."""
        if self._memory is not None and not self._memory.truncate(self._places[sequence], length):
            length = 0
            self._memory.truncate(self._places[sequence], 0)
        del self._ids[sequence][length:]

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence; cells it shares with another stay with that one."""
        self.truncate(sequence, 0)

    def loaded(self, sequence: Sequence, ids: Ids[int]) -> None:
        """Note that a sequence has been filled from outside."""
        self._ids[sequence] = list(ids)

    def set_aside(self, prompt: Ids[int]) -> Moved | None:
        """Take the longest run of main's tokens that the prompt has elsewhere out of main, to be attached later.

        Main is left with what agrees exactly. None when there is no run worth moving, or more has been read ahead.
        """
        source, kept = self._best(prompt, "main")
        if source != "main" or self._memory is None or not self._can_cut:
            return None
        held = self._ids["main"]
        matcher = difflib.SequenceMatcher(None, held[kept:], list(prompt[kept:-1]), autojunk=False)
        run = matcher.find_longest_match()
        if run.size < LEAST_MOVED:
            return None
        start = kept + run.a
        self.drop("side")
        self.drop("ahead")  # it may share the cells, and would move with them
        moved = Moved(tuple(held[start : start + run.size]), start, kept + run.b)
        self._memory.shift(self.place("main"), self.place("side"), start=start, stop=start + run.size, by=0)
        self.truncate("main", kept)
        return moved

    def attach(self, moved: Moved) -> None:
        """Put a run that was set aside at the end of main, which by now reaches to its place."""
        assert self._memory is not None, "what was set aside came out of it"
        assert self.length("main") == moved.at, "main reaches to where the run belongs"
        stop = moved.start + len(moved.ids)
        shift = moved.at - moved.start
        self._memory.shift(self.place("side"), self.place("main"), start=moved.start, stop=stop, by=shift)
        self.extend("main", moved.ids)

    def _agreeing(self, prompt: Ids[int], sequence: Sequence) -> int:
        held = self._ids[sequence]
        length = common_prefix(held, prompt[:-1])
        return length if self._can_cut or length == len(held) else 0

    def _best(self, prompt: Ids[int], sequence: Sequence) -> tuple[Sequence, int]:
        """The sequence that begins most like the prompt, of those `sequence` may be made from, and how much of it;
        itself when equal. A fork needs a cut."""
        others = _SOURCES[sequence] if self._can_cut or sequence == "main" else ()
        agreeing: dict[Sequence, int] = {source: self._agreeing(prompt, source) for source in (sequence, *others)}
        source = max(agreeing, key=lambda name: agreeing[name])
        return source, agreeing[source]

    def _swap(self) -> None:
        self._places["main"], self._places["ahead"] = self._places["ahead"], self._places["main"]
        self._ids["main"], self._ids["ahead"] = self._ids["ahead"], self._ids["main"]

    def _compact_main(self) -> None:
        if self._memory is not None and not self._memory.compact(self._places["main"]):
            self._ids["main"].clear()

    def _fork(self, source: Sequence, target: Sequence, length: int) -> None:
        self.drop(target)
        if self._memory is not None:
            self._memory.fork(self._places[source], self._places[target], length)
        self._ids[target] = self._ids[source][:length]


def common_prefix(left: Ids[int], right: Ids[int]) -> int:
    """The length of the longest common prefix.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    shortest = min(len(left), len(right))
    for start in range(0, shortest, _COMPARED):
        stop = min(start + _COMPARED, shortest)
        a, b = tuple(left[start:stop]), tuple(right[start:stop])
        if a != b:
            return start + next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    return shortest
