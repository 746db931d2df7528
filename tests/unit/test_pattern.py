"""Texts left out of a pattern, checked against Python's own regular expressions."""

from __future__ import annotations

import re
from itertools import product

import pytest

from localmem.calls.pattern import Alternatives, Characters, Node, Repeated, but, lengths, parse
from localmem.memory.functions import days_of


def expression(node: Node) -> str:
    """A node as a regular expression."""
    if isinstance(node, Characters):
        return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in node.ranges) + "]"
    if isinstance(node, Repeated):
        return f"(?:{expression(node.part)}){{{node.least},{'' if node.most is None else node.most}}}"
    joint = "|" if isinstance(node, Alternatives) else ""
    return f"(?:{joint.join(map(expression, node.parts))})"


TEXTS = ["".join(letters) for length in range(5) for letters in product("abc", repeat=length)]


@pytest.mark.parametrize(
    "pattern", ["^[ab]{0,3}$", "^a?b*c?$", "^(a|bc|)(b|c)+$", "^abc$", "^[^b]", "^(ab|a)(c|bc)$", "a"]
)
@pytest.mark.parametrize("barred", [[], [""], ["a"], ["a", "ab", "abc"], ["b", "ca", "cab", "zzz"], ["abc", "aabc"]])
def test_what_is_left_is_everything_but_the_barred(pattern: str, barred: list[str]):
    left = but(parse(pattern), barred)
    matcher = re.compile(expression(left)) if left is not None else re.compile(r"(?!)")
    for text in TEXTS:
        assert (matcher.fullmatch(text) is not None) == (re.search(pattern, text) is not None and text not in barred)


def test_nothing_is_left_of_the_only_text():
    assert but(parse("^abc$"), ["abc"]) is None


def test_one_day_less():
    left = but(parse(days_of(2023, 2024)), ["2024-02-29", "2023-01-01"])
    assert left is not None
    matcher = re.compile(expression(left))
    for day in ("2024-02-28", "2024-12-31", "2023-01-02"):
        assert matcher.fullmatch(day)
    for day in ("2024-02-29", "2023-01-01", "2023-02-29", "2024-13-01"):
        assert not matcher.fullmatch(day)
    assert lengths(left) == (10, 10)
