"""Proves a GBNF safe to hand to llama.cpp, which ends the process on a bad one.

Pure. Reads the dialect `calls/gbnf.py` writes as llama.cpp's own parser would: every rule is defined once and can end,
none begins with itself, no class is empty, and neither the rules nor the ways into them are too many.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from localmem.errors import BackendError

MOST_REPEATS = 2000
"""llama.cpp refuses as many repetitions, those of the rules inside a group counted in."""
_MOST_ELEMENTS = 500_000
_MOST_VISITS = 2_000_000  # llama.cpp looks for left recursion along every path
_MOST_DEPTH = 200
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_ESCAPE = re.compile(r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]-])')
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNTS = re.compile(r"\{[ \t]*(\d{1,9})[ \t]*(,[ \t]*(\d{1,9})?[ \t]*)?\}")


@dataclass(frozen=True, slots=True)
class _Terminal:
    """Characters that must come; a literal of several, or a class."""

    size: int


@dataclass(frozen=True, slots=True)
class _Reference:
    name: str


@dataclass(frozen=True, slots=True)
class _Group:
    alternatives: tuple[tuple[_Element, ...], ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Element
    least: int
    most: int | None


_Element = _Terminal | _Reference | _Group | _Repeat
_Rules = Mapping[str, _Group]


def check_gbnf(text: str, *, root: str = "root") -> None:
    """Raises BackendError, saying where, for a grammar that llama.cpp would refuse, crash on or never get through."""
    if "\0" in text:
        raise _refused("it holds a NUL")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refused("it holds half a character") from error
    rules = _Reader(text).rules()
    if root not in rules:
        raise _refused(f"there is no rule {root!r}")
    for name, rule in rules.items():
        for wanted in _names(rule):
            if wanted not in rules:
                raise _refused(f"rule {name!r} names {wanted!r}, which is not defined")
    empty = _fixed_point(rules, lambda rule, known: _can_be(rule, known, terminals=False))
    _check_ways(rules, empty)
    ending = _fixed_point(rules, lambda rule, known: _can_be(rule, known, terminals=True))
    for name in rules:
        if name not in ending:
            raise _refused(f"rule {name!r} never ends")


def _refused(problem: str) -> BackendError:
    return BackendError(
        f"the GBNF was refused: {problem}",
        "`localmem grammar show --format gbnf` prints it; a function's types are the usual cause.",
    )


class _Reader:
    """llama.cpp's parser, without its rules: where it would go wrong, this says where."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.elements = 0
        self.symbols = 0

    def refuse(self, wanted: str) -> BackendError:
        line = self.text.count("\n", 0, self.place) + 1
        return _refused(f"line {line}: {wanted} at {self.text[self.place : self.place + 20]!r}")

    def skip(self, *, lines: bool) -> None:
        found = (_SPACE_AND_LINES if lines else _SPACE).match(self.text, self.place)
        assert found is not None, "both match nothing"
        self.place = found.end()

    def peek(self) -> str:
        return self.text[self.place : self.place + 1]

    def rules(self) -> dict[str, _Group]:
        rules: dict[str, _Group] = {}
        self.skip(lines=True)
        while self.peek():
            name = self._name()
            if name in rules:
                raise self.refuse(f"rule {name!r} stands there twice")
            self.skip(lines=False)
            if not self.text.startswith("::=", self.place):
                raise self.refuse("expected ::=")
            self.place += 3
            self.skip(lines=True)
            rules[name] = self._alternatives(depth=0)
            if self.peek() and self.peek() not in "\r\n":
                raise self.refuse("expected the end of the rule")
            self.skip(lines=True)
        return rules

    def _name(self) -> str:
        found = _NAME.match(self.text, self.place)
        if found is None:
            raise self.refuse("expected a name")
        self.place = found.end()
        return found[0]

    def _alternatives(self, depth: int) -> _Group:
        if depth > _MOST_DEPTH:
            raise self.refuse("too many groups in groups")
        alternatives = [self._sequence(depth)]
        while self.peek() == "|":
            self.place += 1
            self.skip(lines=True)
            alternatives.append(self._sequence(depth))
        return _Group(tuple(alternatives))

    def _sequence(self, depth: int) -> tuple[_Element, ...]:
        parts: list[_Element] = []
        weights: list[int] = []  # the rules llama.cpp makes of each part
        while (character := self.peek()) and (character in '"[(' or _NAME.match(character)):
            before = self.symbols
            part = self._one(depth)
            weights.append(max(1, self.symbols - before) if isinstance(part, _Group) else 1)
            self.skip(lines=depth > 0)
            while (found := self.peek()) and found in "*+?{":
                part = self._repeated(part, weights)
                self.skip(lines=depth > 0)
            parts.append(part)
        return tuple(parts)

    def _one(self, depth: int) -> _Element:
        character = self.peek()
        if character == '"':
            return self._literal()
        if character == "[":
            return self._class()
        if character != "(":
            self._count(1)
            self.symbols += 1
            return _Reference(self._name())
        self.place += 1
        self.skip(lines=True)
        inner = self._alternatives(depth + 1)
        if self.peek() != ")":
            raise self.refuse("expected )")
        self.place += 1
        self._count(1)
        self.symbols += 1
        return inner

    def _count(self, number: int) -> None:
        self.elements += number
        if self.elements > _MOST_ELEMENTS:
            raise self.refuse(f"more than {_MOST_ELEMENTS:,} elements")

    def _repeated(self, part: _Element, weights: list[int]) -> _Element:
        if isinstance(part, _Terminal) and part.size == 0:
            raise self.refuse("nothing to repeat")
        character = self.peek()
        if character == "{":
            found = _COUNTS.match(self.text, self.place)
            if found is None:
                raise self.refuse("expected {n}, {n,} or {n,m}")
            self.place = found.end()
            least = int(found[1])
            most = least if found[2] is None else (None if found[3] is None else int(found[3]))
        else:
            self.place += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        times = most or least or 1
        weights[-1] *= times
        if weights[-1] >= MOST_REPEATS or (most is not None and most < least):
            raise self.refuse(f"{times} repetitions")
        self._count(times)
        self.symbols += 1 if most is None else most - least
        return _Repeat(part, least, most)

    def _literal(self) -> _Terminal:
        self.place += 1
        size = 0
        while self.peek() != '"':
            self._character()
            size += 1
        self.place += 1
        self._count(size)
        return _Terminal(size)

    def _class(self) -> _Terminal:
        self.place += 2 if self.text.startswith("[^", self.place) else 1
        size = 0
        while self.peek() != "]":
            low = self._character()
            if self.peek() == "-" and self.text[self.place + 1 : self.place + 2] != "]":
                self.place += 1
                if self._character() < low:
                    raise self.refuse("a range from high to low before")
            size += 1
        if not size:
            raise self.refuse("an empty class")
        self.place += 1
        self._count(size)
        return _Terminal(1)

    def _character(self) -> int:
        character = self.peek()
        if not character:
            raise self.refuse("expected more")
        if character != "\\":
            self.place += 1
            return ord(character)
        found = _ESCAPE.match(self.text, self.place)
        if found is None:
            raise self.refuse("an unknown escape")
        self.place = found.end()
        named = {"t": 9, "r": 13, "n": 10}
        if len(found[0]) == 2:
            return named.get(found[0][1], ord(found[0][1]))
        return int(found[0][2:], 16)


