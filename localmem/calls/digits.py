"""Ranges of numbers as GBNF: which digits may follow which, so that only numbers of the range can be written.

Pure. Every function gives the right side of a rule, as one symbol or group.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

PLACES = 6  # decimals of a number: the grammar's multiple of a millionth
_UNIT = 10**PLACES


def integers(low: int, high: int) -> str:
    """The integers of a range, canonical; `-0` too where zero lies inside, as llguidance has it.

    >>> integers(1, 12)
    '([1-9] | "1" ([0-2]))'
    """
    parts: list[str] = []
    if low < 0:
        parts.append(f'"-" {_group(_natural(max(0, -high), -low))}')
    if high >= 0:
        parts += _natural(max(0, low), high)
    return _group(parts)


def decimals(low: Decimal, high: Decimal, *, open_low: bool, open_high: bool) -> str:
    """The numbers of a range with at most six decimals and no exponent; "" when there is none.

    `open_low` and `open_high` leave the bound itself out.
    """
    least = int((low * _UNIT).to_integral_value(ROUND_CEILING))
    most = int((high * _UNIT).to_integral_value(ROUND_FLOOR))
    least += open_low and least == low * _UNIT
    most -= open_high and most == high * _UNIT
    parts: list[str] = []
    if least < 0:  # nothing writes a negative zero
        parts += [f'"-" {part}' for part in _scaled(max(1, -most), -least)] if -least >= max(1, -most) else []
    if most >= max(0, least):
        parts += _scaled(max(0, least), most)
    return _group(parts) if parts else ""


def any_number(whole: int, places: int, exponent: int) -> str:
    """A number of so many digits before the point, behind it and in the exponent; both of these may be missing."""
    digits = f'("0" | [1-9] [0-9]{{0,{whole - 1}}})'
    return f'"-"? {digits} ("." [0-9]{{1,{places}}})? ([eE] [-+]? [0-9]{{1,{exponent}}})?'


def _scaled(least: int, most: int) -> list[str]:
    """Numbers from `least` to `most`, both counted in millionths and not negative."""
    (first, first_part), (last, last_part) = divmod(least, _UNIT), divmod(most, _UNIT)
    if first == last:
        return [f'"{first}" {_fraction(first_part, last_part)}'.strip()]
    parts = [f'"{first}" {_fraction(first_part, _UNIT - 1)}'.strip()]
    if last - first > 1:
        parts.append(f"{_group(_natural(first + 1, last - 1))} {_fraction(0, _UNIT - 1)}")
    return [*parts, f'"{last}" {_fraction(0, last_part)}'.strip()]


def _fraction(low: int, high: int) -> str:
    """What may follow an integer, the fraction in millionths: nothing at all where `low` is 0."""
    if high == 0:
        return '("." "0"{1,6})?'
    digits = _padded(f"{low:06}", f"{high:06}", least=1)
    return f'("." {digits})?' if low == 0 else f'"." {digits}'


def _padded(low: str, high: str, *, least: int) -> str:
    """At least `least` digits whose value, with zeros behind, is between two texts of the same length."""
    room = len(low)
    if set(low) == {"0"} and set(high) == {"9"}:
        return f"[0-9]{{{least},{room}}}"
    parts: list[str] = []
    for first, last, rest_low, rest_high in _by_first_digit(low, high):
        rest = _padded(rest_low, rest_high, least=0) if rest_low else ""
        parts.append(f"{_one_of(first, last)} {rest}".strip())
    whole = _group(parts)
    return f"{whole}?" if not least and set(low) == {"0"} else whole


def _natural(low: int, high: int) -> list[str]:
    """The integers from `low` to `high`, not negative, without leading zeros."""
    parts: list[str] = []
    if low == 0:
        parts.append('"0"')
        low = 1
    while low <= high:
        size = len(str(low))
        if low == 10 ** (size - 1) and high >= 10**size - 1:  # whole lengths in one
            most = len(str(high)) if high == 10 ** len(str(high)) - 1 else len(str(high)) - 1
            rest = f" [0-9]{{{size - 1},{most - 1}}}" if most > 1 else ""
            parts.append(f"[1-9]{rest}")
            low = 10**most
            continue
        end = min(high, 10**size - 1)
        parts += _same_length(str(low), str(end))
        low = end + 1
    return parts


def _same_length(low: str, high: str) -> list[str]:
    """Texts of digits between two of the same length."""
    parts: list[str] = []
    for first, last, rest_low, rest_high in _by_first_digit(low, high):
        parts.append(f"{_one_of(first, last)} {_rest(rest_low, rest_high)}".strip())
    return parts


def _rest(low: str, high: str) -> str:
    if not low:
        return ""
    if set(low) == {"0"} and set(high) == {"9"}:
        return f"[0-9]{{{len(low)}}}" if len(low) > 1 else "[0-9]"
    return _group(_same_length(low, high))


def _by_first_digit(low: str, high: str) -> list[tuple[str, str, str, str]]:
    """(first digit from, to, the rest's low, high): what may follow differs only at the two ends."""
    nines, zeros = "9" * (len(low) - 1), "0" * (len(low) - 1)
    if low[0] == high[0]:
        return [(low[0], low[0], low[1:], high[1:])]
    first, last = int(low[0]), int(high[0])
    parts: list[tuple[str, str, str, str]] = []
    if low[1:] != zeros:
        parts.append((low[0], low[0], low[1:], nines))
        first += 1
    if high[1:] != nines:
        last -= 1
    if first <= last:
        parts.append((str(first), str(last), zeros, nines))
    if high[1:] != nines:
        parts.append((high[0], high[0], zeros, high[1:]))
    return parts


def _one_of(first: str, last: str) -> str:
    return f'"{first}"' if first == last else f"[{first}-{last}]"


def _group(parts: list[str]) -> str:
    return f"({' | '.join(parts)})"
