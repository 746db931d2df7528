"""A range as digits lets exactly its numbers be written."""

from __future__ import annotations

import re
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from localmem.calls.digits import decimals, integers

bounds = st.integers(-1_300, 1_300) | st.integers(-(10**16), 10**16)
fractions = st.decimals(-30, 30, places=3) | st.decimals(-2, 2, places=6)


def expression(body: str) -> re.Pattern[str]:
    """The group as a regular expression: without names, GBNF differs only in quotes and spaces."""
    literal = re.sub(r'"([^"]*)"', lambda found: re.escape(found[1]), body)
    return re.compile(literal.replace(" ", ""))


def around(low: int, high: int) -> st.SearchStrategy[int]:
    edges = st.sampled_from([low - 1, low, high, high + 1, 0, -low, -high, low // 10, high * 10])
    return edges | st.integers(low - 30, high + 30)


@given(data=st.data(), ends=st.tuples(bounds, bounds).map(sorted))
def test_integer_is_written_if_and_only_if_it_is_in_the_range(data: st.DataObject, ends: list[int]):
    low, high = ends
    number = data.draw(around(low, high))
    assert bool(expression(integers(low, high)).fullmatch(str(number))) == (low <= number <= high)
    assert not expression(integers(low, high)).fullmatch(f"0{abs(number)}")


@given(
    data=st.data(),
    ends=st.tuples(fractions, fractions).map(sorted),
    open_low=st.booleans(),
    open_high=st.booleans(),
)
def test_number_is_written_if_and_only_if_it_is_in_the_range(
    data: st.DataObject, ends: list[Decimal], open_low: bool, open_high: bool
):
    low, high = ends
    body = decimals(low, high, open_low=open_low, open_high=open_high)
    step = Decimal("0.000001")
    number = data.draw(st.sampled_from([low, high, low - step, high + step, low + step, high - step]) | fractions)
    inside = (low < number or (low == number and not open_low)) and (
        number < high or (number == high and not open_high)
    )
    for text in {f"{number:f}", f"{number.normalize():f}"}:
        written = bool(body) and bool(expression(body).fullmatch(text))
        assert written == (inside and not (number == 0 and text.startswith("-"))), text
    assert not body or not expression(body).fullmatch(f"{number:f}0000000")
