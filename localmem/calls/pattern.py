"""Regular expressions as trees of character sets, for grammars that have none of their own.

Pure. The subset that Rust, Python and JavaScript read alike: literals, classes, `.`, `\\d \\w \\s`, groups,
alternatives, counted repeats, `^` and `$` at the ends. Anything else raises LocalmemError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from localmem.errors import LocalmemError

Ranges = tuple[tuple[int, int], ...]
"""Code points, inclusive, in order, none touching the next."""

LAST = 0x10FFFF
ANY: Ranges = ((0, LAST),)

_SPACES = (
    *((9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_DIGITS = ((48, 57),)
_WORDS = ((48, 57), (65, 90), (95, 95), (97, 122))
_CLASSES: dict[str, Sequence[tuple[int, int]]] = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_HEX_DIGITS = {"x": 2, "u": 4}
_MOST_TIMES = 5000


def union(ranges: Sequence[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def without(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Every other code point."""
    found: list[tuple[int, int]] = []
    start = 0
    for low, high in union(ranges):
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    return (*found, (start, LAST)) if start <= LAST else tuple(found)


def common(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> Ranges:
    found = [(max(a, c), min(b, d)) for a, b in first for c, d in second if max(a, c) <= min(b, d)]
    return union(found)


@dataclass(frozen=True, slots=True)
class Characters:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequential:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    part: Node
    least: int
    most: int | None


Node = Characters | Sequential | Alternatives | Repeated

_EMPTY = Sequential(())


def lengths(node: Node) -> tuple[int, int | None]:
    """The fewest and the most characters of a text that fits; None where there is no most."""
    if isinstance(node, Characters):
        return 1, 1
    if isinstance(node, Repeated):
        least, most = lengths(node.part)
        return least * node.least, None if most is None or node.most is None else most * node.most
    pairs = [lengths(part) for part in node.parts]
    if isinstance(node, Sequential):
        longest = [most for _, most in pairs if most is not None]
        return sum(least for least, _ in pairs), sum(longest) if len(longest) == len(pairs) else None
    longest = [most for _, most in pairs if most is not None]
    return min(least for least, _ in pairs), max(longest) if len(longest) == len(pairs) else None


def within(node: Node, longest: int) -> Node | None:
    """The texts of `node` of at most that many characters; None where there are none.

    Raises LocalmemError when two parts could each take the room the other leaves.
    """
    least, most = lengths(node)
    if least > longest:
        return None
    if most is not None and most <= longest:
        return node
    if isinstance(node, Alternatives):
        kept = [part for one in node.parts if (part := within(one, longest)) is not None]
        return Alternatives(tuple(kept))
    if isinstance(node, Repeated):
        return _fewer(node, longest)
    assert isinstance(node, Sequential)
    parts = [lengths(part) for part in node.parts]
    varying = [index for index, (low, high) in enumerate(parts) if low != high]
    if len(varying) != 1:
        raise LocalmemError(
            f"two parts of a pattern share {longest} characters", "Bound each: write {1,40} instead of + or *."
        )
    place = varying[0]
    room = longest - sum(low for index, (low, _) in enumerate(parts) if index != place)
    part = within(node.parts[place], room)
    return None if part is None else Sequential((*node.parts[:place], part, *node.parts[place + 1 :]))


def _fewer(node: Repeated, longest: int) -> Node | None:
    low, high = lengths(node.part)
    if low == high and low:
        most = longest // low
        return Repeated(node.part, node.least, most if node.most is None else min(most, node.most))
    if (node.least, node.most) != (0, 1):
        raise LocalmemError(
            f"a repeated part of varying length shares {longest} characters",
            "Bound each repeat: write {1,40} instead of + or *.",
        )
    part = within(node.part, longest)
    return Sequential(()) if part is None else Repeated(part, 0, 1)


def but(node: Node, barred: Collection[str]) -> Node | None:
    """The texts of `node` that are none of `barred`; None where there are none.

    A tree of the barred texts' characters: where a text leaves it, what `node` allows is free. No repeated part of
    `node` may be empty.
    """
    ways: list[Node] = []
    if lengths(node)[0] == 0 and "" not in barred:
        ways.append(_EMPTY)
    heads = sorted({text[0] for text in barred if text})
    for head in heads:
        following = _after(node, head)
        rest = None if following is None else but(following, [text[1:] for text in barred if text[:1] == head])
        if rest is not None:
            ways.append(Sequential((Characters(((ord(head), ord(head)),)), rest)))
    free = _beginning(node, without([(ord(head), ord(head)) for head in heads]))
    return _either(*ways, free)


def _beginning(node: Node, ranges: Ranges) -> Node | None:
    """The texts of `node` whose first character is one of `ranges`."""
    if isinstance(node, Characters):
        both = common(node.ranges, ranges)
        return Characters(both) if both else None
    return _first(node, lambda part: _beginning(part, ranges))


def _after(node: Node, head: str) -> Node | None:
    """What follows in the texts of `node` that begin with `head` (Brzozowski's derivative)."""
    if isinstance(node, Characters):
        return _EMPTY if common(node.ranges, ((ord(head), ord(head)),)) else None
    return _first(node, lambda part: _after(part, head))


def _first(node: Sequential | Alternatives | Repeated, change: Callable[[Node], Node | None]) -> Node | None:
    """`node` with `change` made to the part that its first character belongs to, whichever that is."""
    if isinstance(node, Alternatives):
        return _either(*map(change, node.parts))
    if isinstance(node, Repeated):
        if node.most == 0:
            return None
        most = None if node.most is None else node.most - 1
        return _joined(change(node.part), Repeated(node.part, max(0, node.least - 1), most))
    if not node.parts:
        return None
    rest = Sequential(node.parts[1:])
    here = _joined(change(node.parts[0]), rest)
    return _either(here, change(rest)) if lengths(node.parts[0])[0] == 0 else here


def _joined(first: Node | None, rest: Node) -> Node | None:
    return None if first is None else Sequential((first, rest))


def _either(*ways: Node | None) -> Node | None:
    kept = tuple(way for way in ways if way is not None)
    return None if not kept else kept[0] if len(kept) == 1 else Alternatives(kept)


def parse(pattern: str) -> Node:
    """The tree of the whole texts a pattern matches, a search as in JSON Schema: without `^` anything may go before.

    Raises LocalmemError for what is outside the subset.
    """
    reader = _Reader(pattern)
    branches = [reader.branch()]
    while reader.take("|"):
        branches.append(reader.branch())
    if reader.place < len(pattern):
        raise reader.refuse(f"{pattern[reader.place]!r} at {reader.place}")
    return branches[0] if len(branches) == 1 else Alternatives(tuple(branches))


_ANYTHING = Repeated(Characters(ANY), 0, None)


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.place = 0

    def refuse(self, what: str) -> LocalmemError:
        return LocalmemError(
            f"the pattern {self.pattern!r} has {what}, which a grammar of rules cannot say",
            "Use characters, classes, groups, | and counted repeats between ^ and $.",
        )

    def peek(self) -> str:
        return self.pattern[self.place : self.place + 1]

    def take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.place)
        self.place += len(text) if found else 0
        return found

    def next(self) -> str:
        if self.place >= len(self.pattern):
            raise self.refuse("no end")
        self.place += 1
        return self.pattern[self.place - 1]

    def branch(self) -> Node:
        """One alternative of the whole pattern, where anchors may stand."""
        before = () if self.take("^") else (_ANYTHING,)
        inner = self._sequence()
        after = () if self.take("$") else (_ANYTHING,)
        return Sequential((*before, *inner, *after))

    def _alternatives(self) -> Node:
        parts = [Sequential(self._sequence())]
        while self.take("|"):
            parts.append(Sequential(self._sequence()))
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def _sequence(self) -> tuple[Node, ...]:
        parts: list[Node] = []
        while (character := self.peek()) and character not in "|)$":
            parts.append(self._repeats(self._atom()))
        return tuple(parts)

    def _atom(self) -> Node:
        character = self.next()
        if character == "(":
            return self._group()
        if character == "[":
            return Characters(self._class())
        if character == ".":
            return Characters(without([(10, 10)]))
        if character == "\\":
            return Characters(self._escape())
        if character in "*+?{}^])":
            raise self.refuse(f"{character!r} at {self.place - 1}")
        return Characters(((ord(character), ord(character)),))

    def _group(self) -> Node:
        if self.take("?P<"):
            while self.next() != ">":
                pass
        elif self.peek() == "?" and not self.take("?:"):
            raise self.refuse(f"the group at {self.place - 1}")
        inner = self._alternatives()
        if not self.take(")"):
            raise self.refuse(f"a group that does not end at {self.place}")
        return inner

    def _repeats(self, part: Node) -> Node:
        while (character := self.peek()) and character in "*+?{":
            self.place += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(character) or self._counts()
            self.take("?")  # lazy or not, the same texts match
            if self.peek() and self.peek() in "*+?{":
                raise self.refuse(f"a repeat of a repeat at {self.place}")
            if lengths(part) == (0, 0):
                continue
            part = Repeated(part, least, most)
        return part

    def _counts(self) -> tuple[int, int | None]:
        least = self._number()
        most: int | None = least
        if self.take(","):
            most = None if self.peek() == "}" else self._number()
        if not self.take("}") or (most is not None and most < least) or max(least, most or 0) > _MOST_TIMES:
            raise self.refuse(f"the count at {self.place}")
        return least, most

    def _number(self) -> int:
        start = self.place
        while self.peek() and self.peek() in "0123456789":
            self.place += 1
        if start == self.place:
            raise self.refuse(f"the count at {self.place}")
        return int(self.pattern[start : self.place])

    def _escape(self) -> Ranges:
        character = self.next()
        if character.lower() in _CLASSES:
            ranges = _CLASSES[character.lower()]
            return union(ranges) if character.islower() else without(ranges)
        if character in _CONTROLS:
            return ((_CONTROLS[character], _CONTROLS[character]),)
        if character in _HEX_DIGITS:
            digits = self.pattern[self.place : self.place + _HEX_DIGITS[character]]
            if len(digits) < _HEX_DIGITS[character] or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise self.refuse(f"the escape at {self.place - 2}")
            self.place += len(digits)
            return ((int(digits, 16), int(digits, 16)),)
        if character.isalnum() or not character.isascii():
            raise self.refuse(f"the escape \\{character}")
        return ((ord(character), ord(character)),)

    def _class(self) -> Ranges:
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            if self.peek() == "[" or self.pattern.startswith(("&&", "--", "~~"), self.place):
                raise self.refuse(f"a class in a class at {self.place}")  # Rust reads these so, Python does not
            low = self._member()
            following = self.pattern[self.place + 1 : self.place + 2]
            if len(low) == 1 and low[0][0] == low[0][1] and self.peek() == "-" and following not in ("", "]"):
                self.place += 1
                high = self._member()
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise self.refuse(f"the range at {self.place}")
                low = ((low[0][0], high[0][0]),)
            ranges += low
        if not ranges:
            raise self.refuse("an empty class")
        return without(ranges) if negated else union(ranges)

    def _member(self) -> Ranges:
        character = self.next()
        return self._escape() if character == "\\" else ((ord(character), ord(character)),)
