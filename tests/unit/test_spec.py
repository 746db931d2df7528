"""Functions a model may call: read off Python's types, checked when they are registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, HttpUrl, SecretStr

from localmem.backend.constraint import GuidanceEngine
from localmem.backend.llama import LlamaBackend
from localmem.calls.chat_format import BARE
from localmem.calls.grammar import CallGrammar, FunctionChoice
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
        function_of(Callable[[int], int]),
        function_of(object()),
    ],
)
def test_what_a_model_cannot_fill_is_refused_when_it_is_registered(function: Callable[..., object]):
    with pytest.raises(LocalmemError) as caught:
        from_python(function)
    assert caught.value.hint


TYPES = [
    str,
    int,
    float,
    bool,
    date,
    Path,
    bytes,
    set[int],
    frozenset[str],
    SecretStr,
    HttpUrl,
    Colour,
    Place,
    Size,
    Any,
    int | None,
    int | str,
    list[Place],
    dict[str, int],
    tuple[int, str],
    Literal["a", 1],
    Annotated[int, Field(ge=1, le=5)],
    Annotated[str, Field(pattern="^a+$")],
    Annotated[list[int], Field(max_length=3)],
]


@pytest.mark.parametrize("annotation", TYPES, ids=str)
def test_registered_function_can_be_put_into_a_grammar(
    annotation: object, guidance: GuidanceEngine, smollm_counting: LlamaBackend
):
    spec = from_python(function_of(annotation))
    grammar = CallGrammar(BARE, (FunctionChoice(spec.name, spec.parameters),))
    encode = smollm_counting.tokenizer.encode
    assert not guidance.start(grammar.lark(lambda text: encode(text, special=True))).finished


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
