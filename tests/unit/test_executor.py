"""The function executor: whatever a model asks for, there is a result."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from localmem.backend.base import Completion
from localmem.calls.chat_format import BARE
from localmem.calls.spec import FunctionSpec, from_python
from localmem.errors import FunctionError, InvalidArguments, StorageError
from localmem.kernel.executor import execute, parse
from localmem.kernel.messages import FunctionCall, FunctionResult, Usage


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    name: str
    floor: int


def run(function: Callable[..., object], **arguments: object) -> FunctionResult:
    spec = from_python(function)
    return execute(FunctionCall(spec.name, arguments), {spec.name: spec}, allowed=[spec.name])


def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}."


def test_result_is_what_the_function_returned():
    assert run(greet, name="Ana") == FunctionResult(True, "Hello Ana.")


def test_function_that_returns_nothing_is_done():
    def nothing() -> None:
        """Do nothing."""

    assert run(nothing) == FunctionResult(True, "Done.")


def test_result_that_is_no_text_is_written_out():
    def numbers() -> list[int]:
        """Count."""
        return [1, 2]

    assert run(numbers).text == "[1, 2]"


@pytest.mark.parametrize("error", [ValueError("no such city"), KeyError("x"), SystemError("odd"), RecursionError()])
def test_function_that_raises_is_a_result_that_says_what_it_raised(error: Exception):
    def fail() -> None:
        """Fail."""
        raise error

    result = run(fail)
    assert not result.ok
    assert f"fail failed: {type(error).__name__}: {error}" in result.text


def test_result_whose_text_cannot_be_had_is_a_failure():
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def give() -> object:
        """Give it."""
        return Unprintable()

    assert not run(give).ok


def test_refusal_of_our_own_is_fed_back_word_for_word():
    def fail() -> None:
        """Fail."""
        raise FunctionError("try another word")

    assert run(fail) == FunctionResult(False, "Error: try another word")


@pytest.mark.parametrize("fault", [StorageError("disk full"), KeyboardInterrupt(), SystemExit()])
def test_fault_that_is_not_the_models_passes(fault: BaseException):
    def fail() -> None:
        """Fail."""
        raise fault

    with pytest.raises(type(fault)):
        run(fail)


def test_unknown_function_is_a_result_that_names_those_there_are():
    spec = from_python(greet)
    result = execute(FunctionCall("hello", {}), {"greet": spec}, allowed=["greet"])
    assert result == FunctionResult(False, "Error: there is no function 'hello'; call one of greet")


def test_function_that_is_not_offered_now_is_not_run():
    ran: list[str] = []

    def secret() -> None:
        """Tell it."""
        ran.append("secret")

    spec = from_python(secret)
    result = execute(FunctionCall("secret", {}), {"secret": spec}, allowed=["send_message"])
    assert not result.ok
    assert "cannot be called now; call one of send_message" in result.text
    assert ran == []


@pytest.mark.parametrize("arguments", [{}, {"name": 1}, {"name": None}, {"name": "x", "more": 1}, {"nam": "x"}])
def test_argument_that_does_not_fit_is_a_result_that_says_what_it_takes(arguments: dict[str, object]):
    result = run(greet, **arguments)
    assert not result.ok
    assert "it takes name" in result.text


def test_name_of_the_wrong_argument_is_told():
    def go(place: Place) -> None:
        """Go there."""

    assert "argument place.floor" in run(go, place={"name": "x", "floor": "high"}).text


@pytest.mark.parametrize(
    ("annotation", "given", "taken"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (bool, True, True),
        (Literal["a", "b"], "b", "b"),
        (Colour, "blue", Colour.BLUE),
        (Annotated[int, Field(ge=1, le=5)], 5, 5),
        (list[int], [1, 2], [1, 2]),
        (tuple[str, ...], ["a", "a"], ("a", "a")),
        (Place, {"name": "x", "floor": 2}, Place(name="x", floor=2)),
        (list[Place], [{"name": "x", "floor": 2}], [Place(name="x", floor=2)]),
        (int | None, None, None),
        (Place | None, {"name": "x", "floor": 2}, Place(name="x", floor=2)),
        (date, "2026-03-02", date(2026, 3, 2)),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (tuple[int, str], [1, "x"], (1, "x")),
        (Path, "a/b", Path("a/b")),
    ],
    ids=str,
)
def test_argument_arrives_as_its_type(annotation: object, given: object, taken: object):
    arrived: list[object] = []

    def take(x: object) -> None:
        """Take it."""
        arrived.append(x)

    take.__annotations__["x"] = annotation
    result = run(take, x=given)
    assert (result.ok, arrived) == (True, [taken])
    assert type(arrived[0]) is type(taken)


@pytest.mark.parametrize(
    ("annotation", "given"),
    [
        (int, "three"),
        (int, 1.5),
        (bool, "yes"),
        (Literal["a", "b"], "c"),
        (Colour, "green"),
        (Annotated[int, Field(ge=1, le=5)], 6),
        (list[int], ["x"]),
        (Place, {"name": "x"}),
        (date, "2026-02-30"),
        (date, "tomorrow"),
        (str, "x" * 401),
    ],
    ids=str,
)
def test_argument_of_another_type_is_a_result(annotation: object, given: object):
    arrived: list[object] = []

    def take(x: object) -> None:
        """Take it."""
        arrived.append(x)

    take.__annotations__["x"] = annotation
    assert not run(take, x=given).ok
    assert arrived == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    name=st.sampled_from(["greet", "go", "", "send_message"]),
    arguments=st.dictionaries(st.text(max_size=6), json_values),
)
def test_no_call_at_all_raises(name: str, arguments: dict[str, object]):
    def go(place: Place, when: date | None, colour: Colour) -> str:
        """Go there."""
        return f"{place.name} {when} {colour.value}"

    specs: dict[str, FunctionSpec] = {f.__name__: from_python(f) for f in (greet, go)}
    assert isinstance(execute(FunctionCall(name, arguments), specs, allowed=list(specs)), FunctionResult)


def completion(text: str, reason: str = "stop") -> Completion:
    return Completion(text, tuple(text.encode()), reason, Usage())  # type: ignore[arg-type]


def test_completion_that_was_cut_off_is_refused_and_not_parsed():
    with pytest.raises(InvalidArguments, match="cut off after 10 tokens"):
        parse(completion('{"name": "', "length"), BARE)


@given(text=st.text(max_size=60))
def test_text_that_is_no_call_is_refused_in_words(text: str):
    with pytest.raises(InvalidArguments):
        parse(completion(text), BARE)


def test_call_is_parsed():
    assert parse(completion('{"name": "greet", "arguments": {"name": "Ana"}}'), BARE) == FunctionCall(
        "greet", {"name": "Ana"}
    )