def _names(element: _Element) -> Iterator[str]:
    if isinstance(element, _Reference):
        yield element.name
    elif isinstance(element, _Repeat):
        yield from _names(element.part)
    elif isinstance(element, _Group):
        for alternative in element.alternatives:
            for part in alternative:
                yield from _names(part)


def _can_be(element: _Element, known: set[str], *, terminals: bool) -> bool:
    """Whether an element can be made of rules that are known to do so, and of `terminals` if they may stand."""
    if isinstance(element, _Terminal):
        return terminals or element.size == 0
    if isinstance(element, _Reference):
        return element.name in known
    if isinstance(element, _Repeat):
        return element.least == 0 or _can_be(element.part, known, terminals=terminals)
    return any(
        all(_can_be(part, known, terminals=terminals) for part in alternative) for alternative in element.alternatives
    )


def _fixed_point(rules: _Rules, holds: Callable[[_Group, set[str]], bool]) -> set[str]:
    """The names of the rules for which something holds, built up from those for which it holds by themselves."""
    known: set[str] = set()
    found = -1
    while found != len(known):
        found = len(known)
        for name, rule in rules.items():  # a rule mostly stands behind those it names, so that one round is enough
            if name not in known and holds(rule, known):
                known.add(name)
    return known


class _Ways:
    """Counts the paths into a rule, leftmost first: what llama.cpp walks when it looks for left recursion."""

    def __init__(self, rules: _Rules, empty: set[str]) -> None:
        self._rules = rules
        self._empty = empty
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def into(self, name: str) -> int:
        if name in self._open:
            raise _refused(f"rule {name!r} begins with itself")
        if name not in self._known:
            self._open.add(name)
            self._known[name] = self._of(self._rules[name])
            self._open.remove(name)
        return self._known[name]

    def _of(self, element: _Element) -> int:
        if isinstance(element, _Reference):
            return 1 + self.into(element.name)
        if isinstance(element, _Repeat):
            return 1 + self._of(element.part) * max(1, element.most or element.least)
        if isinstance(element, _Terminal):
            return 1
        ways = 1
        for alternative in element.alternatives:
            for part in alternative:
                ways += self._of(part)
                if not _can_be(part, self._empty, terminals=False):
                    break
        return ways

    def total(self, element: _Element) -> int:
        """The ways into an element and everything in it: llama.cpp makes a rule of each group and each repeat."""
        if isinstance(element, _Repeat):
            if element.most is None and _can_be(element.part, self._empty, terminals=False):
                raise _refused("what may be nothing is repeated without end")
            return self._of(element) + self.total(element.part)
        if isinstance(element, _Group):
            inside = sum(self.total(part) for alternative in element.alternatives for part in alternative)
            return self._of(element) + inside
        return 1


def _check_ways(rules: _Rules, empty: set[str]) -> None:
    ways = _Ways(rules, empty)
    try:
        total = sum(ways.into(name) + ways.total(rule) for name, rule in rules.items())
    except RecursionError as error:
        raise _refused("its rules are nested too deep") from error
    if total > _MOST_VISITS:
        raise _refused("there are too many ways through its rules")
