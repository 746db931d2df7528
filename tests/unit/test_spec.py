"""Functions a model may call: read off Python's types, checked when they are registered."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired
from uuid import UUID

import numpy as np
import pytest
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, HttpUrl, Json, SecretStr, WithJsonSchema
from typing_extensions import TypedDict

from localmem.backend.base import Sampling
from localmem.backend.constraint import GuidanceEngine, Logits, check_enforceable
from localmem.backend.decode_loop import DecodeLoop
from localmem.backend.llama import LlamaBackend
from localmem.backend.scripted import ScriptedBackend
from localmem.calls.chat_format import BARE
from localmem.calls.grammar import CallGrammar, FunctionChoice, closed
from localmem.calls.spec import from_python, load_declarations
from localmem.errors import LocalmemError
from localmem.resources import data_dir


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    name: str
    floor: int = 0


@dataclass
class Size:
    width: int


def function_of(annotation: object) -> Callable[..., object]:
    def f(x: Any) -> None:
        """Do it."""

    f.__annotations__ = {"x": annotation}
    return f


def test_name_description_and_schema_are_read_off():
    def weather(city: str, days: int = 1) -> str:
        """Tell the weather
        in a city.

        Not for the model.
        """
        return f"{city} {days}"

    spec = from_python(weather)
    assert (spec.name, spec.description) == ("weather", "Tell the weather in a city.")
    assert spec.parameters == {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 400}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }


def test_parameter_named_title_or_default_is_kept():
    def book(title: str, default: int) -> None:
        """Book it."""

    assert list(from_python(book).parameters["properties"]) == ["title", "default"]


def test_function_without_parameters_takes_an_empty_object():
    def ping() -> str:
        """Say pong."""
        return "pong"

    assert from_python(ping).parameters["properties"] == {}
    assert from_python(ping).run() == "pong"


def no_docstring(x: int) -> None: ...


def no_type(x) -> None:
    """Do it."""


def variadic(*x: int) -> None:
    """Do it."""


def keyword_variadic(**x: int) -> None:
    """Do it."""


def positional_only(x: int, /) -> None:
    """Do it."""


def takes_ours(request_heartbeat: bool) -> None:
    """Do it."""


def takes_thought(thought: str) -> None:
    """Do it."""


def unknown_type(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821  # that is the test
    """Do it."""


@pytest.mark.parametrize(
    "function",
    [
        no_docstring,
        no_type,
        variadic,
        keyword_variadic,
        positional_only,
        takes_ours,
        takes_thought,
        unknown_type,
        lambda x: x,
    ],
)
def test_what_a_model_cannot_fill_is_refused_when_it_is_registered(function: Callable[..., object]):
    with pytest.raises(LocalmemError) as caught:
        from_python(function)
    assert caught.value.hint


class Tree(BaseModel):
    value: int
    children: list[Tree]


class Link(BaseModel):
    value: int
    following: Link | None


class Deep(BaseModel):
    tags: list[set[str]]


class Endless(BaseModel):
    another: Endless


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Odd(Enum):
    QUOTED = 'say "x"\n\t\\ \x7f'
    EMOJI = "é 🫠😀"
    NUMBER = 2


class Nothing(Enum):
    pass


class Pair(NamedTuple):
    first: int
    second: str = "x"


class Ticket(TypedDict):
    number: int
    note: NotRequired[str]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a_name: Annotated[str, Field(alias="a name")]


TYPES = [
    str,
    int,
    float,
    bool,
    None,
    date,
    time,
    datetime,
    timedelta,
    UUID,
    Path,
    bytes,
    SecretStr,
    HttpUrl,
    IPv4Address,
    Colour,
    Odd,
    Place,
    Size,
    Pair,
    Ticket,
    Open,
    Tree,
    Link,
    int | None,
    int | str,
    Place | None,
    Cat | Dog,
    Annotated[Cat | Dog, Field(discriminator="kind")],
    list[Place],
    list[list[int]],
    dict[str, int],
    dict[str, Place],
    tuple[int, str],
    tuple[int, ...],
    Literal["a", 1],
    Literal["a", 1, True, None],
    Annotated[int, Field(ge=1, le=5)],
    Annotated[int, Field(gt=1, lt=50, multiple_of=5)],
    Annotated[int, Field(ge=10**16)],
    Annotated[float, Field(gt=0, le=1)],
    Annotated[str, Field(pattern="^a+$")],
    Annotated[str, Field(min_length=2, max_length=100_000)],
    Annotated[list[int], Field(max_length=3)],
    Annotated[dict[str, int], Field(min_length=1)],
]


@pytest.mark.parametrize("annotation", TYPES, ids=str)
def test_registered_function_can_be_put_into_a_grammar(
    annotation: object, guidance: GuidanceEngine, smollm_counting: LlamaBackend
):
    spec = from_python(function_of(annotation))
    check_enforceable(spec, smollm_counting)
    grammar = CallGrammar(BARE, (FunctionChoice(spec.name, spec.parameters),))
    encode = smollm_counting.tokenizer.encode
    assert not guidance.start(grammar.lark(lambda text: encode(text, special=True))).finished


class Insistent:
    """A model that likes some tokens so well that it would write nothing else."""

    end_tokens: frozenset[int] = frozenset()

    def __init__(self, backend: LlamaBackend, size: int, liked: Callable[[bytes], bool]) -> None:
        self._backend = backend
        self.closers = backend.closers
        random = np.random.default_rng(1)
        pieces = [backend.tokenizer.decode_bytes([token]) for token in range(size)]
        self._logits = random.standard_normal(len(pieces)).astype(np.float32)
        self._logits[[token for token, piece in enumerate(pieces) if liked(piece)]] += 30
        self._logits[backend.control_tokens] = -np.inf

    def feed(self, ids: Sequence[int]) -> None: ...

    def logits(self) -> Logits:
        return self._logits.copy()

    def text_of(self, ids: Sequence[int]) -> bytes:
        return self._backend.tokenizer.decode_bytes(ids)


@pytest.mark.parametrize("liked", [b"{[", b"0123456789", b"etaoin"], ids=["brackets", "digits", "letters"])
@pytest.mark.parametrize("annotation", TYPES, ids=str)
def test_call_ends_within_the_reserve_whatever_the_model_would_rather_write(
    annotation: object, liked: bytes, guidance: GuidanceEngine, smollm_counting: LlamaBackend
):
    spec = from_python(function_of(annotation))
    grammar = CallGrammar(BARE, (FunctionChoice(spec.name, spec.parameters),))
    model = Insistent(smollm_counting, guidance.size, lambda piece: any(byte in liked for byte in piece))
    loop = DecodeLoop(model, guidance.start(smollm_counting.write_grammar(grammar)), Sampling(), max_tokens=512)
    assert loop.run() == "stop"
    assert list(BARE.parse(loop.text).arguments) == ["x"]


REFUSED = [
    (set[int], "uniqueItems", "list"),
    (frozenset[str], "uniqueItems", "list"),
    (Any, "anything", "Write"),
    (object, "anything", "Write"),
    (list, "anything", "Write"),
    (dict, "anything", "dict[str, int]"),
    (dict[str, Any], "anything", "Write"),
    (list[dict[str, list]], "anything", "Write"),
    (dict[int, str], "keys", "list of pairs"),
    (list[dict[date, str]], "propertyNames", "list of pairs"),
    (dict[Literal["a", "b"], int], "propertyNames", "pydantic model"),
    (Annotated[dict[str, int], Field(min_length=2)], "keys are alike", "list of pairs"),
    (Endless, "never end", "Endless | None"),
    (Nothing, "no value", "value"),
    (Literal[()], "empty", "Literal"),
    (Literal["\ud800"], "JSON Schema", "Literal"),
    (Literal["a\0b"], "no text that can be stored", "NUL"),
    (Decimal, "decimal", "float"),
    (list[Decimal], "decimal", "float"),
    (complex, "complex", "floats"),
    (Json[int], "contentMediaType", "itself"),
    (IPv4Network, "ipv4network", "pattern"),
    (re.Pattern, "regex", "pattern"),
    (Base64Bytes, "base64", "pattern"),
    (Callable[[int], int], "JSON Schema", "Literal"),
    (object(), "JSON Schema", "Literal"),
    (Annotated[str, Field(pattern="^(?=a)a$")], "look-around", "look-around"),
    (Annotated[str, Field(pattern="^(a)\\1$")], "backreferences", "back-references"),
    (Annotated[str, Field(pattern="^\\p{L}+$")], "Python", "[A-Za-z]"),
    (Annotated[str, Field(pattern="(?i)abc")], "flags", "[Aa]"),
    (Annotated[int, WithJsonSchema({"type": "integer", "pattern": "a"})], "'pattern' says nothing", "Literal"),
    (Annotated[float, Field(multiple_of=0.5)], "multiples", "int"),
    (Annotated[int, Field(ge=10**30)], "18 digits", "str"),
    (Annotated[str, WithJsonSchema({"type": "string", "format": "nonsense"})], "nonsense", "pattern"),
    (Annotated[int, WithJsonSchema({"type": "integer", "mininum": 3})], "mininum", "range"),
    (Annotated[int, WithJsonSchema({"if": {"const": 1}, "then": {"const": 1}})], "'if'", "Literal"),
    (Annotated[int, WithJsonSchema({"not": {"const": 1}})], "'not'", "Literal"),
    (Annotated[str, WithJsonSchema({"type": "nothing"})], "nothing", "Literal"),
]


@pytest.mark.parametrize(("annotation", "reason", "remedy"), REFUSED, ids=str)
def test_type_that_cannot_be_enforced_is_refused_by_parameter_with_what_to_write_instead(
    annotation: object, reason: str, remedy: str
):
    with pytest.raises(LocalmemError) as caught:
        from_python(function_of(annotation))
    assert "parameter 'x'" in caught.value.message
    assert reason in caught.value.message
    assert remedy in caught.value.hint
    assert caught.value.hint


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Annotated[str, Field(pattern="^a$", min_length=3)], "Unsatisfiable"),
        (Annotated[str, Field(pattern="^a\\b")], "lookarounds"),
        (Annotated[str, Field(min_length=5, max_length=3)], "minLength"),
        (Annotated[int, Field(ge=5, le=3)], "minimum"),
        (Annotated[list[int], Field(min_length=5, max_length=3)], "minItems"),
        (Annotated[int, WithJsonSchema({"oneOf": [{"type": "number"}, {"type": "integer"}]})], "oneOf"),
    ],
    ids=str,
)
def test_schema_that_only_the_engine_can_judge_is_refused_by_parameter_too(annotation: object, reason: str):
    def f(first: int, x: Any) -> None:
        """Do it."""

    f.__annotations__["x"] = annotation
    spec = from_python(f)
    with pytest.raises(LocalmemError, match="parameter 'x'") as caught:
        check_enforceable(spec, ScriptedBackend())
    assert reason in caught.value.message
    assert caught.value.hint


class Rare(Enum):
    CHARACTER = "\U00040000"


def test_value_that_the_vocabulary_cannot_spell_is_refused(smollm_counting: LlamaBackend):
    """SmolLM2 lacks 21 bytes: a model that began such a value could not end it."""

    def f(first: list[Rare] | None) -> None:
        """Do it."""

    with pytest.raises(LocalmemError, match="parameter 'first': this model cannot spell") as caught:
        check_enforceable(from_python(f), smollm_counting)
    assert caught.value.hint
    check_enforceable(from_python(f), ScriptedBackend())  # which has every byte


def test_refusal_names_the_parameter_and_the_place_inside_of_it():
    def f(a: int, b: Place, c: Deep) -> None:
        """Do it."""

    place = "function 'f', parameter 'c', Deep, field 'tags', its items"
    with pytest.raises(LocalmemError, match=f"{place}: .*uniqueItems"):
        from_python(f)


def test_field_as_a_default_is_refused_for_nobody_looks_at_it():
    def f(x: int = Field(ge=1)) -> None:
        """Do it."""

    with pytest.raises(LocalmemError, match="parameter 'x'") as caught:
        from_python(f)
    assert "Annotated" in caught.value.hint


def test_every_text_list_and_map_has_an_end():
    def f(a: str, b: list[str], c: dict[str, list[int]], d: datetime, e: Annotated[str, Field(pattern="a")]) -> None:
        """Do it."""

    properties = from_python(f).parameters["properties"]
    assert properties["a"]["maxLength"] == properties["e"]["maxLength"] == 400
    assert properties["b"]["maxItems"] == properties["c"]["maxProperties"] == 20
    assert properties["d"]["maxLength"] == 32
    assert closed(properties["c"])["patternProperties"]["^[\\s\\S]{1,80}$"]["items"]["maximum"] == 999_999_999_999_999


def test_model_takes_no_field_that_it_does_not_declare():
    definitions = from_python(function_of(Open)).parameters["$defs"]
    assert definitions["Open"]["additionalProperties"] is False


def test_number_of_ones_own_bounds_keeps_them():
    assert closed({"type": "integer", "minimum": 3, "maximum": 5}) == {"type": "integer", "minimum": 3, "maximum": 5}
    assert closed({"type": "number", "minimum": 10**17})["maximum"] == 10**18
    assert closed({"properties": {"enum": {"type": "integer", "maximum": 1}}})["properties"]["enum"]["minimum"] < 0


def test_model_is_shown_what_an_object_of_ones_own_holds():
    def f(place: Place, link: Link, pairs: list[Pair], either: Cat | None, counts: dict[str, int]) -> None:
        """Do it."""

    assert from_python(f).compact_tool()["parameters"] == {
        "place": {"name": "string", "floor": "integer"},
        "link": {"value": "integer", "following": {"anyOf": ["Link", "null"]}},
        "pairs": [["integer", "string"]],
        "either": {"anyOf": [{"kind": {"const": "cat", "type": "string"}, "lives": "integer"}, "null"]},
        "counts": {"any key": "integer"},
    }


def test_signature_names_the_parameters():
    def weather(city: str, days: int) -> None:
        """Tell the weather."""

    assert from_python(weather).signature() == "weather(city, days): Tell the weather."


def test_tool_is_as_chat_templates_expect_it():
    spec = from_python(function_of(int))
    assert spec.tool() == {
        "type": "function",
        "function": {"name": "f", "description": "Do it.", "parameters": spec.parameters},
    }


def test_compact_tool_names_plain_types_and_keeps_what_is_more():
    def book(city: str, nights: Annotated[int, Field(ge=1, le=5)], kind: Literal["a", "b"]) -> None:
        """Book it."""

    assert from_python(book).compact_tool() == {
        "name": "book",
        "description": "Book it.",
        "parameters": {"city": "string", "nights": "integer", "kind": {"enum": ["a", "b"], "type": "string"}},
    }


def test_method_of_an_object_can_be_registered():
    class Thermostat:
        degrees = 20

        def heat(self, by: int) -> int:
            """Make it warmer."""
            return self.degrees + by

    spec = from_python(Thermostat().heat)
    assert list(spec.parameters["properties"]) == ["by"]
    assert spec.run(by=2) == 22


def test_declared_functions_are_the_papers():
    declared = load_declarations(data_dir("grammars") / "memgpt.json")
    assert set(declared) == {
        "send_message",
        "core_memory_append",
        "core_memory_replace",
        "conversation_search",
        "conversation_search_date",
        "archival_memory_insert",
        "archival_memory_search",
        "pause_heartbeats",
        "nothing_to_save",  # the answer to a memory-pressure warning with nothing to add
    }
