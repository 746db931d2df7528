"""The grammar of a step as GBNF, for llama.cpp's own sampler: the twin of what llguidance gets.

Pure. The same calls in the same layout: properties in order, ", " and ": " between them, strings without raw control
characters, numbers within their ranges. What GBNF cannot say raises LocalmemError, so that no grammar is ever wrong.
Spelled more narrowly than by llguidance: a control character inside an enum's value has one escape, not three.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from localmem.calls.digits import any_number, decimals, integers
from localmem.calls.gbnf_check import check_gbnf
from localmem.calls.grammar import (
    DECIMAL,
    DECIMALS,
    EXPONENT_DIGITS,
    WHOLE_DIGITS,
    CallGrammar,
    Schema,
    closed_parameters,
    is_any_number,
)
from localmem.calls.pattern import (
    ANY,
    Alternatives,
    Characters,
    Node,
    Ranges,
    Repeated,
    Sequential,
    but,
    common,
    lengths,
    parse,
    within,
    without,
)
from localmem.calls.schema import label_of
from localmem.errors import LocalmemError

_BLOCK = 500  # llama.cpp refuses 2,000 repetitions; longer texts are made of blocks, which all strings share
_MOST_TAILS = 400  # characters that may follow a text's barred beginning, as rules of their own
_NAME = re.compile("[a-z0-9-]+")
_MOST_MULTIPLES = 500  # of a `multipleOf`: they are written out

_NOTED = frozenset({"description", "title", "default", "$defs"})
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, 0x10FFFF))
_CONTROL: Ranges = ((0, 0x1F), (0x7F, 0x7F))

_DAY = "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\\.[0-9]+)?"
_OFFSET = "[+-]([01][0-9]|2[0-3]):[0-5][0-9]"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
# RFC 3339, 4122 and 791. Zone and offset stand in alternatives of their own, so that a bound on the whole can be kept.
_FORMATS = {
    "date": f"^{_DAY}$",
    "time": f"^{_CLOCK}[zZ]$|^{_CLOCK}{_OFFSET}$",
    "date-time": f"^{_DAY}[tT]{_CLOCK}[zZ]$|^{_DAY}[tT]{_CLOCK}{_OFFSET}$",
    "uuid": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    "ipv4": f"^({_OCTET}\\.){{3}}{_OCTET}$",
}


def write_gbnf(grammar: CallGrammar) -> str:
    """The calls of a step and their frame as GBNF, proven safe to hand to llama.cpp.

    Raises LocalmemError for what GBNF cannot say.
    """
    writer = _Writer()
    calls: list[str] = []
    for index, choice in enumerate(grammar.choices):
        schema = closed_parameters(choice.parameters)
        arguments = _Values(writer, schema.get("$defs", {}), choice.name).value(schema)
        head = _literal(grammar.frame.head(choice.name))
        body = f"{head} {arguments} {_literal(grammar.frame.after) if grammar.frame.after else ''}".strip()
        calls.append(writer.define(f"call-{index}", body))
    text = f"root ::= {' | '.join(calls)}\n" + writer.text()
    check_gbnf(text)
    return text


class _Writer:
    """Rules by name, each written once: what is alike is shared."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def text(self) -> str:
        return "".join(f"{name} ::= {body}\n" for name, body in self._rules.items())

    def rule(self, hint: str, body: str) -> str:
        """The name of a rule with that body."""
        if body not in self._names:
            self._names[body] = self.define(self.reserve(hint), body)
        return self._names[body]

    def reserve(self, hint: str) -> str:
        """A name that is free and stays so."""
        name = f"{hint}-{len(self._rules)}"
        self._rules[name] = ""
        return name

    def define(self, name: str, body: str) -> str:
        self._rules[name] = body
        return name

    def times(self, symbol: str, least: int, most: int | None, hint: str) -> str:
        """`symbol` so many times, as a sequence; "" for not at all."""
        parts = [self._exactly(symbol, least, hint)]
        if most is None:
            parts.append(f"{symbol}*")
        elif most > least:
            parts.append(self._at_most(symbol, most - least, hint))
        return " ".join(part for part in parts if part)

    def _exactly(self, symbol: str, count: int, hint: str) -> str:
        blocks, rest = divmod(count, _BLOCK)
        if not blocks:
            return _counted(symbol, rest, rest)
        block = self.rule(f"{hint}-block", _counted(symbol, _BLOCK, _BLOCK))
        return f"{self._exactly(block, blocks, f'{hint}-block')} {_counted(symbol, rest, rest)}".strip()

    def _at_most(self, symbol: str, count: int, hint: str) -> str:
        """Up to `count` symbols, so that at each of them only one or two ways on are open."""
        if count <= _BLOCK:
            return _counted(symbol, 0, count)
        blocks, rest = divmod(count, _BLOCK)
        block = self.rule(f"{hint}-block", _counted(symbol, _BLOCK, _BLOCK))
        short = self.rule(f"{hint}-part", _counted(symbol, 1, _BLOCK - 1))
        rule = self.rule(f"{hint}-end", _counted(symbol, 1, rest)) if rest else ""
        for _ in range(blocks):
            rule = self.rule(f"{hint}-long", f"{block} {rule}? | {short}" if rule else f"{block} | {short}")
        return f"{rule}?"


def _counted(symbol: str, least: int, most: int) -> str:
    if most == 0:
        return ""
    if (least, most) in ((1, 1), (0, 1)):
        return symbol if least else f"{symbol}?"
    return f"{symbol}{{{least}}}" if least == most else f"{symbol}{{{least},{most}}}"


class _Values:
    """Writes the rules of one function's schema."""

    def __init__(self, writer: _Writer, definitions: Mapping[str, Schema], owner: str) -> None:
        self._writer = writer
        self._definitions = definitions
        self._defined: dict[str, str] = {}
        self._owner = owner
        self._tails: dict[tuple[int, int | None], str] = {}

    def refuse(self, what: str) -> LocalmemError:
        return LocalmemError(
            f"function {self._owner!r}: GBNF cannot say {what}",
            "Write the type more plainly, or leave backend.constraint at llguidance.",
        )

    def value(self, schema: Any) -> str:  # Any: JSON
        """A symbol for the values of a schema."""
        if not isinstance(schema, Mapping):
            raise self.refuse("that something may be anything")
        if "$ref" in schema:
            self._only(schema, "$ref")
            return self._definition(schema["$ref"])
        if "enum" in schema or "const" in schema:
            self._only(schema, "enum", "const", "type")
            return self._values(schema)
        for key in ("anyOf", "allOf"):
            if key in schema:
                self._only(schema, key)
                return self._one_of(schema[key], key)
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._group([self.value({**schema, "type": one}) for one in kind])
        write = {
            "string": self._text,
            "integer": self._integer,
            "number": self._number,
            "array": self._list,
            "object": self._object,
        }.get(str(kind))
        if write is not None:
            return write(schema)
        if kind not in ("boolean", "null"):
            raise self.refuse(f"what {json.dumps(dict(schema))[:80]} is")
        self._only(schema, "type")
        return '"null"' if kind == "null" else self._writer.rule("boolean", '"true" | "false"')

    def _only(self, schema: Schema, *keys: str) -> None:
        """Raises LocalmemError for a keyword that would be overlooked."""
        for key in schema:
            if key not in keys and key not in _NOTED:
                raise self.refuse(f"{key!r} beside {keys[0]!r}")

    def _group(self, symbols: Sequence[str]) -> str:
        return self._writer.rule("either", " | ".join(dict.fromkeys(symbols)))

    def _one_of(self, alternatives: Sequence[Schema], key: str) -> str:
        if key == "allOf" and len(alternatives) != 1 or not alternatives:
            raise self.refuse(f"{key!r} of {len(alternatives)}")
        return self._group([self.value(alternative) for alternative in alternatives])

    def _definition(self, reference: str) -> str:
        label = label_of(reference)
        if label not in self._definitions:
            raise self.refuse(f"{reference!r}")
        if label not in self._defined:  # named before it is written: it may hold itself
            name = self._writer.reserve(re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "definition")
            self._defined[label] = name
            self._writer.define(name, self.value(self._definitions[label]))
        return self._defined[label]

    def _values(self, schema: Schema) -> str:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        kinds = schema.get("type")
        if kinds is not None:
            values = [value for value in values if _is_a(value, [kinds] if isinstance(kinds, str) else kinds)]
        if not values:
            raise self.refuse("that there is no value")
        literals = [_literal(written(value)) for value in values]
        return literals[0] if len(literals) == 1 else self._writer.rule("one-of", " | ".join(dict.fromkeys(literals)))

    # -- text ----------------------------------------------------------------------------------------------------

    def _text(self, schema: Schema) -> str:
        self._only(schema, "type", "minLength", "maxLength", "pattern", "format", "not")
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if "not" in schema and "pattern" not in schema:
            self._only(schema, "type", "minLength", "maxLength", "not")
            rest = self._but(_barred(schema["not"], self), least, most)
            if not rest:
                raise self.refuse("a text that is none of all there are")
            return self._writer.rule("string", f'"\\"" {rest}')
        if "pattern" in schema and "format" in schema:
            raise self.refuse("a pattern and a format at once")
        if "pattern" not in schema and "format" not in schema:
            if most is not None and least > most:
                raise self.refuse("a text longer than it may be")
            body = self._writer.times(self._character(ANY), least, most, "text")
            return self._writer.rule("string", f'"\\"" {body} "\\""' if body else '"\\"\\""')
        node = self._node(schema)
        shortest, longest = lengths(node)
        if shortest < least or (most is not None and (longest is None or longest > most)):
            raise self.refuse(f"a pattern of {shortest} to {longest or 'any number of'} characters and a length")
        kept = but(node, _barred(schema["not"], self)) if "not" in schema else node
        if kept is None:
            raise self.refuse("a text that is none of all there are")
        return self._writer.rule("string", f'"\\"" {self._sequence(kept)} "\\""')

    def _but(self, barred: frozenset[str], least: int, most: int | None, written: str = "") -> str:
        """The rest of a text that is none of `barred`, which all begin with `written`, and its closing quote.

        A tree of their characters: where a text leaves it, the rest is free. "" when there is no such text.
        """
        ways: list[str] = []
        if len(written) >= least and written not in barred:
            ways.append('"\\""')
        if most is None or len(written) < most:
            place = len(written)
            following = sorted({text[place] for text in barred if len(text) > place})
            for character in following:
                inside = frozenset(text for text in barred if text[place : place + 1] == character)
                rest = self._but(inside, least, most, written + character)
                if not rest:
                    continue
                ways.append(f"{self._character(((ord(character), ord(character)),))} {rest}")
            other = self._character(without([(ord(character), ord(character)) for character in following]))
            ways.append(f"{other} {self._free(max(0, least - place - 1), None if most is None else most - place - 1)}")
        return self._writer.rule("but", " | ".join(ways)) if ways else ""

    def _free(self, least: int, most: int | None) -> str:
        """The rest of a text of any characters, and its closing quote."""
        if (least, most) not in self._tails:
            self._tails[least, most] = self._tail(least, most)
        return self._tails[least, most]

    def _tail(self, least: int, most: int | None) -> str:
        character = self._character(ANY)
        if most is None or most > _MOST_TAILS:
            return f'{self._writer.times(character, least, most, "text")} "\\""'
        tail = '"\\""'  # of no more characters; each tail is shared by all that are longer
        for left in range(1, most + 1):
            tail = self._writer.rule("tail", f"{character} {tail}" + ("" if left > most - least else ' | "\\""'))
        return tail

    def _node(self, schema: Schema) -> Node:
        form = schema.get("format")
        if form is not None and form not in _FORMATS:
            raise self.refuse(f"the format {form!r}")
        node = parse(schema["pattern"] if form is None else _FORMATS[form])
        most = schema.get("maxLength")
        short = node if most is None else within(node, most)
        if short is None:
            raise self.refuse("a text longer than it may be")
        return short

    def _sequence(self, node: Node) -> str:
        """What matches a pattern, inside of a JSON string, as a sequence of symbols."""
        if isinstance(node, Characters):
            return self._character(node.ranges)
        if isinstance(node, Sequential):
            return " ".join(part for part in map(self._sequence, node.parts) if part)
        if isinstance(node, Alternatives):
            return self._writer.rule("pattern", " | ".join(self._sequence(part) or '""' for part in node.parts))
        assert isinstance(node, Repeated)
        inner = self._sequence(node.part)
        if not inner or node.most == 0:
            return ""
        if lengths(node.part)[0] == 0:
            raise self.refuse("a repeat of what may be nothing")
        symbol = inner if _NAME.fullmatch(inner) else self._writer.rule("pattern", inner)
        return self._writer.times(symbol, node.least, node.most, symbol)

    def _character(self, ranges: Ranges) -> str:
        """One character of a set, as JSON writes it."""
        parts: list[str] = []
        plain = common(ranges, _PLAIN)
        if plain:
            parts.append(_class(plain))
        short = [letter for character, letter in _SHORT_ESCAPES.items() if _in(ord(character), ranges)]
        controls = [code for code in (*range(0x20), 0x7F) if _in(code, ranges)]
        if len(controls) == 0x21:
            parts.append(f'"\\\\" {self._writer.rule("escape", _escapes(short))}')
        else:
            parts += [_literal(f"\\{letter}") for letter in short]
            parts += [_hexadecimal(code) for code in controls]
        if not parts:
            raise self.refuse("a character that is none")
        return self._writer.rule("character", " | ".join(parts))

    # -- numbers -------------------------------------------------------------------------------------------------

    def _integer(self, schema: Schema) -> str:
        self._only(schema, "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
        low, high, open_low, open_high = _bounds(schema)
        least = int(low.to_integral_value("ROUND_CEILING")) + (open_low and low == low.to_integral_value())
        most = int(high.to_integral_value("ROUND_FLOOR")) - (open_high and high == high.to_integral_value())
        if least > most:
            raise self.refuse("a number in an empty range")
        step = schema.get("multipleOf", 1)
        if step == 1:
            return self._writer.rule("integer", integers(least, most))
        multiples = range(-(-least // step) * step, most + 1, step) if isinstance(step, int) and step > 0 else range(0)
        if not 0 < len(multiples) <= _MOST_MULTIPLES:
            raise self.refuse(f"the multiples of {step} from {least} to {most}")
        return self._writer.rule("integer", " | ".join(_literal(str(number)) for number in multiples))

    def _number(self, schema: Schema) -> str:
        self._only(schema, "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
        if is_any_number(schema):
            return self._writer.rule("number", any_number(WHOLE_DIGITS, DECIMALS, EXPONENT_DIGITS))
        if schema.get("multipleOf") != DECIMAL:
            raise self.refuse("multiples of a fraction")
        low, high, open_low, open_high = _bounds(schema)
        body = decimals(low, high, open_low=open_low, open_high=open_high)
        if not body:
            raise self.refuse("a number in an empty range")
        return self._writer.rule("number", body)

    # -- lists and objects ---------------------------------------------------------------------------------------

    def _list(self, schema: Schema) -> str:
        self._only(schema, "type", "items", "prefixItems", "minItems", "maxItems")
        first = [self.value(item) for item in schema.get("prefixItems", ())]
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        first = first[:most]
        open_ended = most is None or most > len(first)
        if open_ended and not isinstance(schema.get("items"), Mapping):
            raise self.refuse("a list of anything")
        if most is not None and least > most:
            raise self.refuse("a list longer than it may be")
        rest = self.value(schema["items"]) if open_ended else ""
        if not first:
            return self._writer.rule("list", self._items(rest, least, most)) if rest else '"[]"'
        return self._writer.rule("list", f'"[" {self._prefixed(first, rest, least, most, 0)}')

    def _items(self, item: str, least: int, most: int | None) -> str:
        following = self._writer.rule("following", f'", " {item}')
        more = self._writer.times(following, max(0, least - 1), None if most is None else most - 1, "following")
        inner = f"{item} {more}".strip()
        return f'"[" {inner} "]"' if least else f'"[" ({inner})? "]"'

    def _prefixed(self, first: Sequence[str], rest: str, least: int, most: int | None, done: int) -> str:
        """What follows after `done` of the items that each have a type of their own."""
        if done == len(first):
            if not rest:
                return '"]"'
            following = self._writer.rule("following", f'", " {rest}')
            room = None if most is None else most - done
            return f'{self._writer.times(following, max(0, least - done), room, "following")} "]"'
        more = self._prefixed(first, rest, least, most, done + 1)
        separator = '", " ' if done else ""
        if done < least:
            return f"{separator}{first[done]} {more}"
        return self._writer.rule("items", f'"]" | {separator}{first[done]} {more}')

    def _object(self, schema: Schema) -> str:
        if "patternProperties" in schema:
            return self._map(schema)
        self._only(schema, "type", "properties", "required", "additionalProperties")
        properties: Mapping[str, Schema] = schema.get("properties", {})
        if schema.get("additionalProperties") is not False:
            raise self.refuse("properties that were not declared")
        required = schema.get("required", ())
        if not set(required) <= set(properties):
            raise self.refuse("a required property that was not declared")
        fields = [
            (f"{_literal(json.dumps(name, ensure_ascii=False) + ': ')} {self.value(inner)}", name in required)
            for name, inner in properties.items()
        ]
        if not fields:
            return '"{}"'
        return self._writer.rule("object", f'"{{" {self._fields(fields)}')

    def _fields(self, fields: Sequence[tuple[str, bool]]) -> str:
        """The rest of an object: at each place a field may come after another one, or be the first."""
        after = first = '"}"'
        for field, required in reversed(fields):
            with_it = f"{field} {after}"
            after, first = (
                (f'", " {with_it}', with_it)
                if required
                else (
                    self._writer.rule("rest", f'", " {with_it} | {after}'),
                    self._writer.rule("rest", f"{with_it} | {first}"),
                )
            )
        return first

    def _map(self, schema: Schema) -> str:
        self._only(schema, "type", "patternProperties", "additionalProperties", "minProperties", "maxProperties")
        if schema.get("additionalProperties") is not False or len(schema["patternProperties"]) != 1:
            raise self.refuse("properties that were not declared")
        [(key, inner)] = schema["patternProperties"].items()
        name = self._writer.rule("key", f'"\\"" {self._sequence(parse(key))} "\\""')
        pair = self._writer.rule("pair", f'{name} ": " {self.value(inner)}')
        pairs = self._items(pair, schema.get("minProperties", 0), schema.get("maxProperties"))
        return self._writer.rule("map", f'"{{" {pairs.removeprefix(_OPENING).removesuffix(_CLOSING)} "}}"')


_OPENING, _CLOSING = '"[" ', ' "]"'


def _barred(schema: Any, values: _Values) -> frozenset[str]:  # Any: JSON
    """The texts that a `not` leaves out."""
    texts = (
        schema.get("enum", [schema["const"]] if "const" in schema else None) if isinstance(schema, Mapping) else None
    )
    if texts is None or len(schema) != 1 or not all(isinstance(text, str) for text in texts):
        raise values.refuse("a 'not' of other than texts")
    return frozenset(texts)


def _bounds(schema: Schema) -> tuple[Decimal, Decimal, bool, bool]:
    """The tightest low and high, and whether each is itself left out."""
    lows = [(Decimal(str(schema[key])), key != "minimum") for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [(Decimal(str(schema[key])), key == "maximum") for key in ("maximum", "exclusiveMaximum") if key in schema]
    (low, open_low), (high, closed_high) = max(lows), min(highs)
    return low, high, open_low, not closed_high


def _is_a(value: object, kinds: Sequence[str]) -> bool:
    """Whether a value is of one of JSON's types."""
    if value is None or isinstance(value, bool):
        return ("null" if value is None else "boolean") in kinds
    if isinstance(value, (int, float)):
        return "number" in kinds or ("integer" in kinds and value == int(value))
    if isinstance(value, str):
        return "string" in kinds
    return ("array" if isinstance(value, list) else "object") in kinds


def written(value: Any) -> str:  # Any: JSON
    """A value as it stands in a call: serde's spelling, one space after a comma and a colon.

    >>> written({"a": [1.0, 1e-7, None]})
    '{"a": [1, 0.0000001, null]}'
    """
    if isinstance(value, Mapping):
        inner = [f"{json.dumps(key, ensure_ascii=False)}: {written(item)}" for key, item in value.items()]
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, float):
        whole = format(Decimal(repr(value)), "f")
        return whole.rstrip("0").rstrip(".") if "." in whole else whole
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _in(code: int, ranges: Ranges) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _literal(text: str) -> str:
    """Text as a GBNF literal. Raises LocalmemError for half a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LocalmemError(f"{text!r} cannot be written in UTF-8", "Use whole characters.") from error
    return f'"{"".join(_escaped(character) for character in text)}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else _coded(ord(character))


def _class(ranges: Ranges) -> str:
    """A set of characters as a GBNF class."""
    return "[" + "".join(_bound(a) if a == b else f"{_bound(a)}-{_bound(b)}" for a, b in ranges) + "]"


def _bound(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else _coded(code)


def _coded(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _escapes(short: Sequence[str]) -> str:
    """What may follow a backslash where every control character may stand."""
    letters = _class(tuple((ord(letter), ord(letter)) for letter in sorted(short)))
    return f'{letters} | "u00" ([0-1] [0-9a-fA-F] | "7" [fF])'


def _hexadecimal(code: int) -> str:
    """A control character's long escape, in either case."""
    digits = f"{code:02x}"
    last = f"[{digits[1]}{digits[1].upper()}]" if digits[1].isalpha() else f'"{digits[1]}"'
    return f'"\\\\u00{digits[0]}" {last}'
